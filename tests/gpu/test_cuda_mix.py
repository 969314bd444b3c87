# SPDX-License-Identifier: Apache-2.0
"""Rows by way of the CPU, and on several ways at once, equal rows on the CPU, whatever the team or the lane does."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax.cuda.mix import Mix
from engramdax.errors import CudaError, PoisonedRowsError
from tests.thread_stats import POLLER, WORKER, thread_stats

torch = pytest.importorskip("torch")

ROWS = 60_000
LENIENT = {"from_rows": 0, "deadline_us": 2_000_000, "deadline_row_ns": 0}
MIXES = {
    "staged": Mix(first_local=0, local_of_64=0, **LENIENT),
    "half": Mix(first_local=0, local_of_64=32, **LENIENT),
    "first direct": Mix(first_local=300, local_of_64=7, **LENIENT),
    "direct lists": Mix(first_local=1 << 30, local_of_64=0, **LENIENT),
}


def rows_of(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(width).integers(0, 256, (count, width), np.uint8)


def random_ids(count: int, rows: int = ROWS, seed: int = 0) -> np.ndarray:
    ids = np.random.default_rng(seed).integers(-2, rows + 2, count)
    return ids.astype(np.int32)


def expected(rows: np.ndarray, ids: np.ndarray) -> np.ndarray:
    good = (ids >= 0) & (ids < len(rows))
    return np.where(good[..., None], rows[np.where(good, ids, 0)], 0).astype(np.uint8)


@pytest.fixture
def mixed(table_of):
    """Give a function that loads rows and opens them with a mix."""

    def make(rows: np.ndarray, mix: str = "staged", **options):
        cuda = table_of(rows).cuda(path="mix", **options)
        MIXES[mix].apply(cuda.lane.core)
        return cuda

    return make


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("count", [1, 15, 16, 17, 384, 1536, 2048, 2049, 5000, 24_576, 196_608])
def test_rows_equal_the_cpu_at_every_size_and_mix(mixed, mix, count):
    rows = rows_of(ROWS, 264)
    cuda = mixed(rows, mix)
    for seed in range(3):  # the lane is used again
        ids = random_ids(count, seed=seed)
        out = torch.full((count, 264), 0xA5, dtype=torch.uint8, device="cuda")
        cuda.gather(torch.from_numpy(ids).cuda(), out)
        assert np.array_equal(out.cpu().numpy(), expected(rows, ids))
    counts = cuda.lane.counts()
    assert counts["late_chunks"] == 0
    assert counts["busy_calls"] == 0
    if mix == "staged":
        asked = [random_ids(count, seed=seed) for seed in range(3)]
        assert counts["rows"] == sum(((ids >= 0) & (ids < ROWS)).sum() for ids in asked)
    cuda.check()


@pytest.mark.parametrize("width", [1, 2, 7, 8, 20, 63, 64, 264, 272, 320, 512, 5120])
def test_rows_of_every_width(mixed, width):
    rows = rows_of(2000, width)
    cuda = mixed(rows, "half")
    ids = random_ids(3000, 2000)
    out = cuda.gather(torch.from_numpy(ids).cuda())
    assert np.array_equal(out.cpu().numpy(), expected(rows, ids))


def test_a_call_larger_than_the_staging_buffer(mixed):
    rows = rows_of(3000, 5120)
    cuda = mixed(rows)
    count = int(cuda.lane.core.mix.capacity) + 1000
    ids = random_ids(count, 3000)
    on_device = torch.from_numpy(rows).cuda()
    wanted = torch.from_numpy(ids).cuda().long()
    out = cuda.gather(wanted)
    good = (wanted >= 0) & (wanted < 3000)
    assert torch.equal(out, on_device[wanted.clamp(0, 2999)] * good[:, None])


def test_dequantised_rows_by_way_of_the_cpu_equal_direct_ones(pool_path):
    from test_cuda_gather import float8_table

    table = float8_table(rows_of(20_000, 264), pool_path)
    direct, cuda = table.cuda(path="direct"), table.cuda(path="mix")
    ids = torch.from_numpy(random_ids(6144, 20_000).reshape(256, 24)).cuda()
    for mix in MIXES.values():
        mix.apply(cuda.lane.core)
        for form in ("bf16", "fp16"):
            out = torch.full((256, 24, 256), 7, dtype=torch.float16, device="cuda")
            out = out if form == "fp16" else out.to(torch.bfloat16)
            cuda.gather(ids, out, format=form)
            wanted = direct.gather(ids, format=form)
            assert torch.equal(out.view(torch.int16), wanted.view(torch.int16))


def test_strided_ids_and_output_heads_and_ids_within_heads(mixed, table_of):
    rows = rows_of(60, 64)
    cuda = table_of(rows, heads=(10, 20, 30)).cuda(path="mix", heads=(1, 2), padded_heads=4)
    MIXES["half"].apply(cuda.lane.core)
    ids = np.random.default_rng(0).integers(-1, 31, (500, 2, 3))
    whole = torch.zeros((500, 6, 80), device="cuda", dtype=torch.uint8)
    out = whole[:, 1:5, 8:72]
    cuda.gather(torch.from_numpy(ids).cuda()[:, 1], out, per_head=True)
    begins, ends = np.array([10, 30]), np.array([20, 30])
    local = ids[:, 1, 1:]
    wanted = expected(rows, np.where((local >= 0) & (local < ends), local + begins, -1))
    assert np.array_equal(out.cpu().numpy()[:, :2], wanted)
    assert not whole[:, 0].any()
    assert not whole[:, 3:].any()
    assert not whole[:, :, :8].any()
    assert not whole[:, :, 72:].any()


@pytest.mark.parametrize("mix", MIXES)
def test_hot_rows_do_not_go_by_way_of_the_cpu(pool_path, load_array, mix):
    from engramdax.pool.writer import Writer

    rows = rows_of(ROWS, 264)
    load_array(pool_path, "t", rows, None)
    hot = np.random.default_rng(5).permutation(ROWS)[:20_000]
    with Writer(pool_path) as writer:
        writer.set_hot("t", hot, [(hot.size, 0.5)])
    with engramdax.open(pool_path) as pool:
        cuda = pool["t"].cuda(path="mix", hot="16MiB")
    assert cuda.hot_rows == hot.size
    MIXES[mix].apply(cuda.lane.core)
    for count in (1536, 24_576):
        ids = random_ids(count)
        before = cuda.hits()
        out = cuda.gather(torch.from_numpy(ids).cuda())
        assert np.array_equal(out.cpu().numpy(), expected(rows, ids))
        served = np.isin(ids, hot)
        assert cuda.hits() - before == served.sum()
        assert cuda.lane.counts()["rows"] <= 1536 + count


def test_replays_of_two_graphs_on_two_streams_give_the_right_bytes(mixed):
    """They share the lane: whoever finds it taken reads directly."""
    rows = rows_of(ROWS, 264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = mixed(rows, "half")
    graphs, streams = [], [torch.cuda.Stream(), torch.cuda.Stream()]
    for stream in streams:
        ids = torch.zeros(6144, dtype=torch.int32, device="cuda")
        out = torch.empty((6144, 264), dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            cuda.gather(ids, out)
        graphs.append((graph, ids, out))
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")
    cuda.lane.disturb(one_in=100, microseconds=200)  # so that a round is under way when the other graph comes
    torch.cuda.synchronize()
    for _ in range(2000):
        for i, (stream, (graph, ids, out)) in enumerate(zip(streams, graphs, strict=True)):
            with torch.cuda.stream(stream):
                ids.random_(0, ROWS)
                out.fill_(0xA5)
                graph.replay()
                wrong[i] += (out != on_device[ids.long()]).sum()
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0]
    assert cuda.lane.counts()["busy_calls"] > 0


def test_threads_and_streams_share_a_table(mixed):
    rows = rows_of(ROWS, 264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = mixed(rows, "first direct")
    wrong = []

    def work(seed: int) -> None:
        generator = np.random.default_rng(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(300):
                count = int(generator.integers(1, 12_000))
                ids = torch.from_numpy(generator.integers(0, ROWS, count)).cuda()
                out = cuda.gather(ids)
                wrong.append(int((out != on_device[ids]).sum()))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(wrong) == 0
    assert len(wrong) == 1200


REPLAYS = int(os.environ.get("ENGRAMDAX_REPLAYS", "100000"))


def test_replays_are_right_while_workers_pause_at_random(mixed):
    """Some chunks come late and are read directly, and what comes after all harms no later round."""
    rows = rows_of(ROWS, 264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = mixed(rows, "half")
    core = cuda.lane.core
    core.deadline_us, core.deadline_row = 60, 0
    calls = []
    for count in (100, 1536, 6144, 9000):  # rounds of changing size
        ids = torch.zeros(count, dtype=torch.int32, device="cuda")
        out = torch.empty((count, 264), dtype=torch.uint8, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cuda.gather(ids, out)
        calls.append((graph, ids, out))
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for i in range(REPLAYS):
        if i % 100 == 0:
            cuda.lane.disturb(one_in=(0, 7, 50, 400)[i // 100 % 4], microseconds=(20, 100, 1000)[i // 400 % 3])
        graph, ids, out = calls[i % 4]
        ids.random_(0, ROWS)
        out.fill_(0xA5)
        graph.replay()
        wrong += (out != on_device[ids.long()]).sum()
    assert wrong.item() == 0
    counts = cuda.lane.counts()
    assert counts["late_chunks"] > 0
    assert counts["rounds"] > REPLAYS // 10
    print(f"{REPLAYS} replays: {counts}")


@pytest.mark.parametrize("copied", ["sixteen at a time", "one by one"])
def test_a_team_that_does_not_come_costs_the_deadline(mixed, copied):
    rows = rows_of(ROWS, 264)
    cuda = mixed(rows)
    core = cuda.lane.core
    core.deadline_us = 500
    if copied == "one by one":
        core.shared_bytes = 0
    cuda.lane.disturb(one_in=1, microseconds=3_000_000)
    ids = torch.from_numpy(random_ids(1536)).cuda()
    out = torch.empty((1536, 264), dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    cuda.gather(ids, out)
    end.record()
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), expected(rows, ids.cpu().numpy()))
    assert begin.elapsed_time(end) < 1000  # ms, of a team that sleeps for three seconds
    assert cuda.lane.counts()["late_chunks"] > 0
    # The lane is not used again before those who sleep are done.
    cuda.lane.disturb(one_in=0, microseconds=0)
    cuda.gather(ids, out)
    torch.cuda.synchronize()
    assert np.array_equal(out.cpu().numpy(), expected(rows, ids.cpu().numpy()))
    assert cuda.lane.counts()["busy_calls"] == 1


def threads_of_the_team() -> list[int]:
    """The workers and the poller."""
    return list(thread_stats(WORKER, POLLER))


STOP = """
import ctypes, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
for thread in map(int, sys.argv[1:]):
    for request in (0x4206, 0x4207):  # PTRACE_SEIZE, PTRACE_INTERRUPT
        if libc.ptrace(request, thread, None, None):
            sys.exit(f"no thread can be stopped here: {ctypes.get_errno()}")
