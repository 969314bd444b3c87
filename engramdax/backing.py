# SPDX-License-Identifier: Apache-2.0
"""What memory stands at a path: a devdax device, a hugetlbfs, tmpfs or disk file.

The size and align of a devdax device come from sysfs (fstat says 0); a hugetlbfs says its page size as
the block size of its file system.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from engramdax._core import ffi, lib
from engramdax.errors import BackingError, ParameterError, RefusedError
from engramdax.mapping import PAGE_BYTES, Mapping

SYSFS: Final = Path("/sys")
HUGE_PAGE: Final = 2 << 20
"""Where a file's mapping begins, so that a file system with huge pages can use them."""

HUGETLBFS_MAGIC: Final = 0x958458F6
TMPFS_MAGIC: Final = 0x01021994
NETWORK_MAGICS: Final = {0x6969: "nfs", 0xFF534D42: "cifs", 0xFE534D42: "smb2", 0x00C36400: "ceph"}


class Kind(StrEnum):
    """The kinds of memory that a pool can live in."""

    DEVDAX = "devdax"
    HUGETLBFS = "hugetlbfs"
    TMPFS = "tmpfs"
    FILE = "file"


@dataclass(frozen=True, slots=True)
class Backing:
    """Memory at `path`: `size` bytes, mapped in multiples of `align` bytes."""

    path: Path
    kind: Kind
    size: int
    align: int
    device: int
    """st_rdev of a device, 0 for a file."""

    def open(self, *, writable: bool = False) -> int:
        """Open it, O_RDONLY unless `writable`; the caller closes the descriptor."""
        return open_fd(self.path, writable=writable)

    def map(self, fd: int, *, writable: bool = False) -> Mapping:
        """Map all of it."""
        align = self.align if self.kind in (Kind.DEVDAX, Kind.HUGETLBFS) else HUGE_PAGE
        huge = self.kind in (Kind.TMPFS, Kind.FILE)
        return Mapping(fd, self.size, align=align, writable=writable, huge=huge, path=str(self.path))

    def sync_fd(self, fd: int) -> int | None:
        """Give the descriptor that a fence has to sync, for memory that is a cache of a disk."""
        return fd if self.kind is Kind.FILE else None

    def page_bytes(self, mapping: Mapping) -> int:
        """Bytes of the pages that map it, as the kernel tells them for a mapping of the whole."""
        return self.align if self.kind in (Kind.DEVDAX, Kind.HUGETLBFS) else mapping.page_bytes()


def open_fd(path: Path, *, writable: bool) -> int:
    """Open a pool's file or device node, with an error that says what stands in the way."""
    try:
        return os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise BackingError(
            f"{path} does not exist",
            remedy="`engramdax discover` shows devices; `engramdax provision --file` makes a pool in a file",
        ) from None
    except PermissionError:
        raise BackingError(
            f"no permission to open {path} for {'writing' if writable else 'reading'}",
            remedy=f"run as root, as its owner or as a member of a group that may {'write' if writable else 'read'} it "
            "(ls -l tells)",
        ) from None
    except IsADirectoryError:
        raise BackingError(f"{path} is a directory", remedy="name a file or a devdax device") from None
    except OSError as e:
        disabled = e.errno in (errno.ENXIO, errno.ENODEV)
        raise BackingError(
            f"cannot open {path}: {e.strerror}",
            remedy="the device is disabled: `daxctl reconfigure-device -m devdax` enables it"
            if disabled
            else "check it",
        ) from None


def inspect(path: Path, *, sysfs: Path = SYSFS) -> Backing:
    """Find out what stands at `path`; BackingError for what can hold no pool."""
    fd = open_fd(path, writable=False)
    try:
        return inspect_fd(fd, path, sysfs=sysfs)
    finally:
        os.close(fd)


def inspect_fd(fd: int, path: Path, *, sysfs: Path = SYSFS) -> Backing:
    """Do the same for what is open already, so that nothing can be swapped in between."""
    status = os.fstat(fd)
    if stat.S_ISCHR(status.st_mode):
        return _inspect_devdax(path, status.st_rdev, sysfs)
    if stat.S_ISDIR(status.st_mode):
        raise BackingError(f"{path} is a directory", remedy="name a file or a devdax device")
    if not stat.S_ISREG(status.st_mode):
        kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISBLK, "a block device"))
        what = next((text for test, text in kinds if test(status.st_mode)), "no file")
        raise BackingError(f"{path} is {what}", remedy="a pool lives in a devdax device or a regular file")
    magic, block = file_system(fd)
    if magic == HUGETLBFS_MAGIC:
        return Backing(path, Kind.HUGETLBFS, status.st_size, block, 0)
    kind = Kind.TMPFS if magic == TMPFS_MAGIC else Kind.FILE
    return Backing(path, kind, status.st_size, PAGE_BYTES, 0)


def file_system(fd: int) -> tuple[int, int]:
    """Magic number of the file system that `fd` lives on, and its block size in bytes."""
    magic, block = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    if error := lib.ed_file_system(fd, magic, block):
        raise BackingError(f"fstatfs failed: {os.strerror(-error)}")
    return magic[0], block[0]


def _inspect_devdax(path: Path, rdev: int, sysfs: Path) -> Backing:
    node = sysfs / "dev" / "char" / f"{os.major(rdev)}:{os.minor(rdev)}"
    if (node / "subsystem").resolve().name != "dax":
        raise BackingError(
            f"{path} is a character device, but not a devdax one",
            remedy="`engramdax provision /dev/daxX.Y` takes those that `engramdax discover` shows",
        )
    driver = (node / "driver").resolve().name
    if driver == "kmem":
        raise RefusedError(
            f"{path} is online as system RAM (driver kmem)",
            remedy="offline it and run `daxctl reconfigure-device -m devdax`, if nobody needs that memory",
        )
    try:
        size, align = (int((node / name).read_text()) for name in ("size", "align"))
    except (OSError, ValueError) as e:
        raise BackingError(f"{path}: sysfs does not tell its size and align ({e})") from None
    if align <= 0 or not 0 <= size < 1 << 63:  # ULLONG_MAX is how the kernel says that it does not know
        raise BackingError(
            f"{path}: sysfs says size {size} and align {align}", remedy="`engramdax discover` tells more"
        )
    return Backing(path, Kind.DEVDAX, size // align * align, align, rdev)


_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Bytes that '64', '2M', '1G', '512GiB' mean; units are powers of two."""
    number = text.strip().upper().removesuffix("IB").removesuffix("B")
    unit = number[-1:] if number[-1:].isalpha() else ""
    digits = number.removesuffix(unit)
    if unit not in _UNITS or not digits.isascii() or not digits.isdigit():
        raise ParameterError(f"{text!r} is no size", remedy="write bytes, or 512M, 2G, 1T")
    size = int(digits) * _UNITS[unit]
    if size >= 1 << 63:
        raise ParameterError(f"{text} is more than any file or device can have")
    return size
