# SPDX-License-Identifier: Apache-2.0
"""Calibration: gathers of random rows, timed with one mix after the other."""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.cuda.driver import bindings, checked
from engramdax.cuda.memory import DeviceMemory
from engramdax.cuda.mix import MOST_DEADLINE_ROW_NS, MOST_DEADLINE_US, NEVER, Mix

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

FEW: Final = 1536
MANY: Final = 98_304
"""Rows of calls that first_local is found with, and local_of_64: of 64 and 4,096 of DeepSeek-V4.1's tokens."""

OUTPUT_BYTES: Final = 32 << 20
"""At most: of large rows there are fewer than MANY."""

SETS: Final = 32
"""Times MANY ids are drawn."""

ROUNDS: Final = 21
CALLS: Final = 8
"""One after the other in the stream, so that what the host does for a launch is not measured."""

LONG: Final = 20_000
"""Calls of so many rows and more are measured in fewer rounds: they take long, and vary little."""

LONG_ROUNDS: Final = 7
LONG_CALLS: Final = 4

FROM_ROWS: Final = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072)
FIRST_LOCAL: Final = (0, 64, 128, 192, 256, 384, 512, 768)
LOCAL_OF_64: Final = (0, 2, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 32, 40)
GAIN: Final = 0.97
"""A mix has to be this much faster than the direct path to be taken."""

FEW_HOT: Final = 0.8
"""What hot rows serve in texts that read few of them, as a part of what they usually serve. From how many rows on a mix
helps is judged by such texts, since they take longest: with fewer hot rows direct reads take much longer, a mix hardly.
"""

LATE: Final = 3
"""Chunks are late after so many times what a gather usually takes."""

LEAST_DEADLINE_US: Final = 150


class Calibration:
    """Times gathers of random rows on a stream of its own, and finds the shares that serve best."""

    def __init__(
        self,
        core: Any,
        rows: int,
        row_bytes: int,
        launch: Callable[[int, int, int, int], None],
        *,
        hot: npt.NDArray[np.int64] | None,
        hot_share: float,
    ) -> None:
        """`launch` takes the addresses of int32 ids and of the output, a number of rows and a stream.

        hot: some of the hot rows, or all; hot_share: the part of reads that all of them usually serve.
        """
        self._core = core
        self._launch = launch
        self._most = max(1, min(MANY, OUTPUT_BYTES // row_bytes))
        driver = self._driver = bindings()
        self._stream = int(
            checked(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "cannot make a stream")
        )
        self._events = [checked(driver.cuEventCreate(0), "cannot make an event") for _ in range(2)]
        self._out = DeviceMemory(self._most * row_bytes)
        # Other ids in each call: the same ones would be in caches. One array of each kind for all calls, sent once.
        random = np.random.default_rng()
        ids = random.integers(0, rows, SETS * self._most, np.int32)
        self._uniform_ids = self._few_hot_ids = DeviceMemory(ids.nbytes)
        self._uniform_ids.write(ids)
        if hot is not None and hot.size:
            chosen = random.random(ids.size) < FEW_HOT * hot_share
            ids[chosen] = random.choice(hot, np.count_nonzero(chosen))
            self._few_hot_ids = DeviceMemory(ids.nbytes)
            self._few_hot_ids.write(ids)
        self._turn = 0

    def close(self) -> None:
        """Give stream and events back."""
        for event in self._events:
            self._driver.cuEventDestroy(event)
        self._driver.cuStreamDestroy(self._stream)

    def time(self, rows: int, *, few_hot: bool = False) -> float:
        """Give the median time of a gather of so many rows, in microseconds on the device.

        few_hot: as many of them are hot as in texts with few hot rows (FEW_HOT). Else the ids are uniform and hardly
        any are hot: the shares, which are of rows that are not, are found with these.
        """
        ids = self._few_hot_ids if few_hot else self._uniform_ids
        driver, (begin, end) = self._driver, self._events
        rounds, calls = (ROUNDS, CALLS) if rows < LONG else (LONG_ROUNDS, LONG_CALLS)
        found = []
        for round_ in range(-2, rounds):
            driver.cuEventRecord(begin, self._stream)
            for _ in range(calls):
                at = self._turn * rows % ((SETS - 1) * self._most)
                self._turn += 1
                self._launch(ids.address + at * 4, self._out.address, rows, self._stream)
            driver.cuEventRecord(end, self._stream)
            checked(driver.cuEventSynchronize(end), "the GPU failed")
            if round_ >= 0:
                passed = float(checked(driver.cuEventElapsedTime(begin, end), "no time was taken"))
                found.append(1e3 * passed / calls)
        return median(found)

    def run(self) -> Mix:
        """Find the shares; leaves the lane with them."""
        start = time.perf_counter()
        few, many = min(FEW, self._most), self._most
        measured: dict[str, float] = {}
        Mix(from_rows=NEVER).apply(self._core)
        for rows in (few, many):
            measured[f"direct {rows}"] = self.time(rows)
        shares = Mix(from_rows=0, first_local=0, local_of_64=0, deadline_us=MOST_DEADLINE_US, deadline_row_ns=0)
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
            deadline_us=min(MOST_DEADLINE_US, max(LEAST_DEADLINE_US, int(LATE * small))),
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
            direct = self.time(rows, few_hot=True)
            shares.apply(self._core)
            if self.time(rows, few_hot=True) > GAIN * direct:
                break
            found = rows
        return found
