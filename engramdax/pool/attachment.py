# SPDX-License-Identifier: Apache-2.0
"""A pool as one process holds it: descriptor, mapping, superblock and pins."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from engramdax._core import ffi, lib
from engramdax.backing import Kind
from engramdax.gathering import warn_of_environment
from engramdax.pool.access import LocalAccess
from engramdax.pool.reader import Reader

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from engramdax.format.directory import TableEntry

AHEAD_BYTES: Final = 32 << 10
"""How far ahead a gather prefetches from DRAM: more than a chunk of the team (MOST_CHUNK_BYTES, c/gather.c).

All rows of a chunk are asked for before the first is copied then: copies between would keep the second level from
having as many lines on their way as it can. Only the largest chunks of fast threads, in calls that the team divides,
have more.
"""

LEAST_ROWS_AHEAD: Final = 3

MAX_ROWS_AHEAD: Final = int(lib.ED_MAX_AHEAD)
CALIBRATION_ROWS: Final = 4096


class Attachment(Reader):
    """A pool opened for reading. Lives until the last Pool and Table on it are gone. Thread-safe.

    `tune` is how many rows ahead gathers prefetch: a number, "auto" to measure it with the first table,
    or None to measure it on devices, which may be several times slower than DRAM, and only there.
    """

    def __init__(self, path: Path, *, tune: int | Literal["auto"] | None = None) -> None:
        warn_of_environment()
        self._tune: int | str | None = tune
        self._ahead_bytes = AHEAD_BYTES
        self._tuning = threading.Lock()
        self._prepared: set[UUID] = set()
        opened = LocalAccess(path, writable=False)
        self._finalizer = weakref.finalize(self, opened.close)
        self.fd, self.backing, self.mapping, self.media = opened.fd, opened.backing, opened.mapping, opened.media
        super().__init__(opened)
        weakref.finalize(self, self.pins.close)

    def prepare(self, entry: TableEntry) -> bool:
        """Do as `Reader.prepare`, which this process needs to ask for once for a load."""
        if entry.load in self._prepared:
            return False
        done = super().prepare(entry)
        self._prepared.add(entry.load)
        return done

    def rows_ahead(self, core_table: Any) -> int:
        """Give the distance of prefetching for this pool, measured at the first call where it has to be."""
        with self._tuning:
            if self._tune is None:
                self._tune = "auto" if self.backing.kind is Kind.DEVDAX else "dram"
            row_bytes = int(core_table.row_bytes)
            if self._tune == "auto" and core_table.rows >= CALIBRATION_ROWS:  # fewer fit a cache
                core_table.rows_ahead = _rows_in(self._ahead_bytes, row_bytes)
                rows = int(lib.ed_gather_calibrate(core_table, CALIBRATION_ROWS, ffi.new("double *")))
                self._ahead_bytes, self._tune = rows * row_bytes, "measured"
            return self._tune if isinstance(self._tune, int) else _rows_in(self._ahead_bytes, row_bytes)


def _rows_in(ahead_bytes: int, row_bytes: int) -> int:
    return min(max(ahead_bytes // row_bytes, LEAST_ROWS_AHEAD), MAX_ROWS_AHEAD)
