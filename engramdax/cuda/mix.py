# SPDX-License-Identifier: Apache-2.0
"""How much of a gather goes which way: measured on this machine, for this table, and kept on disk.

Rows read by the GPU itself cost an address translation each; rows by way of the CPU start some ten microseconds later
and then come several times as fast. So of each call the first rows of the pool, and a share of those that follow, are
read directly, such that both ways end together.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from dataclasses import asdict, dataclass, fields, replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import lib
from engramdax.cuda.driver import DeviceMemory, bindings, checked
from engramdax.errors import BackingError
from engramdax.files import replace_file
from engramdax.gathering import thread_count
from engramdax.host import cache_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NEVER: Final = (1 << 32) - 1
OUTPUT_BYTES: Final = 32 << 20
SETS: Final = 32
"""Times MANY ids are drawn."""

FEW: Final = 1536
MANY: Final = 24_576
ROUNDS: Final = 21
CALLS: Final = 8
"""One after the other in the stream, so that what the host does for a launch is not measured."""

FROM_ROWS: Final = (128, 192, 256, 384, 512, 768, 1024, 1536, 3072)
FIRST_LOCAL: Final = (0, 64, 128, 192, 256, 384, 512, 768)
LOCAL_OF_64: Final = (0, 4, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40)
GAIN: Final = 0.97
"""A mix has to be this much faster than the direct path to be taken."""

LATE: Final = 3
"""Chunks are late after so many times what a gather usually takes."""

LEAST_DEADLINE_US: Final = 150
LEAST_MISSED: Final = 0.01
LENIENT_US: Final = 1_000_000
MOST_DEADLINE_ROW_NS: Final = 20_000
"""Some 20 s for the largest call: no machine that can be calibrated takes so long, but a damaged file may say so."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The shares of a table on a machine, and what was measured when they were chosen.

    Calls of `from_rows` rows and more are mixed: of the rows that no hot copy serves, `first_local` and then
    `local_of_64` of each 64 are read by the GPU itself, the others come by way of the CPU. A chunk that does not come
    within deadline_us and deadline_row_ns for each row of the call is read directly, too.
    """

    from_rows: int = 384
    first_local: int = 384
    local_of_64: int = 12
    deadline_us: int = 500
    deadline_row_ns: int = 100
    seconds: float = 0.0
    measured: dict[str, float] | None = None

    def apply(self, core: Any, *, missed: float = 1.0) -> None:
        """Let a lane's next launches go by it; `missed`: the share of rows that are expected not to be hot."""
        core.from_rows = min(NEVER, int(self.from_rows / max(missed, LEAST_MISSED)))
        core.mix.first_local, core.mix.local_of_64 = self.first_local, self.local_of_64
        core.deadline_us, core.deadline_row = self.deadline_us, self.deadline_row_ns


def cache_path(*key: Any) -> Path:
    """Where the mix for a machine, GPU, table and number of threads is kept."""
    digest = hashlib.sha256(repr((socket.gethostname(), *key)).encode()).hexdigest()[:24]
    return cache_dir() / "mix" / f"{digest}.json"


