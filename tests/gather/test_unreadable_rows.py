# SPDX-License-Identifier: Apache-2.0
"""Memory that goes away under a gather: the rows on it are named and zero, all others are right.

A pool in a file stands for bad memory: pages behind the end of a truncated file fault as poison does.
ENGRAMDAX_ROUNDS sets how often a file is truncated under running gathers; the slow test does it 1,000 times.
"""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from loaded import Loaded

import engramdax
from engramdax.errors import PoisonedRowsError

# Each fault is a jump, for which AddressSanitizer clears the stack: minutes for the thousands here.
pytestmark = pytest.mark.unsanitized

PAGE = mmap.PAGESIZE
ROUNDS = int(os.environ.get("ENGRAMDAX_ROUNDS", "40"))


class Shrinking:
    """A table whose file can be cut off at a page, and made whole again."""

    def __init__(self, loaded: Loaded) -> None:
        self.loaded = loaded
        entry = loaded.table._entry
        self.begin, self.size = entry.extent.offset, loaded.path.stat().st_size
        self.end = self.begin + entry.bytes
        self._bytes = loaded.path.read_bytes()

    def cut(self, size: int) -> None:
        os.truncate(self.loaded.path, size)

    def mend(self) -> None:
        now = self.loaded.path.stat().st_size
        with self.loaded.path.open("r+b") as file:
            file.seek(now)
            file.write(self._bytes[now:])

    def some_page(self, generator: np.random.Generator) -> int:
        return int(generator.integers(self.begin // PAGE, self.end // PAGE + 1)) * PAGE

    def missing(self, ids: npt.NDArray[Any], size: int) -> npt.NDArray[np.bool_]:
        """Which positions ask for a row with a byte behind `size`."""
        return (ids >= 0) & (self.begin + (ids + 1) * self.loaded.table.row_bytes > size)

    def check(self, ids: npt.NDArray[Any], out: npt.NDArray[Any], bad: npt.NDArray[Any]) -> None:
        """All rows are right but those at `bad`, which are zeros."""
        expected = self.loaded.expected(ids)
        expected[bad] = 0
        assert np.array_equal(out, expected)

    def check_missing(self, ids: npt.NDArray[Any], size: int, gather: Callable[[], Any], out: Any) -> None:
        """A gather of a file of this size names exactly the rows behind it."""
        bad = np.flatnonzero(self.missing(ids, size))
        if bad.size:
            with pytest.raises(PoisonedRowsError) as caught:
                gather()
            assert np.array_equal(caught.value.positions, bad)
            assert np.array_equal(caught.value.ids, ids[bad])
            assert caught.value.table == self.loaded.table.name
        else:
            gather()
        self.check(ids, out, bad)


@pytest.fixture(params=["disk", "tmpfs"])
def shrinking(request: pytest.FixtureRequest, load: Callable[..., Loaded], tmp_path: Path) -> Iterator[Shrinking]:
    loaded = load(rows=6000)
    if request.param == "disk":
        yield Shrinking(loaded)
        return
    if not os.access("/dev/shm", os.W_OK):  # noqa: S108
        pytest.skip("no /dev/shm that this user may write to")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(shutil.copy(loaded.path, directory))
        yield Shrinking(loaded._replace(path=path, table=engramdax.open(path)[loaded.table.name]))


def truncate_under_gathers(shrinking: Shrinking, threads: int, rounds: int) -> int:
    """Cut the file at a random page and time under a running gather; tell how often that was during one."""
    generator = np.random.default_rng(threads)
    table = shrinking.loaded.table
    hits = 0
    for _ in range(rounds):
        ids = generator.integers(-1, 6000, 4000)
        out = np.full((4000, 320), 0xA5, np.uint8)
        size = shrinking.some_page(generator)
        delay = float(generator.random()) * 4e-4
        started = threading.Event()

        def cut(started: threading.Event = started, delay: float = delay, size: int = size) -> None:
            started.wait()
            time.sleep(delay)
            shrinking.cut(size)

        cutter = threading.Thread(target=cut)
        cutter.start()
        started.set()
        while cutter.is_alive():
            out[:] = 0xA5
            bad = np.empty(0, np.int64)
            try:
                table.gather(ids, out=out, threads=threads)
            except PoisonedRowsError as e:
                bad = e.positions
                assert shrinking.missing(ids, size)[bad].all(), "a row was named whose memory is there"
                hits += 1
            shrinking.check(ids, out, bad)
        cutter.join()
        shrinking.check_missing(ids, size, lambda: table.gather(ids, out=out, threads=threads), out)  # noqa: B023
        shrinking.mend()
        assert np.array_equal(table.gather(ids, threads=threads), shrinking.loaded.expected(ids))
    return hits


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_truncated_under_a_running_gather(shrinking: Shrinking, workers: Callable, threads: int):
    workers(threads)
    truncate_under_gathers(shrinking, threads, max(1, ROUNDS // 8))


@pytest.mark.slow
def test_truncated_under_a_running_gather_a_thousand_times(shrinking: Shrinking, workers: Callable):
    hits = 0
    for threads in (1, 2, 3, 4):
        workers(threads)
        hits += truncate_under_gathers(shrinking, threads, 125)
    assert hits, "no truncation came during a gather"


@pytest.mark.parametrize("how", ["gather", "gatherer", "gather_many", "prefetch", "few", "streamed"])
def test_every_form_of_gather_names_exactly_the_missing_rows(shrinking: Shrinking, workers: Callable, how: str):
    workers(3)
    generator = np.random.default_rng(9)
    table = shrinking.loaded.table
    for _ in range(4):
        count = {"few": 20, "streamed": 60_000}.get(how, 5000)
        ids = generator.integers(-1, 6000, count).astype(generator.choice([np.int32, np.int64]))
        out = np.full((count, 320), 0xA5, np.uint8)
        size = shrinking.some_page(generator)
        gather = {
            "gatherer": table.gatherer(ids, out),
            "gather_many": lambda: engramdax.gather_many([(table, ids, out)]),  # noqa: B023
            "prefetch": lambda: table.prefetch(ids, out).wait(),  # noqa: B023
        }.get(how, lambda: table.gather(ids, out=out))  # noqa: B023
        gather()
        shrinking.cut(size)
        shrinking.check_missing(ids, size, gather, out)
        shrinking.mend()
        gather()
        shrinking.check(ids, out, np.empty(0, np.int64))


def test_every_row_missing_and_rows_that_cross_the_end(shrinking: Shrinking, workers: Callable):
    table = shrinking.loaded.table
    ids = np.arange(6000)
    out = np.empty((6000, 320), np.uint8)
    for threads in (1, 2):
        workers(threads)
        for size in (shrinking.begin, shrinking.begin + PAGE, shrinking.end // PAGE * PAGE):
            shrinking.cut(size)
            shrinking.check_missing(ids, size, lambda: table.gather(ids, out=out), out)
            shrinking.mend()


def test_a_file_made_longer_again_is_read_as_zeros(shrinking: Shrinking):
    table = shrinking.loaded.table
    size = (shrinking.begin + shrinking.end) // 2 // PAGE * PAGE
    shrinking.cut(size)
    shrinking.cut(shrinking.size)
    ids = np.arange(6000)
    whole = np.frombuffer(shrinking.loaded.rows.tobytes(), np.uint8).copy()
    whole[size - shrinking.begin :] = 0
    assert np.array_equal(table.gather(ids), whole.reshape(6000, 320))


def test_several_calls_at_once_each_name_their_own(shrinking: Shrinking, workers: Callable):
    workers(3)
    table = shrinking.loaded.table
    size = (shrinking.begin + shrinking.end) // 2 // PAGE * PAGE
    shrinking.cut(size)
    errors: list[BaseException] = []

    def body(number: int) -> None:
        generator = np.random.default_rng(number)
        try:
            for _ in range(10):
                ids = generator.integers(0, 6000, int(generator.integers(1, 3000)))
                out = np.empty((ids.size, 320), np.uint8)
                shrinking.check_missing(ids, size, lambda: table.gather(ids, out=out), out)  # noqa: B023
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_missing_rows_of_several_requests_are_all_named(load: Callable, workers: Callable):
    # Those of the second table used to be zeros that no error spoke of.
    workers(3)
    first, second, whole = Shrinking(load(rows=6000)), Shrinking(load(rows=3000)), load(rows=100)
    generator = np.random.default_rng(3)
    ids = [generator.integers(-1, n, 1500) for n in (6000, 100, 3000, 6000)]
    tables = [first.loaded.table, whole.table, second.loaded.table, first.loaded.table]
    sizes = [s.begin + 40 * PAGE for s in (first, second)]
    first.cut(sizes[0])
    second.cut(sizes[1])
    bad = [first.missing(ids[0], sizes[0]), np.zeros(1500, bool), second.missing(ids[2], sizes[1])]
    bad.append(first.missing(ids[3], sizes[0]))
    outs = [np.empty((1500, 320), np.uint8) for _ in ids]
    with pytest.raises(PoisonedRowsError) as caught:
        engramdax.gather_many(list(zip(tables, ids, outs, strict=True)))
    assert np.array_equal(caught.value.positions, np.flatnonzero(np.concatenate(bad)))
    assert np.array_equal(caught.value.ids, np.concatenate(ids)[np.concatenate(bad)])
    assert caught.value.table == "table0, table1"
    for k, loaded in enumerate((first.loaded, whole, second.loaded, first.loaded)):
        expected = loaded.expected(ids[k])
        expected[bad[k]] = 0
        assert np.array_equal(outs[k], expected)


def test_a_bad_id_beside_missing_rows_is_what_is_reported(shrinking: Shrinking, workers: Callable):
    workers(2)
    shrinking.cut(shrinking.begin)
    ids = np.arange(3000)
    ids[2999] = 6000
    with pytest.raises(engramdax.RowIdError, match=r"ids\[2999\] is 6000"):
        shrinking.loaded.table.gather(ids)


def test_a_thread_that_blocks_all_signals_gets_the_error_too(shrinking: Shrinking, script: Callable):
    # A fault whose signal is blocked ends the process; so it does in workers, which inherit the mask.
    done = script(
        """
        import os, sys, signal, threading, numpy as np, engramdax
        engramdax.configure(threads=3)
        t = engramdax.open(sys.argv[1])["table0"]
        os.truncate(sys.argv[1], int(sys.argv[2]))
        def body():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            for ids in (np.arange(10), np.arange(6000)):
                for gather in (t.gather, lambda ids: t.prefetch(ids).wait()):
                    try:
                        gather(ids)
                    except engramdax.PoisonedRowsError as e:
                        print(len(e.positions))
        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        """,
        shrinking.loaded.path,
        shrinking.begin,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["10", "10", "6000", "6000"]), done.stderr


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_gets_the_error_too(shrinking: Shrinking, workers: Callable):
    workers(2)
    table = shrinking.loaded.table
    ids = np.arange(6000)
    table.gather(ids)
    shrinking.cut(shrinking.begin + PAGE)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            table.gather(ids)
        except PoisonedRowsError as e:
            code = (
                0 if np.array_equal(e.positions, np.flatnonzero(shrinking.missing(ids, shrinking.begin + PAGE))) else 2
            )
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert signal.getsignal(signal.SIGBUS) in (None, signal.SIG_DFL)
