# SPDX-License-Identifier: Apache-2.0
"""Which rows, and which columns of ids, a CudaTable is asked for: all of them, or a rank's part."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from engramdax.errors import ParameterError

if TYPE_CHECKING:
    import numpy.typing as npt

    from engramdax.table import Table


class Columns(NamedTuple):
    """The columns of ids that a call reads, and the rows that come out for them."""

    first: int
    read: int
    padded: int
    """Columns of rows; those behind the first `read` are zeros."""

    total: int
    """Columns of ids; 1 where ids have no such dimension, and neither have the rows."""

    shape: tuple[int, ...]
    """Of the rows, without their own dimension."""

    apart: bool
    """Whether columns are a dimension of the rows."""

    def outer(self, ids: int) -> int:
        """Give how many times so many ids fill the columns."""
        return ids // self.total if self.total else 0


class Part:
    """Rows low to high - 1 of a table, and a range of heads where `heads` gives one: (first, count).

    begins: int64, the row that each head begins with, and the number of rows; None for a table without heads.
    """

    def __init__(
        self, table: Table, *, heads: tuple[int, int] | None, padded_heads: int | None, rows: tuple[int, int] | None
    ) -> None:
        self.low, self.high = (0, table.rows) if rows is None else rows
        if not 0 <= self.low <= self.high <= table.rows:
            raise ParameterError(f"rows {self.low} to {self.high} are no part of {table.rows}")
        if heads is not None and (heads[0] < 0 or heads[1] < 1 or (padded_heads or heads[1]) < heads[1]):
            raise ParameterError(f"heads={heads}, padded_heads={padded_heads} make no range")
        self._table = table
        self._heads = heads
        self._padded = padded_heads
        self.begins = np.array([0, *accumulate(table.heads)], np.int64) if table.heads else None

    def padded(self, columns: int) -> int:
        """Give how many columns of rows come out for so many of ids."""
        return self._padded or (self._heads[1] if self._heads else columns)

    def columns(self, shape: tuple[int, ...], *, per_head: bool) -> Columns:
        """Give the columns of ids of that shape; ParameterError where they do not hold this part."""
        if per_head and self.begins is None:
            raise ParameterError(f"table {self._table.name} has no heads", remedy="load it with its config.json")
        apart = len(shape) > 1 or per_head or self._heads is not None
        total = shape[-1] if apart and shape else 1
        if per_head and self._table.heads and total != len(self._table.heads):
            raise ParameterError(f"ids of shape {shape} do not end in {len(self._table.heads)} heads")
        first, count = self._heads or (0, total)
        if first + count > total:
            raise ParameterError(f"ids of shape {shape} do not hold heads {first} to {first + count - 1}")
        padded = self._padded or count
        return Columns(first, count, padded, total, (*shape[:-1], padded) if apart else shape, apart)

    def row_ids(self, ids: npt.NDArray[Any], columns: Columns, *, per_head: bool) -> npt.NDArray[np.int64]:
        """Do for ids of the host what a kernel does for its own.

        ids: int32 or int64, of the shape that `columns` is of. Gives int64 [outer, columns.padded]: rows of the
        table, and -1 for each row of zeros.
        """
        outer = columns.outer(ids.size)
        wanted = ids.reshape(outer, columns.total).astype(np.int64)
        if per_head and self.begins is not None:
            sizes = np.diff(self.begins)
            wanted = np.where((wanted >= 0) & (wanted < sizes), wanted + self.begins[:-1], -1)
        wanted[(wanted < self.low) | (wanted >= self.high)] = -1
        found = np.full((outer, columns.padded), -1, np.int64)
        found[:, : columns.read] = wanted[:, columns.first : columns.first + columns.read]
        return found

    def within(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Give those of some row ids that calls may ask for, in their order."""
        low, high = self.low, self.high
        if self._heads is not None and self.begins is not None:
            first, count = self._heads
            last = self.begins.size - 1
            low = max(low, int(self.begins[min(first, last)]))
            high = min(high, int(self.begins[min(first + count, last)]))
        return rows[(rows >= low) & (rows < high)]
