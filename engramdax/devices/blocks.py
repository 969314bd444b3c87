# SPDX-License-Identifier: Apache-2.0
"""The block device of a namespace in another mode than devdax: what stands there, before it is changed."""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from engramdax.errors import BackingError, FormatError, RefusedError
from engramdax.format.geometry import SUPERBLOCK_BYTES, superblock_places
from engramdax.format.superblock import Superblock
from engramdax.mapping import PAGE_BYTES, Mapping
from engramdax.media import MappedMedia
from engramdax.pool.contents import Contents, State, contents

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.system import System
    from engramdax.devices.tree import Namespace

BLKFLSBUF: Final = 0x1261
"""Drops what this host cached of the device: another host may have written it."""

HEAD_BYTES: Final = 2 << 20
"""What a devdax namespace with its page structures in host memory may overwrite: the info block and its alignment."""

INFO_PLACE: Final = 4096
INFO_SIGNATURES: Final = {
    b"NVDIMM_DAX_INFO\0": "devdax",
    b"NVDIMM_PFN_INFO\0": "fsdax",
    b"BTT_ARENA_INFO\0\0": "sector",
}
"""Of the info blocks of Linux' nvdimm drivers (drivers/nvdimm/pfn.h, btt.h)."""

_DATA_PLACE: Final = INFO_PLACE + 56
"""Of an info block's dataoff field: where the data begin, 8 bytes."""

_MODE_PLACE: Final = INFO_PLACE + 72
"""Of its mode field, 4 bytes: 1 page structures in host memory, 2 on the device."""


def namespace_contents(system: System, namespace: Namespace, *, claim: bool = True) -> Contents:
    """Look at a raw or fsdax namespace without changing it; RefusedError where it is mounted or held.

    Without `claim` that is not seen, and nobody else is kept from mounting it meanwhile.
    """
    with _opened(system, namespace, os.O_RDONLY | (os.O_EXCL if claim else 0)) as fd:
        size = os.lseek(fd, 0, os.SEEK_END)
        mapping = Mapping(fd, size, align=PAGE_BYTES, writable=False, huge=False, path=str(_node(system, namespace)))
        if (mode := _mode(fd)) is not None:
            return Contents(State.RECOGNISED, f"a {mode} namespace, by its info block")
        return contents(MappedMedia(mapping), fd)


def devdax_on_media(system: System, namespace: Namespace) -> bool:
    """Tell whether another host made this raw namespace a devdax one; RefusedError where it is unfit for sharing."""
    with _opened(system, namespace, os.O_RDONLY | os.O_EXCL) as fd:
        return _devdax(fd, namespace)


def has_pool_to_join(system: System, namespace: Namespace) -> bool:
    """Tell whether it also holds a pool; nobody is kept off it meanwhile."""
    with _opened(system, namespace, os.O_RDONLY) as fd:
        if not _devdax(fd, namespace):
            return False
        data = int.from_bytes(os.pread(fd, 8, _DATA_PLACE), "little")
        size = os.lseek(fd, 0, os.SEEK_END) - data
        for place in superblock_places(size) if size > 0 else ():
            try:
                Superblock.from_bytes(os.pread(fd, SUPERBLOCK_BYTES, data + place), media_bytes=size)
            except FormatError:
                continue
            return True
        return False


def _devdax(fd: int, namespace: Namespace) -> bool:
    if _mode(fd) != "devdax":
        return False
    if os.pread(fd, 4, _MODE_PLACE) == (2).to_bytes(4, "little"):
        raise unfit(namespace.name)
    return True


def unfit(name: str) -> RefusedError:
    """Give the error of a namespace whose page structures are on the device."""
    return RefusedError(
        f"{name} is unfit for sharing: its page structures are on the device (map=dev), where each host's kernel "
        "writes its own",
        remedy=f"make it anew with `ndctl create-namespace -f -e {name} -m devdax -M mem`, or say --single-host if no "
        "other host ever sees it",
    )


def read_head(system: System, namespace: Namespace) -> bytes:
    """Give the first bytes of a namespace, to be put back where a later step fails."""
    if not namespace.blocks:
        return b""
    with _opened(system, namespace, os.O_RDONLY | os.O_EXCL) as fd:
        return os.pread(fd, HEAD_BYTES, 0)


def write_head(system: System, namespace: Namespace, head: bytes) -> None:
    """Put them back, where they are others now."""
    if not any(head):
        return  # what was zeros is zeros: ndctl clears the info block itself
    with _opened(system, namespace, os.O_RDWR | os.O_EXCL) as fd:
        if os.pread(fd, len(head), 0) != head:
            os.pwrite(fd, head, 0)
            os.fsync(fd)


def _mode(fd: int) -> str | None:
    return INFO_SIGNATURES.get(os.pread(fd, 16, INFO_PLACE))


def _node(system: System, namespace: Namespace) -> str:
    return str(system.dev / namespace.blocks[0].name)


@contextmanager
def _opened(system: System, namespace: Namespace, flags: int) -> Iterator[int]:
    if not namespace.blocks:
        raise BackingError(
            f"{namespace.name} has no block device: what stands on it cannot be looked at",
            remedy=f"`ndctl enable-namespace {namespace.name}` makes one",
        )
    node = _node(system, namespace)
    try:
        fd = os.open(node, flags | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == errno.EBUSY:
            raise RefusedError(
                f"{namespace.name} is in use: {node} is mounted, swapped on, or part of another device",
                remedy="end that first, if nobody needs what is on it",
            ) from None
        raise BackingError(f"cannot open {node}: {e.strerror}", remedy="run as root") from None
    try:
        with suppress(PermissionError):  # root's alone, whoever may open the device
            fcntl.ioctl(fd, BLKFLSBUF)
        yield fd
    finally:
        os.close(fd)
