# SPDX-License-Identifier: Apache-2.0
"""The limit: the C core with the setting that does best on this machine at a number of rows.

Swept are the kernels on one thread without team and guard, and teams of two threads and more, each over
distances of prefetching. A team is told its number of threads, so its chunks are of equal size: a gather that is not
told may have smaller ones for slower threads, and be done sooner. The winner is then timed like every other contender,
in turns of its own, so that it does not gain from having been picked for a lucky sample.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from engramdax.table import Table

    Ids = npt.NDArray[np.int64]

KERNELS: Final = ("avx512", "avx2", "sse2", "neon")
THREADS: Final = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
ROWS_AHEAD: Final = (0, 4, 8, 16, 32, 48, 64, 128, int(lib.ED_MAX_AHEAD))
PASSES: Final = 3
CALLS: Final = (6, 150)
ROWS: Final = 50_000
"""To gather with each setting in each pass, within these calls."""

WARM: Final = 3
MOST_NANOSECONDS: Final = 50_000_000
"""For one setting in one pass, once it has made twice the calls that do not count."""


def core_table(table: Table) -> Any:
    """Give the C core's form of a table, which lives as long as the table."""
    nothing = np.empty(0, np.int64)
    return table.request(nothing, nothing, 0)["table"]


@dataclass(frozen=True, slots=True)
class Form:
    """Something to be timed: `load` takes ids (int64 [rows]), `call` gathers their rows."""

    load: Callable[[Ids], Any]
    call: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """One way through the C core: a kernel by itself, or the team with a number of threads."""

    kernel: str
    threads: int
    rows_ahead: int

    def __str__(self) -> str:
        who = f"bare {self.kernel}" if self.kernel else f"team of {self.threads}"
        return f"{who}, {self.rows_ahead} rows ahead"


class Sweep:
    """The best setting, found when a number of rows is first asked for. `out`: where its last call put them."""

    def __init__(self, table: Table) -> None:
        self.out: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._table = table
        self._best: dict[int, Setting] = {}

    def prepare(self, rows: int) -> Form:
        """Prepare calls of this many rows with the setting that does best."""
        if rows not in self._best:
            settings = self._settings(rows)
            took: dict[Setting, float] = {}
            # The best of several passes: one in which somebody else had the CPU says nothing of a setting.
            for number in range(PASSES):
                for setting in settings:
                    median = self._median(setting, rows, number)
                    took[setting] = min(median, took.get(setting, median))
            self._best[rows] = min(settings, key=lambda setting: took[setting])
        return self._form(self._best[rows], rows)

    def detail(self, rows: int) -> str:
        """Say which setting it was."""
        return str(self._best[rows])

    def _settings(self, rows: int) -> list[Setting]:
        kernels = [k for k in KERNELS if self._form(Setting(k, 1, 0), 0).call() == lib.ED_ALL_VALID]
        limit = lib.ed_team_limit()
        threads = [n for n in sorted({*THREADS, limit}) if 1 < n <= min(limit, rows)]
        ways = [*((kernel, 1) for kernel in kernels), *(("", n) for n in threads)]
        return [Setting(*way, ahead) for way in ways for ahead in ROWS_AHEAD]

    def _median(self, setting: Setting, rows: int, number: int) -> float:
        # Other rows for each setting: those of the last one are in the caches.
        random = np.random.default_rng([number, rows, setting.threads, setting.rows_ahead, len(setting.kernel)])
        took: list[int] = []
        form = self._form(setting, rows)
        calls = min(max(ROWS // rows, CALLS[0]), CALLS[1])
        for ids in random.integers(0, self._table.rows, (calls, rows)):
            form.load(ids)
            begin = time.perf_counter_ns()
            form.call()
            took.append(time.perf_counter_ns() - begin)
            if len(took) >= 2 * WARM and sum(took) > MOST_NANOSECONDS:
                break
        return float(np.median(took[WARM:]))

    def _form(self, setting: Setting, rows: int) -> Form:
        core: Any = ffi.new("struct ed_table *", core_table(self._table)[0])
        core.rows_ahead = setting.rows_ahead
        ids = np.zeros(rows, np.int64)
        self.out = np.empty((rows, self._table.row_bytes), np.uint8)
        values = self._table.request(ids, self.out, lib.ED_IDS_64)
        request: Any = ffi.new("struct ed_request *", {**values, "table": core, "threads": setting.threads})
        alive = core, ids, self.out, request  # C has bare pointers to them

        def load(wanted: Ids, ids: Ids = ids, _alive: Any = alive) -> None:
            np.copyto(ids, wanted)

        if not setting.kernel:
            return Form(load, partial(lib.ed_gather_prepared, request))
        kernel = ffi.new("char[]", setting.kernel.encode())
        r = request
        return Form(load, partial(lib.ed_gather_bare, core, r.ids, r.count, r.flags, r.out, kernel))
