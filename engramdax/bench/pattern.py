# SPDX-License-Identifier: Apache-2.0
"""Contents for a table that nobody reads for its sense: cheap to make, the same each time, no two rows alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from engramdax.errors import ParameterError
from engramdax.ingest.binary import raw_layout
from engramdax.ingest.source import TableSource

if TYPE_CHECKING:
    from typing import Any

    from engramdax.format.layout import RowLayout

WORD: Final = 8
FACTOR: Final = 0x9E3779B97F4A7C15  # odd, so that all words of a table differ
BLOCK_WORDS: Final = (1 << 20) // WORD


class PatternSource(TableSource):
    """A table of `rows` rows of `row_bytes` bytes whose 64-bit word number i is i * FACTOR modulo 2**64.

    It goes through the loader like any other source, at the speed of memory.
    """

    def __init__(self, rows: int, row_bytes: int, *, layout: RowLayout | None = None) -> None:
        layout = raw_layout(row_bytes, None, None) if layout is None else layout
        super().__init__(kind="pattern", name="pattern", rows=rows, layout=layout, columns=())
        self._block = np.arange(BLOCK_WORDS, dtype=np.uint64) * np.uint64(FACTOR)

    def read_into(self, offset: int, out: memoryview | np.ndarray[Any, Any]) -> None:
        """Fill `out` with the table's bytes from `offset` on, which is a multiple of 8."""
        target = np.frombuffer(out, np.uint8)
        self._require_inside(offset, target.size)
        if offset % WORD:
            raise ParameterError(f"offset {offset} is no multiple of {WORD}")
        for begin in range(0, target.size, self._block.nbytes):
            part = target[begin : begin + self._block.nbytes]
            first = np.uint64((offset + begin) // WORD * FACTOR % 2**64)
            words = self._block[: -(-part.size // WORD)] + first
            part[:] = words.view(np.uint8)[: part.size]
