# SPDX-License-Identifier: Apache-2.0
"""What is on a device or in a file before a pool goes there: a pool there must cost nobody anything unasked."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from engramdax.errors import FormatError, NotAPoolError
from engramdax.pool.volume import read_directory, read_superblock

if TYPE_CHECKING:
    from engramdax.media import MappedMedia

WHOLE_BYTES: Final = 1 << 30
"""Up to this size every byte of a device is looked at."""

EDGE_BYTES: Final = 64 << 20
"""Of larger media, this much at both ends, and a page in each SAMPLE_BYTES between."""

SAMPLE_BYTES: Final = 16 << 20
PAGE_BYTES: Final = 4096
SIGNATURE_BYTES: Final = 1 << 20
"""File systems, partition tables and RAID members sign within this much of either end."""


class State(Enum):
    """How sure it is that nobody misses what is there."""

    EMPTY = "empty"
    POOL = "pool"
    RECOGNISED = "recognised"
    UNKNOWN = "unknown"


class Contents(NamedTuple):
    """A state and, in words, what was found."""

    state: State
    what: str


def contents(media: MappedMedia, fd: int) -> Contents:
    """Look at the media without changing them; `fd` is what they are mapped from."""
    try:
        superblock = read_superblock(media).value
    except NotAPoolError:
        pass
    except FormatError as e:
        return Contents(State.POOL, f"a damaged or newer pool ({e.problem})")
    else:
        try:
            tables = f"{len(read_directory(media, superblock).value.published())} tables"
        except FormatError:
            tables = "a damaged directory"
        return Contents(State.POOL, f"pool {superblock.name} ({superblock.pool}) with {tables}")
    if found := _signature(media):
        return Contents(State.RECOGNISED, found)
    if (place := _first_nonzero(media, fd)) is not None:
        return Contents(State.UNKNOWN, f"unknown bytes at {place}")
    return Contents(State.EMPTY, "nothing")


def _signature(media: MappedMedia) -> str:
    """Ask blkid, on a sparse copy of both ends, since a devdax device cannot be read by a program."""
    with tempfile.NamedTemporaryFile() as copy:
        copy.truncate(media.size)
        copy.write(media.load(0, min(media.size, SIGNATURE_BYTES)))
        if media.size > SIGNATURE_BYTES:
            copy.seek(max(SIGNATURE_BYTES, media.size - SIGNATURE_BYTES))
            copy.write(media.load(copy.tell(), media.size - copy.tell()))
        copy.flush()
        return signature(copy.name)


def signature(path: str) -> str:
    """Say what file system, partition table or RAID member a file or block device holds, "" for none that is known."""
    # cron and systemd units have no sbin in PATH.
    program = shutil.which("blkid") or shutil.which("blkid", path="/usr/sbin:/sbin")
    if program is None:
        return ""
    done = subprocess.run([program, "-p", "-o", "export", path], capture_output=True, text=True, check=False)
    found = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    kind = found.get("TYPE") or found.get("PTTYPE")
    return f"a {kind} signature{' labelled ' + found['LABEL'] if 'LABEL' in found else ''}" if kind else ""


def _first_nonzero(media: MappedMedia, fd: int) -> int | None:
    """Give the offset of the first byte found that is not zero. Files are looked at whole, but for their holes."""
    size = media.size
    if stat.S_ISREG(os.fstat(fd).st_mode):
        pieces = [piece for first, end in _data(fd, size) for piece in _pieces(first, end)]
    elif size <= WHOLE_BYTES:
        pieces = _pieces(0, size)
    else:
        pieces = [(0, EDGE_BYTES), (size - EDGE_BYTES, EDGE_BYTES)]
        pieces += [(at, PAGE_BYTES) for at in range(EDGE_BYTES, size - EDGE_BYTES, SAMPLE_BYTES)]
    for offset, length in pieces:
        bytes_ = np.frombuffer(media.load(offset, length), np.uint8)
        if bytes_.any():
            return offset + int(np.flatnonzero(bytes_)[0])
    return None


def _pieces(first: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(SAMPLE_BYTES, end - at)) for at in range(first, end, SAMPLE_BYTES)]


def _data(fd: int, size: int) -> list[tuple[int, int]]:
    """Give the ranges of a file that are no holes; all of it where the file system does not tell.

    For files alone: a devdax device answers any lseek with where it was.
    """
    ranges, at = [], 0
    try:
        while at < size:
            first = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, first, os.SEEK_HOLE)
            ranges.append((first, min(at, size)))
    except OSError as e:
        if e.errno != errno.ENXIO:  # which says that only a hole is left
            return [(0, size)]
    return ranges
