# SPDX-License-Identifier: Apache-2.0
"""The contest on the GPU: rows out of one registered table, by our kernels and by serving engines' own.

All contenders run in one process and in turn, call by call, on the same ids, fresh for each call and drawn on the
device before the clock starts. Device time is taken by events around the call, with the device kept busy in front
of the first, so that launch costs of the host do not count; they are timed by themselves. Peers read the very
memory of our table, as two arrays: their bytes are then none of ours, so bytes are compared on a small table that
is held both ways.
"""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.bench.gpu_peers import DIM, SCALES, SglangStaging, VllmLookup, dequantise, sglang_gather
from engramdax.cuda.memory import View
from engramdax.cuda.prefetcher import Prefetcher
from engramdax.errors import CudaError, EngramdaxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.cuda.formats import Format
    from engramdax.cuda.table import CudaTable
    from engramdax.table import Table

ROUNDS: Final = 500
LARGE_ROUNDS: Final = 60
LARGE_TOKENS: Final = 4096
STAGING_TOKENS: Final = 2048
MEMCPY_ROWS: Final = 384
BUSY_CYCLES: Final = 300_000
WARM: Final = 10
MATRIX: Final = 4096
PRODUCTS: Final = 8
STEP_ROUNDS: Final = 60
STEP_TOKENS: Final = (64, 256, 1024)


@dataclass
class Series:
    """One contender at one number of tokens; microseconds on the device and, of the call itself, on the host."""

    contender: str
    tokens: int
    device_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    wall: bool = False
    """Times are of the host's clock, since part of the work is the host's."""


@dataclass(frozen=True, slots=True)
class Step:
    """Medians in microseconds: products of matrices, a Prefetcher's gathers for two layers, and both together."""

    tokens: int
    work_us: float
    gathers_us: float
    both_us: float

    @property
    def growth(self) -> float:
        """How much longer the work takes with the gathers beside it, as a share of what they take alone."""
        return (self.both_us - self.work_us) / self.gathers_us


@dataclass
class Outcome:
    """All series, what could not be measured and why, and what the GPU is."""

    series: list[Series]
    heads: int
    absent: dict[str, str]
    gpu: str
    registration_s: float
    hot_rows: int
    hot_bytes: int
    hot_share: dict[int, float]
    mix: dict[str, Any]
    """The shares that were measured, by contender."""

    steps: list[Step]
    cores_burnt: dict[int, float]
    """CPU time of the team and the poller, over the time of the rounds, by tokens."""


