# SPDX-License-Identifier: Apache-2.0
"""Gathers that run while their caller does something else."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import engramdax
from engramdax.errors import ParameterError, RowIdError

forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def test_many_pending_at_once_and_waited_for_in_any_order(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    generator = np.random.default_rng(0)
    # More than the team has places for: the last ones are done by `wait`.
    pending = []
    for _ in range(200):
        ids = generator.integers(-1, 20_000, int(generator.integers(0, 1000)))
        pending.append((ids, loaded.table.prefetch(ids)))
    generator.shuffle(pending)
    for ids, handle in pending:
        assert np.array_equal(handle.wait(), loaded.expected(ids))
        assert handle.done


def test_a_small_one_is_done_without_a_wait(load: Callable, workers: Callable):
    loaded = load()
    workers(2)
    for count in (1, 10, 70, 5000):
        ids = np.arange(count)
        handle = loaded.table.prefetch(ids)
        deadline = time.monotonic() + 60
        while not handle.done and time.monotonic() < deadline:
            time.sleep(0.001)
        assert handle.done, f"{count} rows"
        assert np.array_equal(handle.wait(), loaded.rows[:count])


def test_one_without_rows_is_done(load: Callable):
    handle = load().table.prefetch(np.empty((0, 3), np.int64))
    assert handle.done
    assert handle.wait().shape == (0, 3, 320)


def test_a_second_wait_gives_the_same_rows(load: Callable, workers: Callable):
    loaded = load()
    workers(2)
    out = np.empty((3000, 320), np.uint8)
    handle = loaded.table.prefetch(np.arange(3000), out)
    first = handle.wait()
    assert np.shares_memory(first, out)
    assert handle.wait() is first
    assert np.array_equal(out, loaded.rows[:3000])


def test_a_bad_id_is_raised_by_each_wait(load: Callable, workers: Callable):
    workers(2)
    ids = np.arange(3000)
    ids[2900] = -3
    handle = load().table.prefetch(ids)
    for _ in range(2):
        with pytest.raises(RowIdError, match=r"ids\[2900\] is -3"):
            handle.wait()


def test_several_threads_wait_for_one_and_all_get_whole_rows(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    ids = np.random.default_rng(1).integers(0, 20_000, 20_000)
    expected = loaded.expected(ids)
    for _ in range(20):
        handle = loaded.table.prefetch(ids)
        results: list[bool] = []

        def wait(handle: engramdax.Prefetch = handle, results: list[bool] = results) -> None:
            results.append(np.array_equal(handle.wait(), expected) and handle.done)

        threads = [threading.Thread(target=wait) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [True] * 4


def test_dropped_without_wait_the_team_goes_on_and_nothing_is_written_later(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    generator = np.random.default_rng(2)
    for _ in range(300):
        out = np.empty((int(generator.integers(1, 4000)), 320), np.uint8)
        loaded.table.prefetch(generator.integers(0, 20_000, len(out)), out)
        out[:] = 0xA5
        assert (out == 0xA5).all()
    ids = np.arange(20_000)
    assert np.array_equal(loaded.table.gather(ids), loaded.rows)


def test_one_whose_arguments_are_wrong_leaves_nothing_behind(load: Callable):
    loaded = load(rows=100)
    with pytest.raises(ParameterError):
        loaded.table.prefetch(np.arange(3.0))
    with pytest.raises(ParameterError):
        loaded.table.prefetch(np.arange(3), threads=0)


@forks
def test_a_child_waits_for_what_its_parent_started(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    ids = np.random.default_rng(3).integers(0, 20_000, 20_000)
    for _ in range(10):
        handle = loaded.table.prefetch(ids)
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.array_equal(handle.wait(), loaded.expected(ids)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert np.array_equal(handle.wait(), loaded.expected(ids))


@forks
def test_a_child_that_drops_what_its_parent_started_leaves_shared_output_alone(load: Callable, workers: Callable):
    import mmap

    loaded = load()
    workers(2)
    room = mmap.mmap(-1, 5000 * 320)  # MAP_SHARED: the child's writes would be seen here
    out = np.frombuffer(room, np.uint8)
    handle = loaded.table.prefetch(np.arange(5000), out)
    assert np.array_equal(handle.wait(), loaded.rows[:5000])
    handle = loaded.table.prefetch(np.arange(5000), out)
    while not handle.done:
        time.sleep(0.001)
    go, ready = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.read(go, 1)
        del handle
        os._exit(0)
    handle.wait()
    out[:] = 0xA5
    os.write(ready, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (out == 0xA5).all()
    os.close(go)
    os.close(ready)


@forks
def test_a_child_waits_although_a_thread_of_the_parent_was_waiting(load: Callable, workers: Callable):
    loaded = load()
    workers(2)
    ids = np.random.default_rng(4).integers(0, 20_000, 200_000)
    expected = loaded.expected(ids)
    for _ in range(5):
        handle = loaded.table.prefetch(ids)
        thread = threading.Thread(target=handle.wait)
        thread.start()
        pid = os.fork()
        if pid == 0:
            os._exit(0 if np.array_equal(handle.wait(), expected) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        thread.join()


def test_a_signal_whose_handler_raises_leaves_nobody_who_writes_into_out(load: Callable, workers: Callable):
    """Wherever it comes while a gather is started and dropped."""
    table = load().table
    workers(3)
    ids = np.arange(20_000)
    out = np.empty((len(ids), 320), np.uint8)

    def interrupt(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for microseconds in list(range(1, 120, 2)) * 8:
            with contextlib.suppress(InterruptedError):
                signal.setitimer(signal.ITIMER_REAL, microseconds / 1e6)
                table.prefetch(ids, out)
                time.sleep(1)
            out[:] = 0xA5
            assert (out == 0xA5).all()
    finally:
        signal.signal(signal.SIGALRM, before)
