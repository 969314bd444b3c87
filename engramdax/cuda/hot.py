# SPDX-License-Identifier: Apache-2.0
"""Hot rows: copies of the most-read rows in GPU memory, behind a hash table that the kernels probe.

Rows lie dense; an entry of the hash table is 8 bytes, 16 to a bucket, a bucket one line of memory.
An entry that finds its bucket full goes to the next one, so every row that fits the budget is in.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib
from engramdax.cuda.driver import bindings, checked, error
from engramdax.cuda.kernels import function
from engramdax.cuda.memory import DeviceMemory
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    import numpy.typing as npt

    from engramdax.table import Table

BUCKET: Final = 16
ROWS_PER_BUCKET: Final = 8
"""Entries in use on average, of BUCKET. With 11, one lookup in ten goes on from a full bucket to the next one, and so
nearly every warp does: 2 us of a mixed call."""

COUNTERS: Final = 64
"""Of rows found, which warps spread their counts over."""

SAMPLE: Final = 1 << 18
"""Of so many rows at most the ids are kept on the host, for calibration to gather: a list may have many millions."""

COPY_BYTES: Final = 32 << 20
"""Of rows that are brought at once where the GPU cannot read the pool."""


def rows_within(budget: int, row_bytes: int) -> int:
    """Give how many rows fit `budget` bytes, hash table and all."""
    each = row_bytes + BUCKET * 8 / ROWS_PER_BUCKET
    return max(0, int((budget - COUNTERS * 8 - BUCKET * 8) / each))


class HotRows:
    """The hot rows of one table on one device.

    plan, direct: for gathers of the table's raw rows; ids: the rows, none twice. fields: what plans need to know of
    them (`struct ed_cuda_hot`). count: rows; nbytes: GPU memory, hash table and all; seconds: what building took.
    sample: SAMPLE of the rows at most, from all parts of the list, int64.
    """

    def __init__(self, table: Table, device: int, plan: Any, direct: int, ids: npt.NDArray[np.int64]) -> None:
        if ids.size and int(ids.max()) >= (1 << 32) - 1:
            raise ParameterError("hot rows of tables with 2**32 rows and more are not supported")
        start = time.perf_counter()
        driver = bindings()
        self.count = int(ids.size)
        self.sample = ids[:: -(-self.count // SAMPLE) or 1].copy()
        buckets = max(1, -(-self.count // ROWS_PER_BUCKET))
        row_bytes = table.row_bytes  # dense: padding would cost rows
        self._entries = DeviceMemory(buckets * BUCKET * 8)
        self._rows = DeviceMemory(self.count * row_bytes)
        self._counters = DeviceMemory(COUNTERS * 8)
        checked(driver.cuMemsetD8(self._entries.address, 0xFF, self._entries.nbytes), "cannot clear the hash table")
        checked(driver.cuMemsetD8(self._counters.address, 0, COUNTERS * 8), "cannot clear the counters")
        list_ids = DeviceMemory(self.count * 4)
        list_ids.write(np.ascontiguousarray(ids, np.uint32))
        insert = function(device, "insert_hot")
        parameters: Any = ffi.new(
            "struct ed_cuda_insert *",
            {"ids": list_ids.address, "count": self.count, "entries": self._entries.address, "buckets": buckets},
        )
        if self.count and (result := lib.ed_cuda_launch(insert, -(-self.count // 256), 256, parameters, 0)):
            raise error(result, "the hash table of hot rows cannot be built")
        if plan.base:
            self._fetch(plan, direct, ids, row_bytes)
        else:
            self._copy(table, ids)
        checked(driver.cuCtxSynchronize(), "the hot rows cannot be fetched")
        self.nbytes = self._entries.nbytes + self._rows.nbytes + self._counters.nbytes
        self.seconds = time.perf_counter() - start
        self.fields = {
            "entries": self._entries.address,
            "rows": self._rows.address,
            "counters": self._counters.address,
            "row_stride": row_bytes,
            "buckets": buckets,
        }

    def _fetch(self, plan: Any, direct: int, ids: npt.NDArray[np.int64], row_bytes: int) -> None:
        # The gather reads no ids of 32 bits without sign, which the hash table holds.
        wide = DeviceMemory(self.count * 8)
        wide.write(np.ascontiguousarray(ids, np.int64))
        route: Any = ffi.new("struct ed_cuda_route *", {"direct": direct})
        result = lib.ed_cuda_gather(plan, route, wide.address, 1, 1, self.count, self._rows.address, row_bytes, 0, 0)
        if result:
            raise error(result, "the hot rows cannot be fetched")
        checked(bindings().cuCtxSynchronize(), "the hot rows cannot be fetched")

    def _copy(self, table: Table, ids: npt.NDArray[np.int64]) -> None:
        """Bring rows of memory that is not registered."""
        step = max(1, COPY_BYTES // table.row_bytes)
        for first in range(0, self.count, step):
            self._rows.write(table.gather(ids[first : first + step]), offset=first * table.row_bytes)

    def hits(self) -> int:
        """Give how many rows were found here so far; waits for the GPU."""
        counters = np.zeros(COUNTERS, np.uint64)
        self._counters.read(counters)
        return int(counters.sum())
