# SPDX-License-Identifier: Apache-2.0
"""Ids that are on the host go to the CPU team without a detour over the GPU."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from engramdax.errors import CudaError, ParameterError

torch = pytest.importorskip("torch")

ROWS = 20_000


def rows_of(width: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (ROWS, width), np.uint8)


@pytest.mark.parametrize("path", ["mix", "direct"])
@pytest.mark.parametrize("shape", [(), (1,), (5000,), (64, 24), (3, 5, 24), (0, 24)])
def test_rows_for_ids_of_numpy_equal_the_cpu(table_of, path, shape):
    table = table_of(rows_of(264))
    cuda = table.cuda(path=path)
    for seed in range(3):
        ids = np.random.default_rng(seed).integers(-1, ROWS + 1, shape)
        out = torch.full((*shape, 264), 0xA5, dtype=torch.uint8, device="cuda")
        assert cuda.gather(ids, out) is out
        ids[...] = 0  # they were read
        ids = np.random.default_rng(seed).integers(-1, ROWS + 1, shape)
        assert np.array_equal(out.cpu().numpy(), table.gather(ids, invalid="zero"))
    cuda.check()


def test_tensors_on_the_host_heads_and_strides(table_of):
    rows = rows_of(64)
    table = table_of(rows, heads=(5000, 5000, 10_000))
    cuda = table.cuda(path="mix", heads=(1, 2), padded_heads=3)
    ids = torch.randint(-1, 10_001, (500, 3))
    whole = torch.zeros((500, 5, 80), device="cuda", dtype=torch.uint8)
    cuda.gather(ids, whole[:, 1:4, 8:72], per_head=True)
    wanted = table.gather(ids.numpy(), per_head=True, invalid="zero")
    found = whole.cpu().numpy()
    assert np.array_equal(found[:, 1:3, 8:72], wanted[:, 1:])
    assert not found[:, 3:].any()
    assert not found[:, 0].any()
    assert not found[:, :, :8].any()


def test_threads_take_turns(table_of):
    rows = rows_of(264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = table_of(rows).cuda(path="mix")
    wrong = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(200):
                ids = generator.integers(0, ROWS, int(generator.integers(1, 9000)))
                out = torch.empty((ids.size, 264), dtype=torch.uint8, device="cuda")
                cuda.gather(ids, out)
                wrong.append(int((out != on_device[torch.from_numpy(ids).cuda()]).sum()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(wrong), sum(wrong)) == (800, 0)


def test_a_late_team_harms_no_later_call(table_of):
    rows = rows_of(264)
    cuda = table_of(rows).cuda(path="mix")
    ids = np.arange(3000)
    out = torch.empty((3000, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    lane = cuda._host.lane
    lane.core.deadline_us, lane.core.deadline_row = 100, 0
    lane.disturb(one_in=3, microseconds=20_000)
    for shift in range(20):
        cuda.gather(ids + shift, out)
        assert np.array_equal(out.cpu().numpy(), rows[ids + shift])
    assert lane.counts()["late_chunks"] > 0


def test_more_rows_than_the_mailbox_holds(table_of):
    rows = rows_of(264)
    cuda = table_of(rows).cuda(path="mix")
    ids = np.random.default_rng(0).integers(0, ROWS, 300_000)
    out = torch.empty((ids.size, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    assert torch.equal(out, torch.from_numpy(rows).cuda()[torch.from_numpy(ids).cuda()])


def test_what_cannot_be_is_refused(table_of):
    cuda = table_of(rows_of(264)).cuda(path="mix")
    ids = np.zeros(24, np.int64)
    out = torch.empty((24, 264), dtype=torch.uint8, device="cuda")
    with pytest.raises(ParameterError, match="need an out"):
        cuda.gather(ids)
    with pytest.raises(ParameterError, match="out has shape"):
        cuda.gather(ids[:-1], out)
    with pytest.raises(ParameterError, match="float64"):
        cuda.gather(ids.astype(float), out)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        out.fill_(1)
        with pytest.raises(CudaError, match="cannot be captured"):
            cuda.gather(ids, out)
