# SPDX-License-Identifier: Apache-2.0
"""The archive that a guest boots from: busybox, modules, and a script that finds the root and starts process 1 there.

That is the agent, or systemd, of which the agent is a service then.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from tools.rack.kernel import DEVICE_MODULES, NETWORK_MODULE, ROOT_MODULES, load_modules

if TYPE_CHECKING:
    from tools.rack.prefix import Prefix

DIRECTORY: Final = 0o040755
PROGRAM: Final = 0o100755
FILE: Final = 0o100644
CONSOLE: Final = 0o020600

SCRIPT: Final = r"""#!/bin/busybox sh
b=/bin/busybox
fail() { echo "rack: $1"; $b poweroff -f; }
$b mkdir -p /proc /sys /dev /host /rw /new
$b mount -t proc proc /proc; $b mount -t sysfs sysfs /sys; $b mount -t devtmpfs devtmpfs /dev
# The kernel ignores parameters with a dot whose module it does not know.
for word in $($b cat /proc/cmdline); do case $word in rack.*) eval "${word#rack.}" ;; esac; done
# CXL's driver would probe its devices at once and side by side, and number them by who comes first. One after the
# other they are numbered by their places.
echo 0 > /sys/bus/pci/drivers_autoprobe
for module in $($b cat /modules/order); do $b insmod /modules/$module.ko || echo "rack: no module $module"; done
for device in /sys/bus/pci/devices/*; do
    [ -e $device/driver ] || echo ${device##*/} > /sys/bus/pci/drivers_probe
done
echo 1 > /sys/bus/pci/drivers_autoprobe
# loose: nothing is asked twice. What changes on the machine after the boot may stay unseen here.
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose root /host || fail "no root"
$b mount -t tmpfs tmpfs /rw; $b mkdir -p /rw/upper /rw/work
lower=/host
if [ -n "$layer" ]; then
    $b mkdir -p /prefix; lower=/prefix:/host
    $b mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=512000,cache=loose prefix /prefix || fail "no prefix"
fi
$b mount -t overlay -o lowerdir=$lower,upperdir=/rw/upper,workdir=/rw/work overlay /new || fail "no overlay"
for name in proc sys dev; do $b mkdir -p /new/$name; $b mount --move /$name /new/$name; done
for name in run tmp; do $b mkdir -p /new/$name; done
$b mount -t tmpfs tmpfs /new/run
$b mkdir -p /new/dev/shm /new/dev/pts; $b mount -t tmpfs tmpfs /new/dev/shm; $b mount -t devpts devpts /new/dev/pts
$b mount -t debugfs debugfs /new/sys/kernel/debug; $b mount -t tracefs tracefs /new/sys/kernel/tracing
release=$($b uname -r)
$b mkdir -p /new/lib/modules/$release; $b mount --bind /host$modules /new/lib/modules/$release
# The one thing that outlives a boot, on a disk of the guest's own.
$b mkdir -p /new/var/lib/engramdax; $b mount -t ext4 -o noatime /new/dev/vda /new/var/lib/engramdax || fail "no disk"
[ -n "$layer" ] || exec $b switch_root /new $python -I -S $agent

# systemd and its units are the prefix's. What the machine's would start, or mount, is not for a guest.
units=/new/etc/systemd/system
$b rm -rf /new/etc/systemd /new/usr/local/lib/systemd /new/usr/lib/systemd/system-generators
$b mount --bind /prefix/usr/lib/systemd/system /new/usr/lib/systemd/system
$b mkdir -p $units/multi-user.target.wants
for unit in UNWANTED; do $b ln -s /dev/null $units/$unit; done
printf '[Unit]\nDescription=Agent\nDefaultDependencies=no\n[Service]\nExecStart=%s -I -S %s\n' \
    $python $agent > $units/rack-agent.service
$b ln -s ../rack-agent.service $units/multi-user.target.wants/
[ -s /new/etc/machine-id ] || $b tr -d - < /proc/sys/kernel/random/uuid > /new/etc/machine-id
$b cp -a /host$layer/. /new/
exec $b switch_root /new /usr/lib/systemd/systemd --unit=multi-user.target
"""

UNWANTED: Final = (
    # It would hide what the machine has in /tmp, or empty it.
    *("tmp.mount", "systemd-tmpfiles-clean.timer"),
    # They take an emulated processor seconds or minutes, for what nothing here needs.
    *("ldconfig.service", "systemd-hwdb-update.service", "systemd-journal-catalog-update.service"),
    *("getty.target", "systemd-logind.service", "systemd-firstboot.service", "systemd-binfmt.service"),
    *("proc-sys-fs-binfmt_misc.automount", "systemd-sysctl.service", "kmod-static-nodes.service"),
    *("sys-kernel-config.mount", "sys-fs-fuse-connections.mount", "dev-mqueue.mount", "dev-hugepages.mount"),
)
"""Units that a guest with systemd does without."""


def initramfs(prefix: Prefix, *, udev: bool = False) -> bytes:
    """Give the archive, uncompressed: a cpio of format newc.

    Drivers of the memory are loaded by it, unless `udev` is to do that, as on a real host.
    """
    archive = _Archive()
    for name in ("bin", "dev", "modules"):
        archive.add(name, DIRECTORY)
    archive.add("dev/console", CONSOLE, device=(5, 1))
    archive.add("bin/busybox", PROGRAM, prefix.busybox.read_bytes())
    archive.add("init", PROGRAM, SCRIPT.replace("UNWANTED", " ".join(UNWANTED)).encode())
    order = []
    devices = () if udev else DEVICE_MODULES
    for name, content in load_modules(prefix.modules, (*ROOT_MODULES, NETWORK_MODULE, *devices)):
        archive.add(f"modules/{name}.ko", FILE, content)
        order.append(name)
    archive.add("modules/order", FILE, " ".join(order).encode())
    return archive.end()


class _Archive:
    """A cpio of format newc: an ASCII header, name and content for each file, each padded to 4 bytes."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        self._count = 0

    def add(self, name: str, mode: int, content: bytes = b"", *, device: tuple[int, int] = (0, 0)) -> None:
        """Add a file, folder or device node."""
        self._count += 1
        path = name.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device (2), device that it stands for (2), length of name, check
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        self._out.write(b"070701" + b"".join(b"%08X" % field for field in fields))
        for part in (path, content):
            self._out.write(part)
            self._out.write(bytes(-self._out.tell() % 4))

    def end(self) -> bytes:
        """Give the whole archive."""
        self.add("TRAILER!!!", 0)
        return self._out.getvalue()
