# SPDX-License-Identifier: Apache-2.0
"""Where the areas of a pool lie. A value, so that tests can lay out pools of a few KiB."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

from engramdax.errors import BackingError, FormatError

LINE: Final = 64
"""Bytes of a cache line: what hosts that share memory write whole, past their caches."""

SUPERBLOCK_BYTES: Final = 4096
MIB: Final = 1 << 20
GIB: Final = 1 << 30


class Extent(NamedTuple):
    """`length` bytes from `offset` of the media."""

    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length

    def overlaps(self, other: Extent) -> bool:
        """Tell whether both have a byte in common."""
        return self.offset < other.end and other.offset < self.end


@dataclass(frozen=True, slots=True)
class Geometry:
    """Sizes and places of the areas, all in bytes.

    superblocks: offsets of the identical copies; slots: offsets of the two directory slots; slot_bytes:
    size of each; unit: allocation unit of extents; block: how much of a table one checksum covers.
    """

    superblocks: tuple[int, ...]
    slots: tuple[int, int]
    slot_bytes: int
    unit: int
    block: int = MIB

    def metadata(self) -> list[Extent]:
        """Everything that is not for tables."""
        copies = [Extent(offset, SUPERBLOCK_BYTES) for offset in self.superblocks]
        return copies + [Extent(offset, self.slot_bytes) for offset in self.slots]

    def check(self, size: int) -> None:
        """Raise FormatError unless all areas lie apart, on whole lines, inside `size` bytes."""
        areas = sorted(self.metadata())
        power_of_two = self.unit > 0 and self.unit & (self.unit - 1) == 0
        aligned = not any(n % LINE for n in (*self.superblocks, *self.slots, self.slot_bytes, self.unit, self.block))
        if not power_of_two or not aligned or self.slot_bytes < 2 * LINE or self.block < LINE:
            raise FormatError(f"the superblock's geometry is impossible: {self}")
        if not 1 <= len(self.superblocks) <= 3 or self.superblocks[0] != 0:
            raise FormatError(f"the superblock's own places are impossible: {self.superblocks}")
        for before, after in pairwise(areas):
            if before.end > after.offset:
                raise FormatError(f"the superblock lets areas overlap: {before} and {after}")
        if areas[-1].end > size:
            raise FormatError(f"the superblock places an area at {areas[-1]}, behind the end {size}")


SMALLEST_POOL: Final = 16 * MIB
FAR_POOL: Final = 2 * GIB
"""From this size on a pool keeps copies of its metadata at its end."""


def superblock_places(size: int) -> tuple[int, ...]:
    """Where to look for the superblock of a pool that fills media of `size` bytes."""
    return standard(size).superblocks if size >= SMALLEST_POOL else (0,)


def standard(size: int) -> Geometry:
    """Lay out a pool of `size` bytes.

    No two copies of a thing share a 2 MiB page, because one poisoned line takes the whole page of a
    devdax mapping. With 1 GiB pages everything in the first GiB goes at once, so pools of 2 GiB and more
    keep a superblock and a directory slot in their last GiB; at the very end of it, where they cut no
    free extent in two.
    """
    if size < SMALLEST_POOL:
        raise BackingError(
            f"{size} bytes are too small for a pool",
            remedy=f"give at least {SMALLEST_POOL // MIB} MiB; 12 MiB of it are metadata",
        )
    unit = 2 * MIB
    if size < FAR_POOL:
        return Geometry((0, unit), (2 * unit, 4 * unit), 2 * unit, unit)
    end = size // unit * unit
    return Geometry((0, unit, end - 3 * unit), (2 * unit, end - 2 * unit), 2 * unit, unit)
