# SPDX-License-Identifier: Apache-2.0
"""The CPU's half of the staged gather, with this process in the place of the GPU."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax._core import ffi, lib
from tests.thread_stats import POLLER, WORKER, thread_stats, ticks

UNIT, STRIDE, ALIGN = lib.ED_LANE_CHUNK_UNIT, lib.ED_LANE_FLAG_STRIDE, lib.ED_LANE_ALIGN
ROWS = 5000


class Side:
    """A lane, and what the GPU does with it."""

    def __init__(self, table, capacity: int = 4096, threads: int = 4, *, shared: bool = False) -> None:
        self.table = table
        unit_bytes = -(-UNIT * table.row_bytes // ALIGN) * ALIGN
        self.words = np.zeros(64, np.uint64)  # message, and finished on a line of its own
        self.flags = np.zeros((capacity // UNIT, STRIDE), np.uint64)
        self.ids = np.zeros(capacity, np.int32)
        self.room = np.full(capacity // UNIT * unit_bytes + ALIGN, 0xA5, np.uint8)
        shift = -self.room.ctypes.data % ALIGN
        self.staging = self.room[shift : shift + capacity // UNIT * unit_bytes]
        memory = ffi.new("struct ed_lane_memory *")
        memory.message = ffi.cast("uint64_t *", self.words.ctypes.data)
        memory.begun = ffi.cast("uint64_t *", self.words.ctypes.data + 8)
        memory.finished = ffi.cast("uint32_t *", self.words.ctypes.data + 256)
        memory.flags = ffi.cast("uint64_t *", self.flags.ctypes.data)
        memory.ids = ffi.cast("int32_t *", self.ids.ctypes.data)
        memory.staging = ffi.cast("uint8_t *", self.staging.ctypes.data)
        memory.rows, memory.chunks, memory.staging_bytes = capacity, capacity // UNIT, self.staging.nbytes
        self.lane = lib.ed_lane_open(memory, table.core, threads, shared)
        assert self.lane != ffi.NULL
        self.sequence = 0

    def post(self, ids: np.ndarray, chunk_rows: int, *, count: int | None = None, expected: bool = True) -> None:
        if expected:
            lib.ed_lane_expect(self.lane, 0)  # as a launch does
        self.ids[: ids.size] = ids
        self.sequence += 1
        count = ids.size if count is None else count
        # One aligned store of 8 bytes; x86 and the interpreter's own fences order it after the ids.
        self.words[0] = self.sequence << 32 | chunk_rows // UNIT << 24 | count

    def finished(self) -> int:
        return int(self.words[32]) & 0xFFFFFFFF

    def wait(self, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while self.finished() != self.sequence:
            assert time.monotonic() < end, "the round is not finished"
            time.sleep(1e-4)

    def sequences(self) -> np.ndarray:
        """Give of each chunk's flag the number of the round."""
        return self.flags[:, 0] & 0xFFFFFFFF

    def places(self, chunks: int) -> np.ndarray:
        """Give at which places of the staging buffer the first chunks lie."""
        return (self.flags[:chunks, 0] >> 32).astype(np.int64)

    def rows(self, count: int, chunk_rows: int) -> np.ndarray:
        width = self.table.row_bytes
        stride = -(-chunk_rows * width // ALIGN) * ALIGN
        numbers, chunks = np.arange(count), -(-count // chunk_rows)
        assert (self.sequences()[:chunks] == self.sequence).all()
        places = self.places(chunks)
        assert sorted(places) == list(range(chunks))
        begins = places[numbers // chunk_rows] * stride + numbers % chunk_rows * width
        return self.staging[begins[:, None] + np.arange(width)]

    def close(self) -> None:
        lib.ed_lane_close(self.lane)


@pytest.fixture
def side_of(make_pool, load_array):
    """Give a function that opens a lane for a table of rows."""
    sides = []

    def make(width: int = 264, **options):
        rows = np.random.default_rng(width).integers(0, 256, (ROWS, width), np.uint8)
        path = make_pool(64 << 20, f"w{width}-{len(sides)}")
        load_array(path, "t", rows, None)
        with engramdax.open(path) as pool:
            side = Side(pool["t"], **options)
        sides.append(side)
        return side, rows

    yield make
    for side in sides:
        side.close()


@pytest.mark.parametrize("width", [1, 8, 20, 264, 320, 5120])
@pytest.mark.parametrize("chunk_rows", [16, 32, 96])
def test_rows_of_rounds_of_every_size(side_of, width, chunk_rows):
    side, rows = side_of(width)
    for count in (1, 15, 16, 17, 97, 1000, 4096, 3):
        ids = np.random.default_rng(count).integers(0, ROWS, count)
        side.post(ids, chunk_rows)
        side.wait()
        assert np.array_equal(side.rows(count, chunk_rows), rows[ids])


def test_chunks_are_begun_in_the_order_that_the_gpu_waits_for_though_a_thread_is_held_up(side_of):
    side, rows = side_of(264, threads=2)
    lib.ed_lane_disturb(side.lane, 1 << 30, 300_000)  # the first chunk alone
    ids = np.random.default_rng(1).integers(0, ROWS, 64 * UNIT, np.int32)
    with _team_of(2):  # on one CPU, too
        side.post(ids, UNIT)
        side.wait()
    assert np.array_equal(side.rows(ids.size, UNIT), rows[ids])
    # The other thread fills its own places, which are every other one, and only then those of the one that sleeps.
    places = side.places(64)
    (held_up,) = {0, 1} - {places[10] % 2}
    assert (places[2:30] % 2 != held_up).all()
    assert (places[34:] % 2 == held_up).all()


def test_ids_that_are_no_rows_give_zeros(side_of):
    side, rows = side_of()
    ids = np.array([-1, 0, ROWS, 2**31 - 1, -5, ROWS - 1])
    side.post(ids, 16)
    side.wait()
    good = (ids >= 0) & (ids < ROWS)
    assert np.array_equal(side.rows(6, 16), np.where(good[:, None], rows[np.where(good, ids, 0)], 0))


@pytest.mark.parametrize(("chunk_rows", "count"), [(0, 100), (16, 0), (16, 4097), (16, 0xFFFFFF), (4080, 4097)])
def test_a_message_that_makes_no_sense_is_passed_over(side_of, chunk_rows, count):
    side, rows = side_of()
    before = side.staging.copy()
    side.post(np.zeros(1, np.int32), chunk_rows, count=count)
    time.sleep(0.05)
    assert side.finished() != side.sequence
    assert np.array_equal(side.staging, before)
    side.post(np.arange(100), 16)
    side.wait()
    assert np.array_equal(side.rows(100, 16), rows[:100])


def test_a_round_is_finished_when_nobody_works_at_it_any_more(side_of):
    side, rows = side_of(threads=3)
    lib.ed_lane_disturb(side.lane, 5, 100_000)
    side.post(np.arange(1600), 16)
    while not (side.sequences()[:100] == 1).any():
        time.sleep(1e-4)
    assert side.finished() == 0
    lib.ed_lane_disturb(side.lane, 0, 0)
    side.wait()
    assert np.array_equal(side.rows(1600, 16), rows[:1600])


def test_lanes_beside_each_other(side_of):
    pairs = [side_of(width) for width in (64, 264, 320)]
    for turn in range(200):
        wanted = []
        for side, rows in pairs:
            ids = np.random.default_rng(turn).integers(0, ROWS, 1 + turn * 7)
            side.post(ids, 16)
            wanted.append(rows[ids])
        for (side, _), expected in zip(pairs, wanted, strict=True):
            side.wait()
            assert np.array_equal(side.rows(len(expected), 16), expected)


@pytest.mark.parametrize("expected", [True, False])
def test_rounds_after_a_pause_are_served_though_nobody_spins_meanwhile(side_of, expected):
    side, rows = side_of()
    lib.ed_lanes_configure(100)
    try:
        for _ in range(3):
            time.sleep(0.05)
            used, pause = ticks(POLLER), 0.5
            time.sleep(pause)
            assert (ticks(POLLER) - used) / os.sysconf("SC_CLK_TCK") < pause / 3
            side.post(np.arange(50), 16, expected=expected)
            side.wait()
            assert np.array_equal(side.rows(50, 16), rows[:50])
    finally:
        lib.ed_lanes_configure(-1)


def test_the_poller_spins_while_a_launch_has_not_begun(side_of):
    side, _ = side_of()
    lib.ed_lanes_configure(100)
    try:
        lib.ed_lane_expect(side.lane, 7)
        assert _awake(POLLER, 0.3)[0] > 0.9
    finally:
        lib.ed_lanes_configure(-1)


def test_the_poller_sleeps_while_there_are_no_lanes(make_pool, load_array):
    path = make_pool()
    load_array(path, "t", np.zeros((ROWS, 64), np.uint8), None)
    with engramdax.open(path) as pool:
        table = pool["t"]
    for _ in range(2):  # and wakes up for the next one
        side = Side(table)
        side.post(np.arange(50), 16)
        side.wait()
        side.close()
        time.sleep(0.1)
        before = _naps_of_the_poller()
        time.sleep(0.3)
        assert _naps_of_the_poller() - before <= 1


def _naps_of_the_poller() -> int:
    (poller,) = thread_stats(POLLER)
    status = Path(f"/proc/self/task/{poller}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def _awake(name: str, seconds: float) -> list[float]:
    """Give in what share of looks within that time each thread of that name did not sleep, the busiest first.

    It may wait for a CPU: how much of one it gets says more of the machine than of it.
    """
    found: Counter[int] = Counter()
    looks, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        states = {task: state for task, (state, *_) in thread_stats(name).items()}
        found.update({task: state == "R" for task, state in states.items()})
        looks += 1
        time.sleep(0.005)
    return [times / looks for _, times in found.most_common()]


@contextmanager
def _team_of(threads: int) -> Iterator[None]:
    """Have a team of so many, whose workers sleep at once, but for half a second after a round."""
    engramdax.configure(threads=threads, spin_us=0, linger_us=500_000)
    try:
        yield
    finally:
        engramdax.configure(spin_us=100, linger_us=20_000)


def test_workers_stay_awake_after_a_round_that_nobody_told_of(side_of):
    """As after a replay, which is followed by others."""
    side, _ = side_of()
    with _team_of(2):
        for _ in range(2):
            side.post(np.arange(1000), 16, expected=False)
            side.wait()
            time.sleep(0.6)
        side.post(np.arange(1000), 16, expected=False)
        side.wait()
        assert _awake(WORKER, 0.15)[0] > 0.9


def test_only_workers_of_the_lane_stay_awake_for_it(side_of):
    """More of them would take cores from those who work, and from the program."""
    side, _ = side_of(threads=2)
    with _team_of(4):
        side.table.gather(np.arange(ROWS).repeat(200))  # starts all of the team
        time.sleep(0.6)
        for _ in range(3):
            side.post(np.arange(1000), 16)
            side.wait()
            busiest, *others = _awake(WORKER, 0.15)
            assert busiest > 0.75
            assert len(others) >= 2
            assert sum(others) < 0.5


def test_rounds_call_no_workers_but_those_who_stay_awake_for_them(side_of):
    """Whatever other jobs there are: it takes longer until one who slept is there than until the round is over."""
    side, _ = side_of(threads=2)
    with _team_of(4):
        pending = side.table.prefetch(np.arange(ROWS).repeat(200))  # by all of the team; a job until it is waited for
        while not pending.done:
            time.sleep(0.01)
        assert len(thread_stats(WORKER)) >= 3
        time.sleep(0.6)
        side.post(np.arange(1000), 16)
        side.wait()
        before = _schedules()
        time.sleep(0.2)
        ran = {task: ns - before[task][0] for task, (ns, _) in _schedules().items()}
        others = set(ran) - {max(ran, key=ran.get)}  # than the one who stays awake
        before = _schedules()
        for _ in range(20):
            side.post(np.arange(1000), 16)
            side.wait()
        after = _schedules()
        assert {task: after[task] for task in others} == {task: before[task] for task in others}
        pending.wait()


def _schedules() -> dict[int, tuple[int, int]]:
    """Give for how many ns, and how often, each worker was on a CPU so far."""
    found = {}
    for task in thread_stats(WORKER):
        ns, _, times = Path(f"/proc/self/task/{task}/schedstat").read_text().split()
        found[task] = int(ns), int(times)
    return found


def _in_child(body) -> None:
    """Run it in a forked child, which must not fail and not hang."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)
            body()
            code = 0
        except BaseException:  # noqa: BLE001 - whatever it was, the child ends here
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_child_has_lanes_of_its_own_and_leaves_its_parents_alone(side_of):
    side, rows = side_of()
    side.post(np.arange(100), 16)
    side.wait()

    def body() -> None:
        own = Side(side.table)
        # The parent's memory, as the driver would leave it to a child: who looks there ends.
        before = side.words.copy()
        side.words[0] = side.sequence + 1 << 32 | 1 << 24 | 100
        own.post(np.arange(1000), 16)
        own.wait()
        assert np.array_equal(own.rows(1000, 16), rows[:1000])
        assert side.finished() == before[32]
        side.close()
        own.close()

    _in_child(body)
    side.post(np.arange(100, 200), 16)
    side.wait()
    assert np.array_equal(side.rows(100, 16), rows[100:200])


def test_a_child_can_open_a_lane_though_a_thread_of_its_parent_was_opening_one(side_of):
    side, rows = side_of()
    end = threading.Event()

    def open_and_close() -> None:
        while not end.is_set():
            Side(side.table, 64).close()

    opener = threading.Thread(target=open_and_close)
    opener.start()

    def body() -> None:
        own = Side(side.table)
        own.post(np.arange(50), 16)
        own.wait()
        assert np.array_equal(own.rows(50, 16), rows[:50])
        own.close()

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # that there are threads is the point
            for _ in range(20):
                _in_child(body)
    finally:
        end.set()
        opener.join()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU")
def test_the_poller_has_the_processs_cpus_whoever_opens_the_first_lane(side_of):
    side, _ = side_of()

    def body() -> None:
        everywhere = os.sched_getaffinity(0)

        def pin_and_open() -> None:
            os.sched_setaffinity(0, {min(everywhere)})
            Side(side.table)

        opener = threading.Thread(target=pin_and_open)
        opener.start()
        opener.join()
        end = time.monotonic() + 20
        while not thread_stats(POLLER) and time.monotonic() < end:  # it names itself
            time.sleep(0.001)
        (poller,) = thread_stats(POLLER)
        assert os.sched_getaffinity(poller) == everywhere

    _in_child(body)


def test_lanes_are_opened_and_closed_while_others_are(side_of):
    side, rows = side_of()

    def work(seed: int) -> None:
        for turn in range(100):
            own = Side(side.table, 256)
            ids = np.random.default_rng(seed * 1000 + turn).integers(0, ROWS, 200)
            own.post(ids, 16)
            own.wait()
            found.append(np.array_equal(own.rows(200, 16), rows[ids]))
            own.close()

    found: list[bool] = []
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 400


def test_rows_that_cannot_be_read_are_zeros_and_told_once(side_of):
    side, rows = side_of()
    mapping = side.table.attachment.mapping
    # A page without access in the place of one of the table's: as good as poison to whoever reads it.
    begin = mapping.address + side.table.entry.extent.offset
    libc = ctypes.CDLL(None, use_errno=True)
    empty = os.memfd_create("empty")
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, *[ctypes.c_long] * 5]
    placed = libc.mmap(begin, 4096, mmap.PROT_READ, mmap.MAP_SHARED | 0x10, empty, 0)  # MAP_FIXED
    os.close(empty)
    assert placed == begin
    lost = -(-4096 // 264)
    side.post(np.arange(100), 16)
    side.wait()
    found = side.rows(100, 16)
    assert not found[:lost].any()
    assert np.array_equal(found[lost:], rows[lost:100])
    ids = ffi.new("int64_t[]", lib.ED_LANE_UNREADABLE)
    assert lib.ed_lane_troubled(side.lane)
    assert lib.ed_lane_unreadable(side.lane, ids) == lost
    assert sorted(list(ids)[:lost]) == list(range(lost))
    assert lib.ed_lane_unreadable(side.lane, ids) == 0


def test_closing_waits_for_the_round_in_work(side_of):
    side, rows = side_of(threads=2)
    lib.ed_lane_disturb(side.lane, 1, 20_000)
    side.post(np.arange(160), 16)
    while side.finished() != 1 and not (side.sequences() == 1).any():
        time.sleep(1e-4)
    other = Side(side.table)
    other.close()
    lib.ed_lane_disturb(side.lane, 0, 0)
    side.wait()
    assert np.array_equal(side.rows(160, 16), rows[:160])


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_a_process_that_calls_exit_ends_though_the_lanes_memory_goes_first(tmp_path):
    root = Path(__file__).parents[2]
    units = ("media", "team", "guard", "kernel", "hash", "gather", "lane")
    program = tmp_path / "lane_exit"
    sources = [root / "tests/core/lane_exit.c", *(root / "c" / f"{unit}.c" for unit in units)]
    flags = ["-std=c11", "-O2", "-Wno-unknown-pragmas", f"-I{root / 'c'}"]
    subprocess.run(["cc", *flags, "-o", program, *sources, "-lpthread"], check=True)
    for _ in range(5):
        for captured in ([], ["captured"]):
            assert subprocess.run([program, *captured], timeout=30, check=False).returncode == 0


AGAIN = """
import sys
from engramdax.cuda.ranks import join
from engramdax._core import lib
for _ in sys.stdin:
    assert join()
    print(lib.ed_lanes_processes(), flush=True)
"""


def test_a_process_that_takes_the_place_of_one_that_ended_is_seen_and_who_joins_again_counts_once(tmp_path):
    environment = {**os.environ, "ENGRAMDAX_RUN_DIR": str(tmp_path)}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", AGAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(4)
    ]

    def join(process: subprocess.Popen[str]) -> int:
        process.stdin.write("\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    first, second, third, last = running
    try:
        assert [join(process) for process in (first, second, third)] == [1, 2, 3]
        first.kill()
        first.wait()
        assert join(third) == 2
        assert join(last) == 3
        assert join(second) == 3
    finally:
        for process in running:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


GPU = """
import sys
from engramdax.cuda.ranks import have_gpu
print(have_gpu("0123"), have_gpu("4567"), flush=True)
sys.stdin.read()
"""


def _may_have(environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", GPU], input="", capture_output=True, text=True, env=environment, check=True
    )
    return done.stdout


def test_a_gpus_lanes_are_one_processs_but_under_mps(tmp_path):
    environment = {**os.environ, "ENGRAMDAX_RUN_DIR": str(tmp_path)}
    environment.pop("CUDA_MPS_PIPE_DIRECTORY", None)
    with subprocess.Popen(
        [sys.executable, "-c", GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as first:
        assert first.stdout.readline() == "True True\n"
        assert _may_have(environment) == "False False\n"
        assert _may_have({**environment, "CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}) == "True True\n"
        first.stdin.close()
    assert _may_have(environment) == "True True\n"