print("stopped", flush=True)
sys.stdin.read()  # they go on when their tracer ends
"""


@pytest.mark.parametrize("which", ["one worker", "the whole team"])
def test_stopped_threads_cost_the_deadline(mixed, which):
    rows = rows_of(ROWS, 264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = mixed(rows, "half")
    core = cuda.lane.core
    core.deadline_us, core.deadline_row = 500, 0
    ids = torch.zeros(6144, dtype=torch.int32, device="cuda")
    out = torch.empty((6144, 264), dtype=torch.uint8, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        cuda.gather(ids, out)
    graph.replay()
    torch.cuda.synchronize()
    threads = threads_of_the_team()
    chosen = threads[-1:] if which == "one worker" else threads
    helper = subprocess.Popen(
        [sys.executable, "-c", STOP, *map(str, chosen)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if helper.stdout.readline() != "stopped\n":
        pytest.skip(helper.communicate()[1])
    try:
        for _ in range(50):
            ids.random_(0, ROWS)
            out.fill_(0xA5)
            graph.replay()
            assert torch.equal(out, on_device[ids.long()])
        late = cuda.lane.counts()["late_chunks"]
    finally:
        helper.communicate()
    assert late > 0 or which == "one worker"  # others may have done all of its chunks
    for _ in range(50):
        ids.random_(0, ROWS)
        graph.replay()
        assert torch.equal(out, on_device[ids.long()])


def test_a_starved_team_costs_the_deadline(mixed):
    """All its threads on one CPU, which two other programs use, too."""
    rows = rows_of(ROWS, 264)
    on_device = torch.from_numpy(rows).cuda()
    cuda = mixed(rows, "half")
    cuda.lane.core.deadline_us, cuda.lane.core.deadline_row = 500, 0
    ids = torch.zeros(6144, dtype=torch.int32, device="cuda")
    out = torch.empty((6144, 264), dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    torch.cuda.synchronize()
    everywhere = os.sched_getaffinity(0)
    one = {max(everywhere)}
    spin = f"import os\nos.sched_setaffinity(0, {one})\nwhile True: pass"
    spinners = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    try:
        for thread in threads_of_the_team():
            os.sched_setaffinity(thread, one)
        for _ in range(200):
            ids.random_(0, ROWS)
            out.fill_(0xA5)
            cuda.gather(ids, out)
            assert torch.equal(out, on_device[ids.long()])
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()
        for thread in threads_of_the_team():
            os.sched_setaffinity(thread, everywhere)


def test_gathers_count_among_the_rows_of_the_process(table_of):
    from engramdax.counters import CALLS_SHIFT

    table = table_of(rows_of(ROWS, 264))
    ids = torch.zeros(1536, dtype=torch.int32, device="cuda")
    out = torch.empty((1536, 264), dtype=torch.uint8, device="cuda")
    for path in ("direct", "staged"):
        cuda = table.cuda(path=path)
        before = table.core.counter[0]
        cuda.gather(ids, out)
        torch.cuda.synchronize()
        assert table.core.counter[0] - before == (1 << CALLS_SHIFT) + 1536


def test_closing_waits_for_workers_that_are_late(mixed):
    cuda = mixed(rows_of(ROWS, 264))
    cuda.lane.core.deadline_us = 100
    cuda.lane.disturb(one_in=1, microseconds=200_000)
    cuda.gather(torch.zeros(1536, dtype=torch.int32, device="cuda"))
    cuda.close()


@pytest.fixture
def unregistered(load_array):
    """A pool on a disk that the driver does not register, since a part of it is already."""
    from cuda.bindings import driver

    from engramdax.pool.provision import Consent, plan_file
    from engramdax.pool.steps import carry_out

    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # /tmp may be memory, which cannot be cut off
    path = folder / "pool"
    carry_out(plan_file(path, 64 << 20, name="disk", consent=Consent()).steps)
    rows = rows_of(20_000, 264)
    load_array(path, "t", rows, None)
    with engramdax.open(path) as pool:
        table = pool["t"]
    torch.cuda.init()
    torch.zeros(1, device="cuda")
    address = table.attachment.mapping.address + table.entry.extent.offset
    flags = driver.CU_MEMHOSTREGISTER_READ_ONLY | driver.CU_MEMHOSTREGISTER_PORTABLE
    registered = int(driver.cuMemHostRegister(address, 4096, flags)[0]) == 0
    with pytest.raises(CudaError, match="register"):
        table.cuda(path="direct")
    yield table, rows, path
    if registered:
        driver.cuMemHostUnregister(address)
    shutil.rmtree(folder)


def test_a_pool_that_cannot_be_registered_is_staged(unregistered):
    table, rows, _ = unregistered
    cuda = table.cuda(path="staged")
    MIXES["staged"].apply(cuda.lane.core)
    for count in (1, 384, 9000):
        ids = random_ids(count, 20_000)
        out = cuda.gather(torch.from_numpy(ids).cuda())
        assert np.array_equal(out.cpu().numpy(), expected(rows, ids))
    cuda.check()


def test_late_rows_of_a_pool_that_is_not_registered_are_an_error(unregistered):
    table, _, _ = unregistered
    cuda = table.cuda(path="staged")
    cuda.lane.core.deadline_us = 100
    cuda.lane.disturb(one_in=1, microseconds=300_000)
    ids = torch.zeros(384, dtype=torch.int32, device="cuda")
    out = torch.full((384, 264), 0xA5, dtype=torch.uint8, device="cuda")
    cuda.gather(ids, out)
    torch.cuda.synchronize()
    assert not out.any()
    with pytest.raises(CudaError, match="did not come in time"):
        cuda.gather(ids, out)
    cuda.check()  # told once


def test_rows_that_cannot_be_read_are_zeros_and_named(unregistered):
    table, rows, path = unregistered
    cuda = table.cuda(path="staged")
    MIXES["staged"].apply(cuda.lane.core)
    end = table.entry.extent.offset + 4096 * 100
    os.truncate(path, end)
    readable = (4096 * 100) // 264
    ids = torch.tensor([0, readable - 1, readable + 20, 19_999] * 100, dtype=torch.int32, device="cuda")
    out = cuda.gather(ids).cpu().numpy()
    wanted = rows[ids.cpu().numpy()]
    wanted[2::4] = wanted[3::4] = 0
    assert np.array_equal(out, wanted)
    with pytest.raises(PoisonedRowsError) as caught:
        cuda.check()
    assert set(caught.value.ids.tolist()) == {readable + 20, 19_999}


def test_calibration_is_kept_and_read_again(table_of, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("engramdax.cuda.paths.MIX_BYTES", 0)
    table = table_of(rows_of(ROWS, 264))
    first = table.cuda(threads=4)
    assert first.mix.measured
    second = table.cuda(threads=4)
    assert second.mix == first.mix
    assert second.mix.seconds < 20
    assert table.cuda(threads=4, sm_share=0.5).mix.measured != first.mix.measured
    ids = random_ids(6144)
    out = second.gather(torch.from_numpy(ids).cuda())
    assert np.array_equal(out.cpu().numpy(), expected(rows_of(ROWS, 264), ids))


EXITS = {
    "in the middle of rounds": "for _ in range(50): cuda.gather(ids, out)",
    "with a captured graph": """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    cuda.gather(ids, out)