def team_seconds() -> float:
    """Give the CPU time that threads of ours have used in this process."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        name, times = (task / "stat").read_text().rpartition(")")[::2]
        if "(engramdax" in name:
            ticks += sum(map(int, times.split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def torch_module() -> Any:
    """Give torch, whose streams, events and peers the benchmark needs."""
    try:
        import torch  # noqa: PLC0415  # a peer, never a dependency
    except ImportError:
        raise EngramdaxError("PyTorch is not installed", remedy="pip install torch") from None
    if not torch.cuda.is_available():
        raise CudaError("PyTorch sees no CUDA device", remedy="check nvidia-smi")
    return torch


class Contest:
    """A table, and everybody who can gather from it: `heads` rows a token."""

    def __init__(
        self, table: Table, draw: Callable[[int], Any], *, heads: int, peers: Path | None, hot: str | None
    ) -> None:
        self.torch = torch_module()
        self.table = table
        self._draw = draw
        start = time.perf_counter()
        self.direct = table.cuda(path="direct")
        self.registration_s = time.perf_counter() - start
        self.hot = table.cuda(hot=hot, path="direct") if hot else None
        self._hot_budget = hot
        self.mixed: CudaTable | None = None
        self.hot_mixed: CudaTable | None = None
        self.absent: dict[str, str] = {}
        self.heads = heads
        self.cores_burnt: dict[int, float] = {}
        self._float8 = table.row_bytes == DIM + SCALES
        # Both engines' kernels know float8 rows alone.
        self._sglang = self._peer("sglang", lambda: sglang_gather(peers)) if self._float8 else None
        self._vllm = self._peer("vllm", lambda: VllmLookup(peers)) if self._float8 else None

    def _peer(self, name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (EngramdaxError, ImportError, OSError) as e:
            self.absent[name] = str(e)
            return None

    def open_lanes(self) -> None:
        """Have the CPU team take part from here on: its threads keep awake, which peers on the CPU are spared."""
        self.mixed = self.table.cuda()
        self.hot_mixed = self.table.cuda(hot=self._hot_budget) if self._hot_budget else None

    def run_on_the_host(self, tokens: int, rounds: int) -> list[Series]:
        """Measure those who work on the host, and so by its clock, at one number of tokens."""
        found = [self._index_select(tokens, max(5, rounds // 10))]
        if self._float8 and tokens >= STAGING_TOKENS:
            found.append(self._staging(tokens, max(5, rounds // 10)))
        if tokens * self.heads <= MEMCPY_ROWS:
            found.append(self._copies(tokens, min(rounds, 50)))
        return found

    def run(self, tokens: int, rounds: int) -> list[Series]:
        """Measure those who work on the device at one number of tokens."""
        torch = self.torch
        rows = tokens * self.heads
        ids = torch.empty((tokens, self.heads), dtype=torch.int32, device="cuda")
        wide = torch.empty(rows, dtype=torch.int64, device="cuda")
        calls = self._float8_calls(ids, wide) if self._float8 else self._raw_calls(ids)
        series = {name: Series(name, tokens) for name in calls}
        events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in calls]
        burnt, started = team_seconds(), time.perf_counter()
        for round_ in range(-WARM, rounds):
            for (name, call), (begin, end) in zip(calls.items(), events, strict=True):
                ids.copy_(self._draw(tokens))
                wide.copy_(ids.view(-1))
                torch.cuda.synchronize()
                torch.cuda._sleep(BUSY_CYCLES)  # noqa: SLF001 - what torch's own benchmarks use
                begin.record()
                start = time.perf_counter_ns()
                call()
                host = time.perf_counter_ns() - start
                end.record()
                torch.cuda.synchronize()
                if round_ >= 0:
                    series[name].device_us.append(begin.elapsed_time(end) * 1e3)
                    series[name].host_us.append(host / 1e3)
        self.cores_burnt[tokens] = (team_seconds() - burnt) / (time.perf_counter() - started)
        return list(series.values())

    def _ours(self, ids: Any, out: Any, form: Format) -> dict[str, Callable[[], Any]]:
        torch, direct, hot = self.torch, self.direct, self.hot
        calls: dict[str, Callable[[], Any]] = {
            "engramdax direct": lambda: direct.gather(ids, out, format=form),
            "engramdax direct, prepared": direct.gatherer(ids, out, format=form),
        }
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            direct.gather(ids, out, format=form)
        calls["engramdax direct, graph"] = graph.replay
        if hot is not None:
            calls["engramdax hot"] = lambda: hot.gather(ids, out, format=form)
        for name, cuda in (("mix", self.mixed), ("hot, mix", self.hot_mixed)):
            if cuda is not None and cuda.lane is not None:
                calls |= self._mixed(f"engramdax {name}", cuda, ids, out, form)
        return calls

    def _mixed(self, name: str, cuda: CudaTable, ids: Any, out: Any, form: Format) -> dict[str, Callable[[], Any]]:
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            cuda.gather(ids, out, format=form)
        return {name: lambda: cuda.gather(ids, out, format=form), f"{name}, graph": graph.replay}

    def _raw_calls(self, ids: Any) -> dict[str, Callable[[], Any]]:
        out = self.torch.empty((*ids.shape, self.table.row_bytes), dtype=self.torch.uint8, device="cuda")
        return self._ours(ids, out, "raw")

    def _float8_calls(self, ids: Any, wide: Any) -> dict[str, Callable[[], Any]]:
        torch, sglang, vllm = self.torch, self._sglang, self._vllm
        rows = self.table.rows
        out = torch.empty((*ids.shape, DIM), dtype=torch.bfloat16, device="cuda")
        calls = self._ours(ids, out, "bf16")
        # The same bytes as two arrays: values in front, scales behind.
        values = self.direct.device_ptr
        scales = values + rows * DIM
        if sglang:
            flat, block = out.view(-1, DIM), DIM // SCALES
            calls["sglang"] = lambda: sglang(values, scales, wide, flat, DIM, block)
            calls["sglang sorted"] = lambda: sglang(values, scales, wide, flat, DIM, block, sort_ids=True)
        if vllm:
            table = (
                _tensor(torch, values, (rows, DIM)).view(torch.float8_e4m3fn),
                _tensor(torch, scales, (rows, SCALES)),
            )
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            calls["vllm"] = lambda: vllm(table, ids, out, rows=rows, multiprocessors=sms)
        return calls

    def beside_work(self, tokens: int, rounds: int) -> Step | None:
        """Measure how much rows of two layers, fetched beside products of matrices, lengthen these."""
        if self.mixed is None:
            return None
        torch = self.torch
        ids = torch.empty((tokens, 2, self.heads), dtype=torch.int32, device="cuda")
        matrix = torch.randn((MATRIX, MATRIX), dtype=torch.bfloat16, device="cuda")
        product = torch.empty_like(matrix)
        prefetcher = Prefetcher(
            (self.mixed, self.mixed), tokens, columns=self.heads, format="bf16" if self._float8 else "raw"
        )

        def gathers() -> None:
            prefetcher.start(ids)
            prefetcher.finish()

        def work() -> None:
            for _ in range(PRODUCTS):
                torch.mm(matrix, matrix, out=product)

        def both() -> None:
            prefetcher.start(ids)
            work()
            prefetcher.finish()

        calls = {"gathers": gathers, "work": work, "both": both}
        times: dict[str, list[float]] = {name: [] for name in calls}
        begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
        for round_ in range(-WARM, rounds):
            for name, call in calls.items():
                ids.view(2, tokens, self.heads).copy_(self._draw(2 * tokens).view(2, tokens, self.heads))
                torch.cuda.synchronize()
                torch.cuda._sleep(BUSY_CYCLES)  # noqa: SLF001
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                if round_ >= 0:
                    times[name].append(begin.elapsed_time(end) * 1e3)
        prefetcher.close()
        median = {name: float(np.median(found)) for name, found in times.items()}
        return Step(tokens, median["work"], median["gathers"], median["both"])

    def _index_select(self, tokens: int, rounds: int) -> Series:
        """torch.index_select of whole rows into a pinned buffer, a copy to the GPU, and dequantising there.

        The ids come from the device, as they do for everybody else: a copy to the host and a wait.
        """
        torch = self.torch
        rows = self._pool_tensor().view(-1, self.table.row_bytes)
        staging = torch.empty((tokens * self.heads, self.table.row_bytes), dtype=torch.uint8, pin_memory=True)
        packed = torch.empty(staging.shape, dtype=torch.uint8, device="cuda")
        out = torch.empty((packed.shape[0], DIM), dtype=torch.bfloat16, device="cuda")

        def call(ids: Any) -> None:
            torch.index_select(rows, 0, ids.cpu(), out=staging)
            packed.copy_(staging, non_blocking=True)
            if self._float8:
                dequantise(torch, packed[:, :DIM], packed[:, DIM:], out)

        return self._walled("torch index_select, copy", tokens, rounds, call, ids_on_host=False)

    def _walled(
        self, name: str, tokens: int, rounds: int, call: Callable[[Any], None], *, ids_on_host: bool = True
    ) -> Series:
        """Time calls by the host's clock, from ids to rows on the GPU."""
        torch = self.torch
        series = Series(name, tokens, wall=True)
        for round_ in range(-2, rounds):
            ids = self._draw(tokens).view(-1).long()
            ids = ids.cpu() if ids_on_host else ids
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            call(ids)
            torch.cuda.synchronize()
            if round_ >= 0:
                series.device_us.append((time.perf_counter_ns() - start) / 1e3)
        return series

    def _staging(self, tokens: int, rounds: int) -> Series:
        torch = self.torch
        whole = self._pool_tensor()
        values = whole[: self.table.rows * DIM].view(-1, DIM)
        scales = whole[self.table.rows * DIM :].view(-1, SCALES)
        stage = SglangStaging(torch, values, scales)
        out = torch.empty((tokens * self.heads, DIM), dtype=torch.bfloat16, device="cuda")
        return self._walled("sglang host staging", tokens, rounds, lambda ids: stage(ids, out))

    def _copies(self, tokens: int, rounds: int) -> Series:
        """One cudaMemcpyAsync per row, into a buffer of packed rows."""
        torch = self.torch
        from cuda.bindings import driver  # noqa: PLC0415  # optional

        width, base = self.table.row_bytes, self.direct.device_ptr
        out = torch.empty((tokens * self.heads, width), dtype=torch.uint8, device="cuda")
        stream, to = torch.cuda.current_stream().cuda_stream, out.data_ptr()

        def call(ids: Any) -> None:
            for i, row in enumerate(ids.tolist()):
                driver.cuMemcpyHtoDAsync(to + i * width, base + row * width, width, stream)

        return self._walled("a copy per row", tokens, rounds, call)

    def _pool_tensor(self) -> Any:
        """Give the table's bytes as a tensor on the host."""
        entry = self.table.entry
        view = np.frombuffer(self.table.attachment.mapping.view(entry.extent.offset, entry.bytes), np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is read-only: nobody writes to it
            return self.torch.from_numpy(view)

    def seams(self) -> int:
        """Give how many bytes of rows around the seams of the registration, and of random rows, are wrong."""
        torch = self.torch
        chunk = self.direct.chunk_bytes
        ids = [np.random.default_rng(0).integers(0, self.table.rows, 4096)]
        for seam in range(chunk, self.table.nbytes, chunk):
            row = seam // self.table.row_bytes
            ids.append(np.arange(row - 64, min(row + 64, self.table.rows)))
        wanted = np.concatenate(ids)
        found = self.direct.gather(torch.from_numpy(wanted).cuda()).cpu().numpy()
        return int((found != self.table.gather(wanted).view(np.uint8).reshape(found.shape)).sum())

    def compare(self, small: Table) -> int:
        """Give how many values of a small table differ between our bf16 and the peers', bit for bit."""
        torch = self.torch
        rows = np.frombuffer(
            small.attachment.mapping.view(small.entry.extent.offset, small.entry.bytes), np.uint8
        ).reshape(-1, DIM + SCALES)
        weight = torch.from_numpy(rows[:, :DIM].copy()).cuda()
        scale = torch.from_numpy(rows[:, DIM:].copy()).cuda()
        ids = torch.randint(
            -1, small.rows + 1, (small.rows // self.heads, self.heads), device="cuda", dtype=torch.int32
        )
        ours = small.cuda().gather(ids, format="bf16").view(torch.int16)
        wrong = 0
        if self._sglang:
            theirs = torch.empty((ids.numel(), DIM), dtype=torch.bfloat16, device="cuda")
            self._sglang(
                weight.data_ptr(), scale.data_ptr(), ids.view(-1).long(), theirs, DIM, DIM // SCALES, 0, small.rows
            )
            wrong += int((theirs.view(torch.int16) != ours.view(-1, DIM)).sum())
        if self._vllm:
            theirs = torch.empty((*ids.shape, DIM), dtype=torch.bfloat16, device="cuda")
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            self._vllm((weight.view(torch.float8_e4m3fn), scale), ids, theirs, rows=small.rows, multiprocessors=sms)
            # vLLM reads exponent byte 0 as zero, where SGLang and the format say 2**-127.
            zero = (scale[ids.clamp(0, small.rows - 1).long()] == 0).repeat_interleave(DIM // SCALES, dim=-1)
            wrong += int(((theirs.view(torch.int16) != ours) & ~zero).sum())
        return wrong


def _tensor(torch: Any, address: int, shape: tuple[int, ...]) -> Any:
    """Give registered host memory as a tensor that kernels take."""
    return torch.as_tensor(View(address, shape, "|u1"), device="cuda")
