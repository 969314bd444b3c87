# SPDX-License-Identifier: Apache-2.0
"""Rows on the GPU equal rows on the CPU, whatever their form and however they are asked for."""

from __future__ import annotations

import numpy as np
import pytest

import engramdax
from engramdax import plain
from engramdax.errors import CudaError, ParameterError

torch = pytest.importorskip("torch")


def rows_of(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (count, width), np.uint8)


def on_gpu(array):
    return torch.from_numpy(np.ascontiguousarray(array)).cuda()


@pytest.mark.parametrize("width", [1, 2, 7, 8, 20, 63, 64, 264, 272, 320, 512, 5120])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_raw_rows_equal_the_cpu(table_of, width, dtype):
    rows = rows_of(1000, width)
    t = table_of(rows)
    ids = np.random.default_rng(1).integers(-1, 1000, (37, 24)).astype(dtype)
    out = t.cuda().gather(on_gpu(ids))
    assert np.array_equal(out.cpu().numpy(), t.gather(ids))


def test_ids_that_are_no_rows_give_zeros(table_of):
    t = table_of(rows_of(100, 264))
    ids = np.array([0, -1, -2, 99, 100, 2**31 - 1, -(2**31)], np.int32)
    out = t.cuda().gather(on_gpu(ids)).cpu().numpy()
    assert np.array_equal(out, t.gather(ids, invalid="zero"))


def float8_table(rows: np.ndarray, pool_path, name="f8"):
    """Load packed rows as V4.1's, through the reader of raw files and a layout of two fields."""
    from engramdax.format.layout import V41_ROW
    from engramdax.ingest.open import open_sources
    from engramdax.pool.loader import Load, load_tables
    from engramdax.pool.writer import Writer

    source_path = pool_path.with_suffix(".bin")
    rows.tofile(source_path)
    try:
        (source,) = open_sources([source_path], row_bytes=264)
        source.layout = V41_ROW
        with source, Writer(pool_path) as writer:
            load_tables(writer, [Load(source, name)])
    finally:
        source_path.unlink()
    with engramdax.open(pool_path) as pool:
        return pool[name]


def reference(rows: np.ndarray, dtype) -> torch.Tensor:
    values = torch.from_numpy(rows[:, :256].copy()).view(torch.float8_e4m3fn).float()
    exponents = torch.from_numpy(rows[:, 256:].copy()).to(torch.int32).repeat_interleave(32, dim=1)
    scale = torch.where(exponents == 0, torch.full((), 2.0**-127), (exponents << 23).view(torch.float32))
    return (
        (values.double() * scale.double()).float().to(dtype) if dtype == torch.float16 else (values * scale).to(dtype)
    )


