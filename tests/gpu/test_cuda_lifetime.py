# SPDX-License-Identifier: Apache-2.0
"""CudaTables that are closed, dropped or misused, and errors that several threads meet."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest

import engramdax
from engramdax._core import ffi, lib
from engramdax.cuda.lane import MOST_ROWS
from engramdax.errors import ClosedError, CudaError, ParameterError

torch = pytest.importorskip("torch")

ROWS = 20_000


def rows_of(width: int = 264) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (ROWS, width), np.uint8)


def staged(table, **options):
    cuda = table.cuda(path="staged", **options)
    cuda.lane.core.deadline_us = 2_000_000
    return cuda


def test_a_table_that_is_dropped_right_after_a_gather_still_gives_its_rows(table_of):
    rows = rows_of()
    on_device = torch.from_numpy(rows).cuda()
    table = table_of(rows)
    for turn in range(20):
        ids = torch.randint(0, ROWS, (6144,), device="cuda")
        cuda = staged(table)
        cuda.lane.disturb(one_in=5, microseconds=2000)
        out = cuda.gather(ids)
        if turn % 2:
            cuda.gather(np.arange(500), torch.empty((500, 264), dtype=torch.uint8, device="cuda"))
        del cuda
        gc.collect()
        assert torch.equal(out, on_device[ids])


def test_a_thread_that_never_used_cuda_may_close_a_table(table_of):
    cuda = staged(table_of(rows_of()))
    cuda.gather(torch.zeros(384, dtype=torch.int32, device="cuda"))
    failed = []

    def close() -> None:
        try:
            cuda.close()
        except CudaError as e:
            failed.append(e)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert failed == []
    assert cuda.lane.closed


def test_a_closed_table_refuses_everything_and_tells_what_went_wrong_before(table_of):
    cuda = staged(table_of(rows_of()))
    ids, out = np.arange(24), torch.empty((24, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    cuda.gather(torch.from_numpy(ids).cuda(), out)
    torch.cuda.synchronize()
    ffi.cast("uint32_t *", cuda.lane.core.mix.failed)[0] = 1
    free = torch.cuda.mem_get_info()[0]
    cuda.close()
    cuda.close()
    assert torch.cuda.mem_get_info()[0] - free >= MOST_ROWS * 16
    for call in (
        lambda: cuda.gather(ids, out),
        lambda: cuda.gather(torch.from_numpy(ids).cuda(), out),
        cuda.calibrate,
        cuda.lane.counts,
    ):
        with pytest.raises(ClosedError):
            call()
    assert (cuda.chunk_bytes, cuda.hits()) == (0, 0)
    with pytest.raises(CudaError, match="did not come in time"):
        cuda.check()
    cuda.check()  # told once


def test_threads_that_meet_an_error_of_before_all_say_so(table_of):
    cuda = staged(table_of(rows_of()))
    ids = torch.zeros(384, dtype=torch.int32, device="cuda")
    out = torch.empty((384, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    torch.cuda.synchronize()
    # One was told between the launch and the question of the other.
    assert "call again" in str(cuda.launch_error(lib.ED_CUDA_TROUBLE))
    cuda.gather(ids, out)


def test_a_launch_that_the_driver_refused_does_not_block_the_lane(table_of):
    rows = rows_of()
    cuda = table_of(rows).cuda(path="mix")
    ids = np.arange(1000)
    out = torch.empty((1000, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    lane = cuda._host.lane
    refused = ffi.new("struct ed_cuda_route *", {"direct": 0, "mixed": 0, "lane": lane.core})
    plan = cuda._plans.one_column()
    torch.cuda.synchronize()
    pointer = ffi.cast("int32_t *", ids.astype(np.int32).ctypes.data)
    time.sleep(0.01)
    result = lib.ed_cuda_gather_host(plan, refused, pointer, 1000, out.data_ptr(), 264, 0, 0)
    assert result not in (0, lib.ED_CUDA_BUSY)
    begin = time.monotonic()
    for shift in range(5):
        cuda.gather(ids + shift, out)
        assert np.array_equal(out.cpu().numpy(), rows[ids + shift])
    assert time.monotonic() - begin < 0.5


def test_threads_share_one_lane_for_ids_of_the_host(table_of):
    rows = rows_of()
    cuda = table_of(rows).cuda(path="mix")
    before, start, made = cuda.nbytes, threading.Barrier(8), []

    def work() -> None:
        out = torch.empty((24, 264), dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        start.wait()
        cuda.gather(np.arange(24), out, stream)
        made.append(cuda._host)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    assert len(set(map(id, made))) == 1
    assert cuda.nbytes - before == cuda._host.lane.nbytes


@pytest.mark.parametrize("path", ["mix", "direct"])
def test_ids_of_the_host_without_columns_or_dimensions(table_of, path):
    table = table_of(rows_of(64), heads=(5000, 5000, 10_000))
    cuda = table.cuda(path=path)
    for shape in ((5, 0), (0, 0), (0,), (3, 0, 2)):
        out = torch.empty((*shape, 64), dtype=torch.uint8, device="cuda")
        assert cuda.gather(np.zeros(shape, np.int64), out) is out
    with pytest.raises(ParameterError, match="do not end in 3 heads"):
        cuda.gather(np.full((), 3, np.int64), torch.empty((64,), dtype=torch.uint8, device="cuda"), per_head=True)


def test_numbers_of_rounds_begin_anew_without_zero(table_of):
    rows = rows_of()
    on_device = torch.from_numpy(rows).cuda()
    cuda = staged(table_of(rows))
    cuda.gather(torch.zeros(24, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()
    # As after 2**32 - 3 rounds: the GPU's number, the message, and what the CPU told.
    last = (1 << 32) - 3
    state = np.zeros(1, np.uint32)
    state[0] = last
    cuda.lane._state.write(state, offset=8)
    # A round of the old number is passed over by the poller, which then has seen it.
    ffi.cast("uint64_t *", cuda.lane.core.mix.message)[0] = last << 32 | 1 << 24
    time.sleep(0.05)
    for _ in range(6):
        ids = torch.randint(0, ROWS, (6144,), device="cuda")
        assert torch.equal(cuda.gather(ids), on_device[ids])
    assert int(ffi.cast("uint64_t *", cuda.lane.core.mix.message)[0] >> 32) == 4
    assert cuda.lane.counts()["late_chunks"] == 0


def test_a_step_that_is_refused_takes_no_rows_away(table_of):
    rows = rows_of()
    on_device = torch.from_numpy(rows).cuda()
    prefetcher = engramdax.Prefetcher([table_of(rows).cuda(path="mix")], 8, columns=24)
    ids = [torch.randint(0, ROWS, (8, 1, 24), device="cuda") for _ in range(2)]
    prefetcher.start(ids[0])
    first = prefetcher.rows(0)
    with pytest.raises(ParameterError):
        prefetcher.start(torch.zeros((9, 1, 24), device="cuda", dtype=torch.int64))
    prefetcher.start(ids[1])
    assert torch.equal(prefetcher.rows(0), on_device[ids[1][:, 0]])
    assert torch.equal(first, on_device[ids[0][:, 0]])
    with pytest.raises(ParameterError, match="layer 1 is none of 1"):
        prefetcher.rows(1)


def test_rows_outlive_the_prefetcher_that_fetched_them(table_of):
    rows = rows_of()
    on_device = torch.from_numpy(rows).cuda()
    ids = torch.randint(0, ROWS, (8, 1, 24), device="cuda")
    table = table_of(rows).cuda(path="mix")
    for close in (True, False):
        prefetcher = engramdax.Prefetcher([table], 8, columns=24)
        prefetcher.start(ids)
        found = prefetcher.rows(0)
        if close:
            prefetcher.close()
        del prefetcher
        gc.collect()
        _ = [torch.full((1 << 20,), 7, dtype=torch.uint8, device="cuda") for _ in range(64)]
        assert torch.equal(found, on_device[ids[:, 0]])
