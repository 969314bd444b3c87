# SPDX-License-Identifier: Apache-2.0
"""The device or file that a pool lies in: is it there, whole, in the right mode, and open to the right users."""

from __future__ import annotations

import grp
import pwd
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from engramdax.backing import Kind
from engramdax.devices import udev
from engramdax.devices.fitness import obstacle
from engramdax.devices.installation import USER
from engramdax.devices.tree import Map
from engramdax.health.finding import Finding, State, critical, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engramdax.devices.tree import DaxDevice, Namespace
    from engramdax.errors import EngramdaxError
    from engramdax.health.subject import Subject

MIB: Final = 1 << 20
LEAST_ALIGN: Final = 2 * MIB
NODE_MODE: Final = 0o640


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at what the pool lies in."""
    if subject.path is None:
        if subject.path_problem is not None:
            yield _missing(subject.path_problem)
        return
    device, path = subject.device, subject.path
    if not path.exists():
        yield critical("device.present", f"{path} is not there", remedy="`engramdax discover` shows what is")
        return
    if device is not None:
        yield from _dax(subject, device)
    elif subject.opened is not None:
        kind, size = subject.opened.backing.kind, subject.opened.backing.size
        if kind is Kind.DEVDAX:
            yield unknown("device.present", f"sysfs says nothing of {path}", remedy="`engramdax discover` tells why")
        else:
            yield ok("device.present", f"{path}, a file ({kind})", figure=size, unit="bytes")
    yield from _permissions(path)


def _missing(error: EngramdaxError) -> Finding:
    # A pool that this host had and does not find is one thing, never to have had one another.
    gone = error.exit_code == 1
    state = State.CRITICAL if gone else State.UNKNOWN
    return Finding("device.present", state, error.problem, remedy=error.remedy)


def _dax(subject: Subject, device: DaxDevice) -> Iterator[Finding]:
    yield ok("device.present", f"{device.name} ({device.origin})", figure=device.size, unit="bytes")
    found = obstacle(subject.tree, device)
    if found is not None:
        command = f"`{found.command}`" if found.command else ""
        yield critical("device.mode", f"{found.verdict}: {found.why}", remedy=command)
    else:
        yield ok("device.mode", f"{device.mode}, driver {device.driver}")
    yield from _size(subject, device)
    if device.align is None:
        yield unknown("device.align", "the kernel does not tell its align")
    elif device.align < LEAST_ALIGN:
        remedy = "provision it anew with pages of 2 MiB"
        found_text = f"mapped in pages of {device.align} bytes, which makes gathers slow"
        yield warning("device.align", found_text, figure=device.align, unit="bytes", remedy=remedy)
    else:
        yield ok("device.align", f"mapped in pages of {device.align >> 20} MiB", figure=device.align, unit="bytes")
    if device.namespace is not None:
        yield _map(device.namespace)
    yield _stable_name(subject, device)


def _size(subject: Subject, device: DaxDevice) -> Iterator[Finding]:
    if device.size is None:
        yield unknown("device.size", "the kernel does not tell its size")
    elif subject.superblock is not None:
        size = subject.superblock.value.size
        if size > device.size:  # a read_superblock that went well has looked already; a device may shrink
            text = f"the pool says {size} bytes, the device has {device.size}"
            yield critical("device.size", text, figure=device.size, unit="bytes", remedy="restore the device's size")
        else:
            yield ok("device.size", f"{device.size} bytes, the pool takes {size}", figure=device.size, unit="bytes")


def _map(namespace: Namespace) -> Finding:
    if namespace.map is Map.DEV:
        text = f"the kernel keeps its page structures on {namespace.name} (map=dev): hosts overwrite each other's"
        remedy = f"save the tables; `ndctl create-namespace -f -e {namespace.name} -m devdax -M mem`"
        return critical("device.map", text, remedy=remedy)
    if namespace.map is None:
        return unknown("device.map", f"the kernel does not tell where it keeps page structures of {namespace.name}")
    return ok("device.map", f"{namespace.name} has its page structures in memory")


def _stable_name(subject: Subject, device: DaxDevice) -> Finding:
    if not udev.running():
        return ok("device.name", f"found as {device.name}; no udevd runs here that could make links")
    uuid = subject.superblock.value.pool if subject.superblock else None
    pools = udev.linked_pools()
    if uuid is not None and uuid in pools and pools[uuid].path.name == device.name:
        return ok("device.name", f"{udev.LINKS}/by-id/pool-{uuid}")
    if uuid is None:
        return unknown("device.name", "the pool's uuid is not known, by which udev names it")
    return warning(
        "device.name",
        f"{device.name} has no link in {udev.LINKS}: after a boot its name may be another",
        remedy="`sudo engramdax udev install`",
    )


def _permissions(path: Path) -> Iterator[Finding]:
    try:
        status = path.stat()
    except OSError as e:
        yield unknown("device.permissions", f"{path}: {e.strerror}", remedy="run as root")
        return
    mode, is_device = stat.S_IMODE(status.st_mode), stat.S_ISCHR(status.st_mode)
    owner, group = _name(status.st_uid, status.st_gid)
    text = f"{path} belongs to {owner}:{group}, mode {mode:04o}"
    restore = f"`chmod {NODE_MODE:04o} {path}`"
    if mode & stat.S_IWOTH:
        yield critical("device.permissions", f"{text}: anybody can write it", remedy=restore)
    elif is_device and mode & 0o007:
        yield warning("device.permissions", f"{text}: anybody can read it", remedy=restore)
    elif not mode & stat.S_IRUSR:
        yield critical("device.permissions", f"{text}: its owner may not read it", remedy=restore)
    elif is_device and (ids := _ids()) is not None and (status.st_uid, status.st_gid) != ids:
        remedy = "`udevadm trigger --action=change` lets the rules apply; `sudo engramdax udev install` installs them"
        yield warning("device.permissions", f"{text}, not to {USER}:{USER}", remedy=remedy)
    elif is_device and mode & stat.S_IWGRP:
        yield warning("device.permissions", f"{text}: readers could write it", remedy=restore)
    else:
        yield ok("device.permissions", text)


def _name(uid: int, gid: int) -> tuple[str, str]:
    owner, group = str(uid), str(gid)
    with suppress(KeyError):
        owner = pwd.getpwuid(uid).pw_name
    with suppress(KeyError):
        group = grp.getgrgid(gid).gr_name
    return owner, group


def _ids() -> tuple[int, int] | None:
    try:
        return pwd.getpwnam(USER).pw_uid, grp.getgrnam(USER).gr_gid
    except KeyError:
        return None