@pytest.mark.parametrize(("form", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_every_value_under_every_exponent_is_dequantised_right(pool_path, form, dtype):
    # Row e holds all 256 values, each under exponent byte e.
    rows = np.empty((256, 264), np.uint8)
    rows[:, :256] = np.arange(256)
    rows[:, 256:] = np.arange(256)[:, None]
    t = float8_table(rows, pool_path)
    found = t.cuda().gather(torch.arange(256, device="cuda"), format=form).cpu()
    expected = reference(rows, dtype)
    nan = torch.isnan(expected)
    assert torch.equal(torch.isnan(found), nan)
    assert torch.equal(found.view(torch.int16)[~nan], expected.view(torch.int16)[~nan])


def test_strided_ids_and_output(table_of):
    rows = rows_of(500, 264)
    t = table_of(rows)
    ids = torch.randint(0, 500, (10, 48), device="cuda", dtype=torch.int32)[:, 5:29]
    whole = torch.zeros((10, 30, 300), device="cuda", dtype=torch.uint8)
    out = whole[:, 2:26, 8:272]
    assert t.cuda().gather(ids, out) is out
    assert np.array_equal(out.cpu().numpy(), rows[ids.cpu().numpy()])
    assert not whole[:, :2].any()
    assert not whole[:, :, :8].any()
    assert not whole[:, :, 272:].any()


def test_a_range_of_heads_with_padding(table_of):
    rows = rows_of(500, 64)
    t = table_of(rows)
    ids = torch.randint(0, 500, (9, 24), device="cuda")
    out = t.cuda(heads=(8, 6), padded_heads=8).gather(ids).cpu().numpy()
    assert out.shape == (9, 8, 64)
    assert np.array_equal(out[:, :6], rows[ids.cpu().numpy()[:, 8:14]])
    assert not out[:, 6:].any()


def test_a_range_of_rows(table_of):
    rows = rows_of(500, 64)
    ids = torch.arange(500, device="cuda")
    out = table_of(rows).cuda(rows=(100, 300)).gather(ids).cpu().numpy()
    assert np.array_equal(out[100:300], rows[100:300])
    assert not out[:100].any()
    assert not out[300:].any()


def test_ids_within_heads(table_of):
    rows = rows_of(60, 64)
    t = table_of(rows, heads=(10, 20, 30))
    ids = np.array([[0, 0, 0], [9, 19, 29], [10, 5, -1]])
    out = t.cuda().gather(on_gpu(ids), per_head=True).cpu().numpy()
    assert np.array_equal(out, t.gather(ids, per_head=True, invalid="zero"))


def test_replays_of_a_graph_read_new_ids(table_of):
    rows = rows_of(5000, 264)
    t = table_of(rows).cuda()
    ids = torch.zeros(384, dtype=torch.int32, device="cuda")
    out = torch.empty((384, 264), dtype=torch.uint8, device="cuda")
    t.gather(ids, out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        t.gather(ids, out)
        with pytest.raises(CudaError, match="captured"):
            t.gather(ids)
    on_device = on_gpu(rows)
    for _ in range(20):
        ids.random_(0, 5000)
        graph.replay()
        assert torch.equal(out, on_device[ids.long()])


def test_arrays_of_other_libraries_and_their_streams(table_of):
    rows = rows_of(300, 320)
    t = table_of(rows)
    table = t.cuda()
    ids = torch.randint(0, 300, (50,), device="cuda")

    class Dlpack:
        def __dlpack__(self, stream=None):
            assert stream == -1
            return ids.__dlpack__()

    class Interface:
        __cuda_array_interface__ = ids.__cuda_array_interface__

    for other in (Dlpack(), Interface()):
        with pytest.raises(ParameterError, match="stream"):
            table.gather(other)
        out = table.gather(other, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        assert np.array_equal(torch.as_tensor(out, device="cuda").cpu().numpy(), rows[ids.cpu().numpy()])
    prepared = table.gatherer(ids, torch.empty((50, 320), dtype=torch.uint8, device="cuda"))
    assert np.array_equal(prepared().cpu().numpy(), rows[ids.cpu().numpy()])


@pytest.mark.parametrize(
    ("ids", "out", "message"),
    [
        (lambda: torch.zeros(4, device="cuda"), None, "float32"),
        (lambda: torch.zeros(4, dtype=torch.int64), None, "ids on the host need an out"),
        (lambda: torch.zeros(4, dtype=torch.int64, device="cuda"), (4, 63), "has shape"),
        (lambda: torch.zeros((8, 8), dtype=torch.int64, device="cuda").t(), None, "strided"),
    ],
)
def test_wrong_arrays_are_refused(table_of, ids, out, message):
    table = table_of(rows_of(10, 64)).cuda()
    target = None if out is None else torch.empty(out, dtype=torch.uint8, device="cuda")
    with pytest.raises(ParameterError, match=message):
        table.gather(ids(), target)


def test_hot_rows_give_the_same_bytes_and_are_counted(table_of, pool_path):
    from engramdax.pool.writer import Writer

    rows = rows_of(20_000, 264)
    table_of(rows)
    hot = np.random.default_rng(3).permutation(20_000)[:5000].astype(np.int64)
    with Writer(pool_path) as writer:
        writer.set_hot("t", hot, [(5000, 0.5)])
    with engramdax.open(pool_path) as pool:
        t = pool["t"]
    table = t.cuda(hot="8MiB")
    assert table.hot_rows == 5000
    assert table.nbytes <= 8 << 20
    ids = torch.randint(-1, 20_001, (100, 24), device="cuda")
    out = table.gather(ids).cpu().numpy()
    assert np.array_equal(out, t.gather(ids.cpu().numpy(), invalid="zero"))
    assert table.hits() == int(np.isin(ids.cpu().numpy(), hot).sum())
    small = t.cuda(hot="64KiB")
    assert 0 < small.hot_rows < 5000
    assert small.nbytes <= 64 << 10


def test_a_pool_on_a_disk_works_or_says_why_not_and_leaves_no_error(make_pool, load_array, tmp_path):
    path = make_pool()
    load_array(path, "t", rows_of(100, 64))
    with engramdax.open(path) as pool:
        try:
            # Newer kernels let a driver pin pages of a file for reading.
            found = pool["t"].cuda().gather(torch.arange(100, device="cuda")).cpu().numpy()
            assert np.array_equal(found, rows_of(100, 64))
        except CudaError as e:
            assert "tmpfs" in str(e)  # noqa: PT017 - either outcome is right, a silent one is not
    assert torch.ones(4, device="cuda").sum().item() == 4


def test_a_registration_is_shared_and_given_back(table_of):
    rows = rows_of(100, 64)
    t = table_of(rows)
    first, second = t.cuda(), t.cuda()
    assert first.device_ptr == second.device_ptr
    first.close()
    ids = torch.arange(100, device="cuda")
    assert np.array_equal(second.gather(ids).cpu().numpy(), rows)
    second.close()
    third = t.cuda()
    assert np.array_equal(third.gather(ids).cpu().numpy(), rows)


def test_token_hashes_equal_the_cpu():
    from engramdax.cuda.hasher import CudaHasher
    from engramdax.ngram import Hasher, Layout

    rng = np.random.default_rng(5)
    for vocab_size, heads in ((16_000_000, 8), (50, 3)):
        layout = Layout.make(
            layer_ids=[1, 14],
            max_ngram=4,
            heads_per_order=heads,
            vocab_size=vocab_size,
            pad_id=2,
            compressed_vocab=9000,
        )
        hasher = Hasher(layout)
        cuda = CudaHasher(hasher)
        tokens = rng.integers(0, 9000, 500)
        tokens[rng.random(500) < 0.02] = -1
        starts = np.array([0, 1, 1, 100, 450])
        blocked = rng.random(500) < 0.05
        history = rng.integers(-1, 9000, (4, 3))
        expected = hasher(tokens, blocked, starts=starts, history=history)
        out = torch.empty(expected.shape, dtype=torch.int32, device="cuda")
        cuda(on_gpu(tokens), out, starts=on_gpu(starts), blocked=on_gpu(blocked), history=on_gpu(history))
        assert np.array_equal(out.cpu().numpy(), expected)


def test_a_registration_that_fails_half_way_leaves_nothing_registered(table_of, monkeypatch):
    from cuda.bindings import driver

    from engramdax.cuda import registration

    rows = rows_of(100_000, 264)  # 25 MiB: four chunks of 8 MiB
    t = table_of(rows)
    monkeypatch.setattr(registration, "chunk_bytes", lambda _stride: 8 << 20)
    torch.zeros(1, device="cuda")
    address = t.attachment.mapping.address + t.entry.extent.offset
    flags = driver.CU_MEMHOSTREGISTER_READ_ONLY
    assert driver.cuMemHostRegister(address + (18 << 20), 4096, flags)[0] == 0
    with pytest.raises(CudaError, match=f"stopped after {16 << 20}"):
        t.cuda()
    assert torch.ones(4, device="cuda").sum().item() == 4
    assert driver.cuMemHostUnregister(address + (18 << 20))[0] == 0
    # Had a chunk stayed registered, this would be refused.
    ids = torch.arange(100_000, device="cuda")
    assert np.array_equal(t.cuda().gather(ids).cpu().numpy(), rows)


def test_rows_on_both_sides_of_a_seam_between_chunks(table_of, monkeypatch):
    from engramdax.cuda import registration

    rows = rows_of(100_000, 264)
    monkeypatch.setattr(registration, "chunk_bytes", lambda _stride: 2 << 20)  # rows lie across the seams
    table = table_of(rows).cuda()
    ids = torch.arange(100_000, device="cuda")
    assert np.array_equal(table.gather(ids).cpu().numpy(), rows)


def test_calls_from_a_thread_that_never_used_cuda(table_of):
    from concurrent.futures import ThreadPoolExecutor

    rows = rows_of(500, 264)
    table = table_of(rows).cuda()
    ids = torch.arange(500, device="cuda")
    outs = [torch.empty((500, 264), dtype=torch.uint8, device="cuda") for _ in range(8)]
    calls = [table.gatherer(ids, out, stream=torch.cuda.current_stream()) for out in outs]
    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda call: call(), calls))
    torch.cuda.synchronize()
    for out in outs:
        assert np.array_equal(out.cpu().numpy(), rows)


def test_the_form_of_a_call_is_remembered_and_never_taken_for_another(table_of):
    rows = rows_of(2000, 264)
    table = table_of(rows).cuda()
    for shape in ((7, 24), (24, 7), (168,), (2, 4, 21), (7, 24)):
        for dtype in (torch.int32, torch.int64):
            ids = torch.randint(0, 2000, shape, device="cuda", dtype=dtype)
            for offset in (0, 8, 1):
                whole = torch.zeros(ids.numel() * 264 + 64, dtype=torch.uint8, device="cuda")
                out = whole[offset : offset + ids.numel() * 264].view(*shape, 264)
                for _ in range(2):
                    table.gather(ids, out)
                    assert np.array_equal(out.cpu().numpy(), rows[ids.cpu().numpy()])
                assert not whole[:offset].any()
                assert not whole[offset + ids.numel() * 264 :].any()


def test_tensors_that_got_other_memory_or_another_form_are_read_anew(table_of):
    rows = rows_of(2000, 264)
    table = table_of(rows).cuda()
    ids = torch.randint(0, 2000, (7, 24), device="cuda")
    out = torch.zeros((7, 24, 264), dtype=torch.uint8, device="cuda")
    before = torch.zeros_like(out)
    out.set_(before)
    for _ in range(2):
        table.gather(ids, out)
    assert np.array_equal(before.cpu().numpy(), rows[ids.cpu().numpy()])
    kept = before.clone()
    ids.data = torch.randint(0, 2000, (7, 24), device="cuda")
    out.set_(torch.zeros_like(out))
    table.gather(ids, out)
    assert np.array_equal(out.cpu().numpy(), rows[ids.cpu().numpy()])
    assert torch.equal(before, kept)
    ids.data = ids.int()
    out.transpose_(0, 1)
    with pytest.raises(ParameterError, match="out has shape"):
        table.gather(ids, out)
    ids.t_()
    with pytest.raises(ParameterError, match="last dimension of ids is strided"):
        table.gather(ids, out)


def test_a_plain_call_is_launched_on_the_stream_that_is_current_or_named(table_of):
    rows = rows_of(2000, 264)
    table = table_of(rows).cuda()
    ids = torch.randint(0, 2000, (7, 24), device="cuda")
    out = torch.empty((7, 24, 264), dtype=torch.uint8, device="cuda")
    table.gather(ids, out)
    if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
        # From the second call of a form on, nothing is asked of the tensors in Python.
        assert plain.cuda_gather(table._forms, ids, out, None, "raw", False) == 0
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    for stream in (None, side, side.cuda_stream):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)
            out.zero_()  # which on any other stream would come after the rows
            if stream is None:
                table.gather(ids, out)
        if stream is not None:
            table.gather(ids, out, stream)
        side.synchronize()
        assert np.array_equal(out.cpu().numpy(), rows[ids.cpu().numpy()])
