# SPDX-License-Identifier: Apache-2.0
"""The rows are the same, whatever the number of threads, rows and bytes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

import numpy as np
import pytest

from engramdax.errors import RowIdError

CHUNK = 24 << 10  # of output; c/gather.c


@pytest.mark.parametrize("threads", range(1, 9))
def test_counts_around_the_borders_of_chunks(load: Callable, workers: Callable, threads: int):
    loaded = load()
    workers(threads)
    per_chunk = CHUNK // 320
    for chunks in (1, 2, 3, 5, 16, 40):
        for more in (-1, 0, 1):
            count = chunks * per_chunk + more
            ids = np.random.default_rng(count).integers(-1, 20_000, count)
            assert np.array_equal(loaded.table.gather(ids, threads=threads), loaded.expected(ids))
    for count in range(12):
        ids = np.arange(count, dtype=np.int32)
        assert np.array_equal(loaded.table.gather(ids, threads=threads), loaded.expected(ids))


@pytest.mark.parametrize("row_bytes", [1, 8, 264, 5120])
def test_calls_of_one_chunk_a_thread(load: Callable, workers: Callable, row_bytes: int):
    """Chunks of sizes that change with what each thread did before; of small rows, several are a unit."""
    loaded = load(rows=20_000 if row_bytes < 5120 else 2000, row_bytes=row_bytes)
    workers(6)
    random = np.random.default_rng(row_bytes)
    for output in random.integers(32 << 10, 180 << 10, 60):
        count = int(output) // row_bytes
        ids = random.integers(-1, loaded.table.rows, count).astype(np.int32)
        room = np.full(count * row_bytes + 128, 0xA5, np.uint8)
        out = room[64 : 64 + count * row_bytes]
        loaded.table.gather(ids, out=out)
        assert np.array_equal(out.reshape(count, row_bytes), loaded.expected(ids))
        assert (room[:64] == 0xA5).all()
        assert (room[64 + count * row_bytes :] == 0xA5).all()
        bad = int(random.integers(count))
        ids[bad] = loaded.table.rows
        with pytest.raises(RowIdError, match=rf"ids\[{bad}\] is "):
            loaded.table.gather(ids, out=out)


@pytest.mark.parametrize("row_bytes", [1, 7, 64, 264, 1000, 5120, 12_288, 12_289, 24_577, 49_153, 1 << 20])
def test_every_kind_of_row_with_output_past_the_caches(load: Callable, workers: Callable, row_bytes: int):
    # Just below and well above 16 MiB of output, where rows are put together aside and streamed.
    loaded = load(rows=max(8, min(20_000, (8 << 20) // row_bytes)), row_bytes=row_bytes)
    workers(3)
    for output in ((16 << 20) - row_bytes, (16 << 20) + 5 * row_bytes, 17 << 20):
        count = output // row_bytes
        ids = np.random.default_rng(count).integers(-1, loaded.table.rows, count).astype(np.int32)
        room = np.full(count * row_bytes + 128, 0xA5, np.uint8)
        for shift in (0, 1, 63):
            out = room[shift : shift + count * row_bytes]
            loaded.table.gather(ids, out=out)
            assert np.array_equal(out.reshape(count, row_bytes), loaded.expected(ids))
            assert (room[:shift] == 0xA5).all()
            assert (room[shift + count * row_bytes :] == 0xA5).all()
            room[:] = 0xA5


@pytest.mark.parametrize("threads", [1, 4])
def test_the_lowest_of_many_bad_ids_is_the_one_that_is_named(load: Callable, workers: Callable, threads: int):
    loaded = load()
    workers(threads)
    for count in (10, 1000, 60_000):
        ids = np.random.default_rng(count).integers(0, 20_000, count)
        bad = np.sort(np.random.default_rng(1).choice(count, 5, replace=False))
        ids[bad] = [-7, 20_000, 1 << 40, -(1 << 62), 20_001]
        with pytest.raises(RowIdError, match=rf"ids\[{bad[0]}\] is -7, "):
            loaded.table.gather(ids, threads=threads)
        good = ids.copy()
        good[bad] = -1
        assert np.array_equal(loaded.table.gather(ids, invalid="zero"), loaded.expected(good))


def test_openmp_gives_the_same(load: Callable, workers: Callable):
    loaded = load()
    workers(3)
    for count in (0, 1, 77, 5000):
        ids = np.random.default_rng(count).integers(-1, 20_000, count)
        assert np.array_equal(loaded.table.gather(ids, engine="openmp"), loaded.expected(ids))
    ids[[40, 4000]] = 20_000
    with pytest.raises(RowIdError, match=r"ids\[40\] is 20000"):
        loaded.table.gather(ids, engine="openmp")


@pytest.mark.skipif(shutil.which("taskset") is None, reason="taskset (util-linux) is missing")
def test_a_process_of_one_cpu_gathers_alone(load: Callable, script: Callable):
    loaded = load()
    cpu = min(os.sched_getaffinity(0))
    done = script(
        """
        import sys, os, numpy as np, engramdax
        from engramdax._core import lib
        assert lib.ed_team_limit() == 1
        t = engramdax.open(sys.argv[1])["table0"]
        ids = np.arange(20_000)
        pending = t.prefetch(ids)
        rows = t.gather(ids, threads=8)
        assert np.array_equal(rows, pending.wait())
        names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
        assert "engramdax\\n" not in names
        sys.stdout.write(str(int(rows.sum())))
        """,
        loaded.path,
        before=("taskset", "-c", str(cpu)),
    )
    assert done.stdout == str(int(loaded.rows.sum())), done.stderr


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one CPU only")
def test_a_pinned_thread_that_comes_first_leaves_the_others_their_cpus(load: Callable, script: Callable):
    loaded = load()
    done = script(
        """
        import os, sys, threading
        import numpy as np, engramdax
        from engramdax._core import lib
        cpus = os.sched_getaffinity(0)
        t = engramdax.open(sys.argv[1])["table0"]
        ids = np.arange(20_000)
        def pinned():
            os.sched_setaffinity(0, {min(cpus)})
            assert lib.ed_team_limit() == len(cpus), lib.ed_team_limit()
            t.gather(ids)
        first = threading.Thread(target=pinned)
        first.start()
        first.join()
        rows = t.gather(ids)
        workers = []
        for task in os.listdir("/proc/self/task"):
            try:
                if open(f"/proc/self/task/{task}/comm").read() == "engramdax\\n":
                    workers.append(os.sched_getaffinity(int(task)))
            except (FileNotFoundError, ProcessLookupError):
                pass  # the first thread, which may still be on its way out
        assert workers, "no workers"
        assert all(worker == cpus for worker in workers), (cpus, workers)
        sys.stdout.write(str(int(rows.sum())))
        """,
        loaded.path,
    )
    assert done.stdout == str(int(loaded.rows.sum())), done.stderr
