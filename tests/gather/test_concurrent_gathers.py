# SPDX-License-Identifier: Apache-2.0
"""Many threads gather at once; each gets its own rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import engramdax
from engramdax.errors import ParameterError, RowIdError


def in_threads(count: int, body: Callable[[int], None]) -> None:
    """Run `body` in `count` threads and raise what any of them raised."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            body(number)
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("spin_us", [0, 100])
def test_threads_with_different_sizes_for_a_while(load: Callable, workers: Callable, spin_us: int):
    tables = [load(), load(rows=3000, row_bytes=5120), load(rows=50_000, row_bytes=7)]
    workers(4)
    engramdax.configure(threads=4, spin_us=spin_us)
    deadline = time.monotonic() + 1.5

    def body(number: int) -> None:
        generator = np.random.default_rng(number)
        while time.monotonic() < deadline:
            loaded = tables[generator.integers(3)]
            count = int(generator.integers(0, 2 ** generator.integers(1, 14)))
            ids = generator.integers(-1, loaded.table.rows, count)
            bad = count > 2 and generator.random() < 0.1
            if bad:
                ids[count // 2] = loaded.table.rows
                with pytest.raises(RowIdError, match=rf"ids\[{count // 2}\]"):
                    loaded.table.gather(ids, threads=int(generator.integers(1, 6)))
            else:
                rows = loaded.table.gather(ids, threads=int(generator.integers(1, 6)))
                assert np.array_equal(rows, loaded.expected(ids))

    in_threads(12, body)


def test_more_jobs_at_once_than_the_team_has_places_for(load: Callable, workers: Callable):
    loaded = load()
    workers(4)
    together = threading.Barrier(100)

    def body(number: int) -> None:
        ids = np.random.default_rng(number).integers(0, 20_000, 2000)
        expected = loaded.expected(ids)
        out = np.empty_like(expected)
        together.wait()
        for _ in range(10):
            out[:] = 0
            loaded.table.gather(ids, out=out)
            assert np.array_equal(out, expected)

    in_threads(100, body)


def test_gatherers_on_one_table_in_several_threads_see_new_ids(load: Callable, workers: Callable):
    loaded = load()
    workers(3)

    def body(number: int) -> None:
        generator = np.random.default_rng(number)
        ids = np.zeros(1500, np.int32)
        out = np.empty((1500, 320), np.uint8)
        gather = loaded.table.gatherer(ids, out)
        for _ in range(50):
            ids[:] = generator.integers(-1, 20_000, 1500)
            assert gather() is gather.out
            assert np.array_equal(out, loaded.expected(ids))

    in_threads(6, body)


def test_more_or_fewer_threads_while_others_gather(load: Callable, workers: Callable):
    loaded = load()
    workers(1)
    stop = threading.Event()

    def body(number: int) -> None:
        if number == 0:
            for limit in [1, 8, 2, 255, 3, 1, 5] * 10:
                engramdax.configure(threads=limit, spin_us=limit)
                time.sleep(0.005)
            stop.set()
        ids = np.random.default_rng(number).integers(0, 20_000, 5000)
        while not stop.is_set():
            assert np.array_equal(loaded.table.gather(ids), loaded.expected(ids))

    in_threads(4, body)


def test_requests_of_mixed_sizes_and_tables_in_one_call(load: Callable, workers: Callable):
    tables = [load(), load(rows=500, row_bytes=30_000), load(rows=1000, row_bytes=1)]
    for threads in (1, 2, 5):
        workers(threads)
        generator = np.random.default_rng(threads)
        for _ in range(20):
            requests, expected = [], []
            for _ in range(generator.integers(0, 40)):
                loaded = tables[generator.integers(3)]
                count = int(generator.integers(0, 2 ** generator.integers(1, 9)))
                ids = generator.integers(-1, loaded.table.rows, count).astype(generator.choice([np.int32, np.int64]))
                expected.append(loaded.expected(ids))
                out = np.empty_like(expected[-1]) if generator.random() < 0.5 else None
                requests.append((loaded.table, ids, out))
            outs = engramdax.gather_many(requests)
            assert len(outs) == len(expected)
            for out, request, rows in zip(outs, requests, expected, strict=True):
                assert request[2] is None or np.shares_memory(out, request[2]) or not out.size
                assert np.array_equal(out, rows)


def test_a_bad_id_in_one_of_many_requests_is_named_with_its_table(load: Callable, workers: Callable):
    first, second = load(), load(rows=100)
    workers(3)
    ids = np.zeros(1000, np.int64)
    late = ids.copy()
    late[777] = 100
    for requests in ([(first.table, ids, None), (second.table, late, None)] * 3,):
        with pytest.raises(RowIdError, match=r"ids\[777\] is 100, table table1 "):
            engramdax.gather_many(requests)
    assert engramdax.gather_many([(second.table, late, None)], invalid="zero")[0][777].sum() == 0


def test_as_many_requests_as_a_call_may_have_and_one_more(load: Callable, workers: Callable):
    loaded = load(rows=100, row_bytes=8)
    workers(2)
    ids = np.arange(100)
    requests = [(loaded.table, ids[k % 100 : k % 100 + 1], None) for k in range(1 << 16)]
    outs = engramdax.gather_many(requests)
    assert np.array_equal(np.concatenate(outs), loaded.rows[np.arange(1 << 16) % 100])
    requests[-1] = (loaded.table, np.array([-5]), None)
    with pytest.raises(RowIdError, match="is -5"):
        engramdax.gather_many(requests)
    with pytest.raises(ParameterError, match="65537 requests"):
        engramdax.gather_many([*requests, requests[0]])
