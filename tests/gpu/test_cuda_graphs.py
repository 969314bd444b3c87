# SPDX-License-Identifier: Apache-2.0
"""Captured gathers, replayed many times with new ids."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")


def test_ten_thousand_replays_give_the_same_bytes(table_of):
    rows = np.random.default_rng(0).integers(0, 256, (50_000, 264), np.uint8)
    table = table_of(rows).cuda()
    on_device = torch.from_numpy(rows).cuda()
    ids = torch.zeros((16, 24), dtype=torch.int32, device="cuda")
    out = torch.empty((16, 24, 264), dtype=torch.uint8, device="cuda")
    table.gather(ids, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        table.gather(ids, out)
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(10_000):
        ids.random_(0, 50_000)
        graph.replay()
        wrong += (out != on_device[ids.long()]).sum()
    assert wrong.item() == 0
