# SPDX-License-Identifier: Apache-2.0
"""What is on a device or in a file before a pool goes there: a pool there must cost nobody anything unasked."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
import time
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from crc32c import crc32c

from engramdax.errors import FormatError, NotAPoolError
from engramdax.format.geometry import LINE
from engramdax.format.tombstone import Tombstone
from engramdax.pool.volume import read_directory, read_superblock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.format.superblock import Superblock
    from engramdax.media import MappedMedia

WHOLE_BYTES: Final = 1 << 30
"""Up to this size every byte of a device is looked at."""

EDGE_BYTES: Final = 64 << 20
"""Of larger media, this much at both ends, and a page in each SAMPLE_BYTES between."""

SAMPLE_BYTES: Final = 2 << 20
"""Whoever maps a devdax device maps at least so much, most often from its start on."""

PIECE_BYTES: Final = 16 << 20
PAGE_BYTES: Final = 4096
TOMBSTONES: Final = (0, 2 << 20)
"""Where one may stand: a raw namespace has its info block and 2 MiB in front of what was the devdax one's memory."""

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
    if _is_what_a_pool_left(media):
        return Contents(State.EMPTY, "what a pool left that was deprovisioned")
    if found := _signature(media):
        return Contents(State.RECOGNISED, found)
    if (place := _first_nonzero(media, _to_look_at(media, fd))) is not None:
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


def write_tombstone(media: MappedMedia, superblock: Superblock) -> None:
    """Say that what a voided pool left is nobody's, as long as it is as it is now."""
    stone = Tombstone(superblock.pool, superblock.size, int(time.time()), _crc(media, 0, superblock.size))
    media.store(0, stone.to_bytes())
    media.fence()


def _is_what_a_pool_left(media: MappedMedia) -> bool:
    """Tell whether nobody has written since a pool was deprovisioned, by the bytes that are looked at anyway."""
    for start in TOMBSTONES:
        if start + LINE > media.size:
            continue
        media.invalidate(start, LINE)
        try:
            stone = Tombstone.from_bytes(media.load(start, LINE), media_bytes=media.size - start)
        except FormatError:
            continue
        end = start + stone.size
        around = [*_looked_at(0, start), *_looked_at(end, media.size)]
        return _crc(media, start, end) == stone.crc and _first_nonzero(media, around) is None
    return False


def _crc(media: MappedMedia, start: int, end: int) -> int:
    """Give a checksum of the bytes that are looked at in a pool, those of its tombstone counted as zeros."""
    crc = 0
    for offset, length in _looked_at(start, end):
        skipped = LINE if offset == start else 0
        # Most of a new pool is zero.
        if _first_nonzero(media, [(offset + skipped, length - skipped)]) is not None:
            data = bytes(skipped) + media.load(offset + skipped, length - skipped)
            crc = crc32c(data, crc32c((offset - start).to_bytes(8, "little"), crc))
    return crc


def _looked_at(start: int, end: int) -> list[tuple[int, int]]:
    """Give offset and length of each piece that is looked at between two places of a device."""
    if end - start <= WHOLE_BYTES:
        return _pieces(start, end)
    pieces = [*_pieces(start, start + EDGE_BYTES), *_pieces(end - EDGE_BYTES, end)]
    return pieces + [(at, PAGE_BYTES) for at in range(start + EDGE_BYTES, end - EDGE_BYTES, SAMPLE_BYTES)]


def _to_look_at(media: MappedMedia, fd: int) -> list[tuple[int, int]]:
    """Give offset and length of each piece of the media that is looked at; of files all, but for their holes."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return [piece for first, end in _data(fd, media.size) for piece in _pieces(first, end)]
    return _looked_at(0, media.size)


def _first_nonzero(media: MappedMedia, pieces: Sequence[tuple[int, int]]) -> int | None:
    """Give the offset of the first byte found that is not zero, of what the media hold now.

    Another host may have written there since this one looked last.
    """
    for offset, length in pieces:
        media.invalidate(offset, length)
        if (found := media.first_nonzero(offset, length)) is not None:
            return found
    return None


def _pieces(first: int, end: int) -> list[tuple[int, int]]:
    return [(at, min(PIECE_BYTES, end - at)) for at in range(first, end, PIECE_BYTES)]


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
