# SPDX-License-Identifier: Apache-2.0
"""The end of a lane: closed, dropped, or left open when the process ends. Host memory stands in for the GPU's."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax._core import ffi, lib
from engramdax.cuda import lane as lanes
from engramdax.errors import ClosedError, CudaError, PoisonedRowsError

MOST = 64  # of a process


class HostMemory:
    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._bytes = np.zeros(nbytes + 4096, np.uint8)
        self.address = -(-self._bytes.ctypes.data // 4096) * 4096

    def write(self, data: Any, *, offset: int = 0) -> None:
        ctypes.memmove(self.address + offset, data.ctypes.data, data.nbytes)


def stand_in(put: Callable[[Any, str, Any], None]) -> None:
    put(lanes, "PinnedMemory", HostMemory)
    put(lanes, "DeviceMemory", HostMemory)
    put(lanes, "function", lambda _device, _name: 0)
    put(lanes, "capability", lambda _device: (9, 0))
    put(lanes, "shared_bytes", lambda _device: 0)


def open_lane(table: engramdax.Table, registration: Any = None) -> lanes.Lane:
    return lanes.Lane(table, 0, threads=2, shared=False, blocks=4, registration=registration)


@pytest.fixture
def table(make_pool: Callable[..., Path], load_array: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    stand_in(monkeypatch.setattr)
    monkeypatch.setattr(lanes, "STAGING_BYTES", 1 << 20)
    path = make_pool()
    load_array(path, "t", np.arange(64 * 1000, dtype=np.uint32).view(np.uint8).reshape(1000, 256))
    with engramdax.open(path) as pool:
        yield pool["t"]


def test_a_closed_lane_tells_what_went_wrong_before_and_nothing_else(table: engramdax.Table) -> None:
    lane = open_lane(table)
    ffi.cast("uint32_t *", lane.core.mix.failed)[0] = 1
    lane.close()
    lane.close()
    found = lane.error()
    assert isinstance(found, CudaError)
    assert "did not come in time" in str(found)
    assert lane.error() is None
    for call in (lane.counts, lambda: lane.disturb(one_in=1, microseconds=1)):
        with pytest.raises(ClosedError, match="lane of table t was closed"):
            call()


def test_a_closed_lane_lets_go_of_the_registration_and_an_open_one_does_not(table: engramdax.Table) -> None:
    registration = HostMemory(1)  # anything that may end
    ended = weakref.ref(registration)
    lane = open_lane(table, registration)
    del registration
    assert ended() is not None
    lane.close()
    assert ended() is None


def test_lanes_that_are_dropped_are_closed(table: engramdax.Table) -> None:
    for _ in range(MOST + 6):
        open_lane(table)
    for _ in range(MOST + 6):
        lane = open_lane(table)
        lane.core_cycle = lane  # type: ignore[attr-defined]
        del lane
        gc.collect()
    gc.collect()


def test_what_a_lane_uses_outlives_it_though_its_object_is_gone(table: engramdax.Table) -> None:
    """Rounds are in work when it is dropped, and the poller still looks at the memory."""
    for _ in range(20):
        lane = open_lane(table)
        lane.disturb(one_in=4, microseconds=2000)
        core = lane.core
        np.frombuffer(ffi.buffer(ffi.cast("int32_t *", core.mix.ids), 4000), np.int32)[:] = np.arange(1000)
        message = ffi.cast("uint64_t *", core.mix.message)
        message[0] = 1 << 32 | 1 << 24 | 1000
        lane.core_cycle = lane  # type: ignore[attr-defined]
        del lane
        gc.collect()


def test_an_interrupt_while_a_lane_is_opened_leaves_the_poller_the_memory(
    table: engramdax.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[HostMemory]] = []
    opened: list[Any] = []

    class Pinned(HostMemory):
        def __init__(self, nbytes: int) -> None:
            super().__init__(nbytes)
            made.append(weakref.ref(self))

    class Interrupted:
        def __getattr__(self, name: str) -> Any:
            return getattr(lib, name)

        def ed_lane_open(self, *arguments: Any) -> Any:
            opened.append(lib.ed_lane_open(*arguments))
            raise InterruptedError  # as the handler of a signal does

    monkeypatch.setattr(lanes, "PinnedMemory", Pinned)
    monkeypatch.setattr(lanes, "lib", Interrupted())
    with pytest.raises(InterruptedError):
        open_lane(table)
    gc.collect()
    alive = made[0]() is not None
    lib.ed_lane_close(opened[0])
    assert alive


def test_unreadable_rows_are_counted_where_readers_are(table: engramdax.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(type(table), "note_unreadable", lambda _self, rows: counted.append(rows))
    lane = open_lane(table)
    monkeypatch.setattr(lanes, "lib", _Unreadable())
    found = lane.error()
    assert isinstance(found, PoisonedRowsError)
    assert found.ids.tolist() == [7]  # the other one is just being noted
    assert counted == [2]
    monkeypatch.undo()
    lane.close()


class _Unreadable:
    """The core, with two rows that could not be read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(lib, name)

    def ed_lane_unreadable(self, _lane: Any, ids: Any) -> int:
        ids[0], ids[1] = -1, 7
        return 2


EXIT = """
import sys, threading
sys.path.insert(0, {here!r})
import engramdax
from engramdax._core import ffi, lib
from test_lane_lifetime import open_lane, stand_in
stand_in(setattr)
lane = open_lane(engramdax.open({pool!r})["t"])
lane.disturb(one_in=3, microseconds=3000)
message = ffi.cast("uint64_t *", lane.core.mix.message)
message[0] = 1 << 32 | 1 << 24 | 1000
def launch():
    while True:
        lib.ed_lane_expect(lane.core.lane, 1)
for _ in range(3):
    threading.Thread(target=launch, daemon=True).start()
if {awake}:
    lib.ed_lane_keep_awake(lane.core.lane)
{end}
"""


@pytest.mark.parametrize("awake", [False, True])
@pytest.mark.parametrize("end", ["", "sys.exit(0)", "import os; os._exit(0)", "lane.close()"])
def test_a_process_ends_in_the_middle_of_a_round(
    make_pool: Callable[..., Path], load_array: Callable[..., Any], end: str, awake: bool
) -> None:
    pool = make_pool()
    load_array(pool, "t", np.zeros((1000, 256), np.uint8))
    program = EXIT.format(here=str(Path(__file__).parent), pool=str(pool), awake=awake, end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
