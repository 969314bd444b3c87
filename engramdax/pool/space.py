# SPDX-License-Identifier: Apache-2.0
"""Free space of a pool: what neither the metadata nor any table, loading or retired, takes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engramdax.backing import Kind
from engramdax.errors import BackingError, SpaceError
from engramdax.format.geometry import Extent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from engramdax.backing import Backing
    from engramdax.format.geometry import Geometry


def free_extents(geometry: Geometry, size: int, taken: Iterable[Extent]) -> list[Extent]:
    """Give the gaps between what is taken, in whole units, in the order of their offsets."""
    unit = geometry.unit
    gaps, at = [], 0
    for extent in sorted([*taken, *geometry.metadata()]):
        end = extent.offset // unit * unit
        if end > at:
            gaps.append(Extent(at, end - at))
        at = max(at, -(-extent.end // unit) * unit)
    last = size // unit * unit
    if last > at:
        gaps.append(Extent(at, last - at))
    return gaps


def allocate(free: list[Extent], lengths: list[int], unit: int) -> list[Extent]:
    """Choose an extent for each of `lengths` bytes, in whole units; SpaceError unless all fit.

    Best fit, the largest first, so that a small one does not break up what a large one needs. The result
    is in the order of `lengths`.
    """
    left = list(free)
    chosen: dict[int, Extent] = {}
    whole = [max(1, -(-length // unit)) * unit for length in lengths]
    for index in sorted(range(len(whole)), key=lambda i: -whole[i]):
        length = whole[index]
        fitting = [gap for gap in left if gap.length >= length]
        if not fitting:
            raise SpaceError(
                f"no room: {sum(whole)} bytes are needed, in units of {unit}, the largest piece {max(whole)}; "
                f"{sum(gap.length for gap in free)} bytes are free, the largest free extent has "
                f"{max((gap.length for gap in free), default=0)}",
                remedy="remove tables (`engramdax rm`), or provision a larger pool",
            )
        gap = min(fitting, key=lambda g: (g.length, g.offset))
        chosen[index] = Extent(gap.offset, length)
        left.remove(gap)
        if gap.length > length:
            left.append(Extent(gap.offset + length, gap.length - length))
    return [chosen[i] for i in range(len(lengths))]


def reserve(backing: Backing, fd: int, extents: Sequence[Extent]) -> None:
    """Have the file system really hold the space: a hole in a file would be a SIGBUS on a full disk."""
    if backing.kind is Kind.DEVDAX:
        return
    for extent in extents:
        try:
            os.posix_fallocate(fd, extent.offset, extent.length)
        except OSError as e:
            raise BackingError(
                f"{backing.path} has holes and cannot be filled: {e.strerror}", remedy="free space on its disk"
            ) from None
