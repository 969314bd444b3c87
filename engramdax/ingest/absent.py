# SPDX-License-Identifier: Apache-2.0
"""Which pages of a file were absent from the page cache when it was looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECE_PAGES: Final = 1 << 18
"""Pages that are noted together: 1 GiB of 4 KiB pages, 32 KiB of bits."""

_NONE: Final = np.zeros(PIECE_PAGES // 8, dtype=np.uint8)
_ALL: Final = np.full(PIECE_PAGES // 8, 0xFF, dtype=np.uint8)


class AbsentPages:
    """A set of page numbers, one bit each; a piece with all of its pages or none of them takes no room.

    So a file that is not cached at all costs next to nothing whatever its size, and one of 100 GB that
    is cached in part at most 3 MB. Not thread-safe.
    """

    def __init__(self) -> None:
        self._pieces: dict[int, np.ndarray] = {}

    def add(self, first: int, absent: np.ndarray) -> None:
        """Add page `first + i` for each true `absent[i]`; the range lies within one piece."""
        if not absent.any():
            return
        index, begin = divmod(first, PIECE_PAGES)
        pages = np.zeros(PIECE_PAGES, dtype=np.bool_)
        pages[begin : begin + len(absent)] = absent
        bits = np.packbits(pages) | self._pieces.get(index, _NONE)
        self._pieces[index] = _ALL if np.array_equal(bits, _ALL) else bits

    def runs(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Give the runs `[begin, end)` of pages of the set within `[first, last)`, in order."""
        while first < last:
            index, begin = divmod(first, PIECE_PAGES)
            end = min(last - first + begin, PIECE_PAGES)
            bits = np.unpackbits(self._pieces.get(index, _NONE)[begin // 8 : -(-end // 8)])
            pages = bits[begin % 8 : begin % 8 + end - begin]
            edges = np.flatnonzero(np.diff(pages, prepend=0, append=0)) + first
            yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
            first += end - begin