for _ in range(50): graph.replay()
""",
}


@pytest.mark.parametrize("how", EXITS)
def test_a_process_ends_with_an_open_lane(pool_path, load_array, how):
    load_array(pool_path, "t", rows_of(ROWS, 264), None)
    program = f"""
import torch, engramdax
cuda = engramdax.open({str(pool_path)!r})["t"].cuda(path="mix")
ids = torch.zeros(6144, dtype=torch.int32, device="cuda")
out = torch.empty((6144, 264), dtype=torch.uint8, device="cuda")
{EXITS[how]}
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_one_connection_for_all_streams(pool_path, load_array):
    """With CUDA_DEVICE_MAX_CONNECTIONS=1 streams wait for each other in ways that they do not otherwise."""
    load_array(pool_path, "t", rows_of(ROWS, 264), None)
    program = f"""
import numpy as np, torch, engramdax
table = engramdax.open({str(pool_path)!r})["t"]
cuda = table.cuda(path="mix")
rows = torch.from_numpy(table.gather(np.arange({ROWS}))).cuda()
streams = [torch.cuda.Stream() for _ in range(4)]
wrong = torch.zeros((), dtype=torch.int64, device="cuda")
for i in range(400):
    with torch.cuda.stream(streams[i % 4]):
        ids = torch.randint(0, {ROWS}, (6144,), device="cuda")
        out = cuda.gather(ids)
        wrong += (out != rows[ids]).sum()
torch.cuda.synchronize()
assert wrong.item() == 0
"""
    environment = {**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