def read(path: Path) -> Mix | None:
    """Give the mix that is kept there, None where there is none that makes sense."""
    try:
        found = json.loads(path.read_text())
        numbers = {f.name: int(found[f.name]) for f in fields(Mix) if f.type == "int"}
        most = {"local_of_64": 64, "deadline_us": LENIENT_US, "deadline_row_ns": MOST_DEADLINE_ROW_NS}
        if any(not 0 <= n <= most.get(name, NEVER) for name, n in numbers.items()):
            return None
        return Mix(**numbers, seconds=float(found["seconds"]), measured=dict(found["measured"] or {}))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def keep(path: Path, mix: Mix) -> None:
    """Keep a mix; a cache that cannot be written costs a second at the next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(mix), indent=1)
        replace_file(path, lambda file: file.write(text.encode()))
    except (OSError, BackingError):
        pass


class Calibration:
    """Times gathers of random rows on a stream of its own, and finds the shares that serve best."""

    def __init__(self, core: Any, rows: int, row_bytes: int, launch: Callable[[int, int, int, int], None]) -> None:
        """`launch` takes the addresses of int32 ids and of the output, a number of rows and a stream."""
        self._core = core
        self._launch = launch
        self._most = max(1, min(MANY, OUTPUT_BYTES // row_bytes))
        driver = self._driver = bindings()
        self._stream = int(
            checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cannot make a stream")
        )
        self._events = [checked(driver.cuEventCreate(0), "cannot make an event") for _ in range(2)]
        self._out = DeviceMemory(self._most * row_bytes)
        # Other ids in each call: the same ones would be in caches. One array for all calls, sent once.
        self._ids = DeviceMemory(SETS * self._most * 4)
        self._ids.write(np.random.default_rng().integers(0, rows, SETS * self._most, np.int32))
        self._turn = 0

    def close(self) -> None:
        """Give stream and events back."""
        for event in self._events:
            self._driver.cuEventDestroy(event)
        self._driver.cuStreamDestroy(self._stream)

    def time(self, rows: int, *, rounds: int = ROUNDS) -> float:
        """Give the median time of a gather of so many rows, in microseconds on the device."""
        driver, (begin, end) = self._driver, self._events
        found = []
        for round_ in range(-2, rounds):
            driver.cuEventRecord(begin, self._stream)
            for _ in range(CALLS):
                at = self._turn * rows % ((SETS - 1) * self._most)
                self._turn += 1
                self._launch(self._ids.address + at * 4, self._out.address, rows, self._stream)
            driver.cuEventRecord(end, self._stream)
            checked(driver.cuEventSynchronize(end), "the GPU failed")
            if round_ >= 0:
                passed = float(checked(driver.cuEventElapsedTime(begin, end), "no time was taken"))
                found.append(1e3 * passed / CALLS)
        return median(found)

    def run(self) -> Mix:
        """Find the shares; leaves the lane with them."""
        start = time.perf_counter()
        few, many = min(FEW, self._most), self._most
        measured: dict[str, float] = {}
        Mix(from_rows=NEVER).apply(self._core)
        for rows in (few, many):
            measured[f"direct {rows}"] = self.time(rows)
        shares = Mix(from_rows=0, first_local=0, local_of_64=0, deadline_us=LENIENT_US, deadline_row_ns=0)
        for _ in range(2):
            shares = self._best([replace(shares, local_of_64=n) for n in LOCAL_OF_64], many)
            shares = self._best([replace(shares, first_local=n) for n in FIRST_LOCAL], few)
        shares.apply(self._core)
        for rows in (few, many):
            measured[f"mixed {rows}"] = self.time(rows)
        small, large = measured[f"mixed {few}"], measured[f"mixed {many}"]
        mix = replace(
            shares,
            from_rows=self._from_rows(shares),
            deadline_us=min(LENIENT_US, max(LEAST_DEADLINE_US, int(LATE * small))),
            deadline_row_ns=min(MOST_DEADLINE_ROW_NS, int(LATE * 1e3 * large / many)),
            seconds=time.perf_counter() - start,
            measured=measured,
        )
        mix.apply(self._core)
        return mix

    def _best(self, candidates: list[Mix], rows: int) -> Mix:
        times = []
        for mix in candidates:
            mix.apply(self._core)
            times.append(self.time(rows))
        return candidates[times.index(min(times))]

    def _from_rows(self, shares: Mix) -> int:
        """Give the least number of rows from which on the mix is faster."""
        found = NEVER
        for rows in reversed([n for n in FROM_ROWS if n <= self._most]):
            Mix(from_rows=NEVER).apply(self._core)
            direct = self.time(rows)
            shares.apply(self._core)
            if self.time(rows) > GAIN * direct:
                break
            found = rows
        return found


def sane_threads(threads: int | None) -> int:
    """Give how many threads of the CPU a lane may have: three quarters of the process's cores by default."""
    limit = int(lib.ed_team_limit())
    return max(1, limit - limit // 4) if threads is None else min(thread_count(threads), limit)
