# SPDX-License-Identifier: Apache-2.0
"""What a guest boots: the kernel unpacked, the modules it loads and in which order, its parameters.

Kernel and modules are decompressed on this machine, where that takes milliseconds; an emulated processor takes
seconds for it.
"""

from __future__ import annotations

import lzma
import struct
import subprocess
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

ROOT_MODULES: Final = ("9pnet_virtio", "9p", "overlay", "virtio_blk", "crc32c_generic", "ext4")
"""What the root and the guest's own disk need. ext4 asks for crc32c by name only once it mounts."""

NETWORK_MODULE: Final = "virtio_net"

DEVICE_MODULES: Final = (
    *("nfit", "nd_pmem", "device_dax", "dax_pmem", "dax_hmem"),
    *("cxl_acpi", "cxl_pci", "cxl_mem", "cxl_port", "cxl_pmem", "dax_cxl"),
)
"""What every guest has. kmem is not among them: with it Debian's kernel makes a CXL ram region the private system
RAM of the first host that creates it, and of a shared pool nothing is left. `modprobe kmem` loads it."""

UNUSED_MODULES: Final = (
    "sound",
    *(f"drivers/{name}" for name in ("gpu", "iio", "infiniband", "isdn", "media", "scsi", "staging", "usb", "video")),
    *(f"drivers/net/{name}" for name in ("ethernet", "wireless")),
)
"""Folders of modules that are large and drive nothing that a guest has."""

PARAMETERS: Final = (
    *("console=ttyS0", "quiet", "panic=-1", "net.ifnames=0"),
    # Each of these costs an emulated processor a part of a second at boot and protects nobody here.
    *("mitigations=off", "nokaslr", "tsc=reliable", "no_timer_check", "random.trust_cpu=on", "lpj=5000000"),
    *("cryptomgr.notests=1", "noreplace-smp", "8250.nr_uarts=1", "audit=0", "apparmor=0", "numa_balancing=disable"),
    # A host with kmem loaded must not take shared memory for itself unasked.
    "memhp_default_state=offline",
)


def unpack_kernel(folder: Path, release: str, *, zstd: Sequence[str], depmod: Sequence[str]) -> None:
    """Make of an unpacked linux-image package in `folder` a vmlinux, and modules that modprobe finds.

    `zstd` and `depmod` are the commands to run those programs. OSError where the kernel is not as expected.
    """
    image = (folder / f"boot/vmlinuz-{release}").read_bytes()
    # The boot protocol's header (Documentation/arch/x86/boot.rst) tells where the compressed kernel lies.
    (setup_sectors,) = struct.unpack_from("<B", image, 0x1F1)
    offset, length = struct.unpack_from("<II", image, 0x248)
    start = (setup_sectors + 1) * 512 + offset
    # The build appends the size unpacked, four bytes that are not zstd's.
    payload = image[start : start + length - 4]
    result = subprocess.run([*zstd, "-d", "-c"], input=payload, capture_output=True, check=False)
    if not result.stdout.startswith(b"\x7fELF"):
        raise OSError(f"vmlinuz-{release} holds no kernel compressed with zstd: {result.stderr.decode().strip()}")
    (folder / "vmlinux").write_bytes(result.stdout)
    # The package leaves modules.dep to its post-installation script. depmod looks below lib.
    (folder / "lib").symlink_to("usr/lib")
    subprocess.run([*depmod, "-b", folder, release], check=True, capture_output=True)


def load_modules(modules: Path, names: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Give name and content of these modules and of all that they need, in an order to load them in.

    `modules` is a /lib/modules/RELEASE with modules.dep. What is built in is left out.
    """
    needed: dict[str, list[str]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        file, _, others = line.partition(":")
        needed[_name(file)] = [*reversed(others.split()), file]
    builtin = {_name(file) for file in (modules / "modules.builtin").read_text().split()}
    given = set()
    for name in names:
        if name.replace("-", "_") in builtin:
            continue
        for file in needed[name.replace("-", "_")]:
            if file not in given:
                given.add(file)
                content = (modules / file).read_bytes()
                yield _name(file), lzma.decompress(content) if file.endswith(".xz") else content


def _name(file: str) -> str:
    return file.rsplit("/", 1)[-1].partition(".ko")[0].replace("-", "_")
