# SPDX-License-Identifier: Apache-2.0
"""Byte ranges that were dealt with so far, merged where they touch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class Spans:
    """A set of half-open ranges `[begin, end)`, kept sorted and disjoint.

    Work that goes through a file roughly in order leaves one or a few of them. Not thread-safe.
    """

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []

    def add(self, begin: int, end: int) -> tuple[int, int]:
        """Add `[begin, end)` and give the whole range that it is now a part of."""
        first = bisect_left(self._ends, begin)
        last = bisect_right(self._begins, end)
        if first < last:
            begin = min(begin, self._begins[first])
            end = max(end, self._ends[last - 1])
        self._begins[first:last] = [begin]
        self._ends[first:last] = [end]
        return begin, end
