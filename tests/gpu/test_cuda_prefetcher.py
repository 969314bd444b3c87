# SPDX-License-Identifier: Apache-2.0
"""Rows of several layers, fetched beside the work of a step."""

from __future__ import annotations

import numpy as np
import pytest

import engramdax
from engramdax.errors import ClosedError, ParameterError

torch = pytest.importorskip("torch")

ROWS = 50_000


@pytest.fixture
def two_layers(pool_path, load_array):
    """Two tables, their rows on the device, and how they are opened."""
    arrays = [np.random.default_rng(seed).integers(0, 256, (ROWS, 264), np.uint8) for seed in (1, 2)]
    for number, array in enumerate(arrays):
        load_array(pool_path, f"layers.{number}", array, None)
    with engramdax.open(pool_path) as pool:
        tables = [pool[f"layers.{number}"] for number in range(2)]
    return [t.cuda(path="mix") for t in tables], [torch.from_numpy(a).cuda() for a in arrays]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_steps_that_follow_each_other_have_their_own_rows(two_layers, dtype):
    tables, rows = two_layers
    prefetcher = engramdax.Prefetcher(tables, 300, columns=24)
    held = []
    for tokens in (1, 300, 7, 256, 64, 0, 200):
        ids = torch.randint(0, ROWS, (tokens, 2, 24), device="cuda", dtype=dtype)
        wanted = [rows[layer][ids[:, layer].long()] for layer in range(2)]
        prefetcher.start(ids)
        ids.fill_(0)  # they were copied
        found = [prefetcher.rows(layer) for layer in range(2)]
        for layer in range(2):
            assert found[layer].shape == (tokens, 24, 264)
            assert torch.equal(found[layer], wanted[layer])
        held.append((found, wanted))
        # Those of the step before are still there.
        for before, then in held[-2:]:
            assert all(torch.equal(a, b) for a, b in zip(before, then, strict=True))
    prefetcher.close()
    with pytest.raises(ClosedError):
        prefetcher.start(ids)


@pytest.mark.parametrize("layers", ["aa", "ab", "aba", "abad", "da", "dd", "aadbb"])
@pytest.mark.parametrize("captured", [False, True], ids=["plain", "captured"])
def test_layers_may_share_lanes_or_have_none(two_layers, layers, captured):
    """a and b have a lane each, which has one round in flight; d is read directly."""
    (a, b), rows = two_layers
    d = a.table.cuda(path="direct")
    tables, wanted = {"a": a, "b": b, "d": d}, {"a": rows[0], "b": rows[1], "d": rows[0]}
    prefetcher = engramdax.Prefetcher([tables[name] for name in layers], 1024, columns=24)
    for tokens in (1024, 16, 200, 1):
        ids = torch.zeros((tokens, len(layers), 24), device="cuda", dtype=torch.int32)
        found: list[torch.Tensor] = []

        def step(ids=ids, found=found):
            prefetcher.start(ids)
            found[:] = [prefetcher.rows(layer).clone() for layer in range(len(layers))]
            prefetcher.finish()

        run = step
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                step()
            run = graph.replay
        for _ in range(20):
            ids.random_(0, ROWS)
            run()
            for layer, name in enumerate(layers):
                assert torch.equal(found[layer], wanted[name][ids[:, layer].long()])
    assert a.lane.counts()["busy_calls"] == b.lane.counts()["busy_calls"] == 0
    prefetcher.close()


def test_a_captured_step_reads_new_ids_at_each_replay(two_layers):
    tables, rows = two_layers
    prefetcher = engramdax.Prefetcher(tables, 256, columns=24)
    ids = torch.zeros((256, 2, 24), device="cuda", dtype=torch.int32)
    sums = torch.zeros(2, 256, device="cuda", dtype=torch.int64)
    work = torch.randn((1024, 1024), device="cuda")
    torch.mm(work, work)  # so that its library is loaded
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        prefetcher.start(ids)
        product = work @ work
        for layer in range(2):
            sums[layer] = prefetcher.rows(layer).to(torch.int64).sum((1, 2))
            product = product @ work
        prefetcher.finish()
    for _ in range(2000):
        ids.random_(0, ROWS)
        graph.replay()
        for layer in range(2):
            assert torch.equal(sums[layer], rows[layer][ids[:, layer].long()].to(torch.int64).sum((1, 2)))
    # A step that is not captured uses other buffers.
    prefetcher.start(ids)
    assert torch.equal(prefetcher.rows(1), rows[1][ids[:, 1].long()])


def test_tokens_are_hashed_to_the_ids_of_the_layers(pool_path, load_array):
    from engramdax.cuda.hasher import CudaHasher
    from engramdax.ngram import Hasher, Layout

    layout = Layout.make(
        layer_ids=[1, 14], max_ngram=4, heads_per_order=8, vocab_size=1000, pad_id=2, compressed_vocab=5000
    )
    hasher = Hasher(layout)
    for place, name in enumerate(("layers.14", "layers.1")):  # not in the hasher's order
        layer = 1 - place
        rows = np.random.default_rng(layer).integers(0, 256, (layout.rows(layer), 64), np.uint8)
        load_array(pool_path, name, rows, tuple(int(p) for p in layout.primes[layer]))
    with engramdax.open(pool_path) as pool:
        tables = [pool["layers.1"], pool["layers.14"]]
    prefetcher = engramdax.Prefetcher([t.cuda(path="mix") for t in tables], 500, hasher=CudaHasher(hasher))
    tokens = np.random.default_rng(0).integers(0, 5000, 500)
    ids = hasher(tokens)
    prefetcher.start(torch.from_numpy(tokens).cuda())
    for layer, table in enumerate(tables):
        assert np.array_equal(prefetcher.rows(layer).cpu().numpy(), table.gather(np.ascontiguousarray(ids[:, layer])))


def test_what_cannot_be_is_refused(two_layers):
    tables, _ = two_layers
    with pytest.raises(ParameterError, match="columns"):
        engramdax.Prefetcher(tables, 4)
    prefetcher = engramdax.Prefetcher(tables, 4, columns=24)
    with pytest.raises(ParameterError, match="nothing was started"):
        prefetcher.rows(0)
    with pytest.raises(ParameterError, match="5 tokens"):
        prefetcher.start(torch.zeros((5, 2, 24), device="cuda", dtype=torch.int32))
    with pytest.raises(ParameterError, match="ids are"):
        prefetcher.start(torch.zeros((4, 24), device="cuda", dtype=torch.int32))
    with pytest.raises(ParameterError, match="strided"):
        prefetcher.start(torch.zeros((2, 2, 48), device="cuda", dtype=torch.int32)[..., ::2])
