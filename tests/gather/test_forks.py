# SPDX-License-Identifier: Apache-2.0
"""Gathers in forked children, which have none of their parent's workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable

import numpy as np
import pytest
from loaded import Loaded

import engramdax
from tests.thread_stats import POLLER, WORKER, thread_stats

pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

_inherited: list[Loaded] = []


def gathers_rightly(loaded: Loaded, seed: int) -> bool:
    generator = np.random.default_rng(seed)
    for count in (1, 100, 5000, 20_000):
        ids = generator.integers(-1, 20_000, count)
        for engine in ("team", "openmp"):
            if not np.array_equal(loaded.table.gather(ids, engine=engine), loaded.expected(ids)):
                return False
    return True


def in_child(body: Callable[[], bool]) -> None:
    """Run `body` in a forked child, which is ended where it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        code = 1
        try:
            code = 0 if body() else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_child_gathers_after_its_parent_did(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    assert gathers_rightly(loaded, 0)
    for n in range(5):
        in_child(lambda: gathers_rightly(loaded, n))  # noqa: B023
    assert gathers_rightly(loaded, 1)


@pytest.mark.unsanitized  # AddressSanitizer starts no threads in a grandchild: it waits for a lock of its own
def test_a_child_has_workers_of_its_own_and_so_has_a_grandchild(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    loaded.table.gather(np.arange(20_000))

    def names() -> int:
        return len(thread_stats(WORKER, POLLER))

    def child() -> bool:
        before = names()
        loaded.table.gather(np.arange(20_000))
        in_child(lambda: names() == 0 and gathers_rightly(loaded, 3) and names() == 2)
        return (before, names()) == (0, 2)

    in_child(child)


def test_children_of_a_parent_whose_threads_are_gathering(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    stop = threading.Event()
    ids = np.random.default_rng(0).integers(0, 20_000, 8000)
    expected = loaded.expected(ids)
    wrong: list[int] = []

    def body(number: int) -> None:
        while not stop.is_set():
            pending = loaded.table.prefetch(ids)
            if not np.array_equal(loaded.table.gather(ids), expected) or not np.array_equal(pending.wait(), expected):
                wrong.append(number)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    try:
        for n in range(10):
            in_child(lambda: gathers_rightly(loaded, n))  # noqa: B023
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not wrong


def _in_pool(seed: int) -> bool:
    return gathers_rightly(_inherited[0], seed)


def test_a_pool_of_forked_processes(load: Callable, workers: Callable):
    loaded = load()
    workers(2)
    assert gathers_rightly(loaded, 0)
    _inherited[:] = [loaded]
    try:
        with multiprocessing.get_context("fork").Pool(4) as pool:
            assert all(pool.map(_in_pool, range(12)))
    finally:
        _inherited.clear()
    assert gathers_rightly(loaded, 1)


def test_a_table_is_gathered_from_in_a_spawned_process(load: Callable, script: Callable):
    loaded = load()
    done = script(
        """
        import multiprocessing, sys, numpy as np, engramdax
        def total(path):
            return int(engramdax.open(path)["table0"].gather(np.arange(20_000)).sum())
        path = sys.argv[1]
        expected = total(path)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(total, [path] * 4) == [expected] * 4, expected)
        """,
        loaded.path,
    )
    assert done.stdout == f"True {int(loaded.rows.sum())}\n", done.stderr


def test_more_pending_at_the_fork_than_the_team_has_places_for(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    ids = np.arange(3000)
    pending = [loaded.table.prefetch(ids) for _ in range(80)]
    in_child(lambda: gathers_rightly(loaded, 0) and all(np.array_equal(p.wait(), loaded.rows[:3000]) for p in pending))
    in_child(lambda: pending.clear() is None and gathers_rightly(loaded, 0))
    assert all(np.array_equal(p.wait(), loaded.rows[:3000]) for p in pending)
    assert engramdax.gather_many([(loaded.table, ids, None)])[0].shape == (3000, 320)
