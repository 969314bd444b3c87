# SPDX-License-Identifier: Apache-2.0
"""The contest on the GPU: rows out of one registered table, by our kernels and by serving engines' own.

All contenders run in one process and in turn, with ids of the same kind, fresh for each call and on the device before
the clock starts. A turn is a call that does not count, and the one that does; where the CPU has a part in it, as many
that do not count as the peers on the host have, who are measured in loops of their own: each finds the caches and
threads of the CPU as its own calls left them. With a pause before each call they are as the pause left them, for all
contenders, and a turn is one call. Device time is taken by events around the call, with the device kept busy in front
of the first, so that launch costs of the host do not count; they are timed by themselves. Peers read the very memory of
our table, as two arrays: their bytes are then none of ours, so bytes are compared on a small table that is held both
ways.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.bench.gpu_host_peers import OF_PINNED_MEMORY, HostPeers
from engramdax.bench.gpu_host_peers import WARM as HOST_WARM
from engramdax.bench.gpu_outcome import Series, Step
from engramdax.bench.gpu_peers import DIM, SCALES, VllmLookup, sglang_gather
from engramdax.cuda.memory import View
from engramdax.cuda.prefetcher import Prefetcher
from engramdax.errors import CudaError, EngramdaxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.cuda.formats import Format
    from engramdax.cuda.table import CudaTable
    from engramdax.table import Table

ROUNDS: Final = 500
LARGE_TOKENS: Final = 4096
LARGE_ROUNDS: Final = 60
"""From LARGE_TOKENS tokens on."""

WARM: Final = 10
"""Rounds that are not counted."""

BUSY_CYCLES: Final = 300_000
"""That the device spins for while the host launches what is timed."""

STEP_TOKENS: Final = (64, 256, 1024)
STEP_ROUNDS: Final = 40
STEP_BUSY_CYCLES: Final = 2_000_000
"""As BUSY_CYCLES: the host launches some twenty things for a step."""

PRODUCTS: Final = {4096: 8, 8192: 2}
"""By the rows of the square matrices, their products in a step beside which rows are fetched. Products are made of
tiles that fill the multiprocessors a few times over, and take a whole turn longer where some of these are held: of 4
turns for 4,096 rows, of 16 for 8,192."""


def team_seconds() -> float:
    """Give the CPU time that threads of ours have used in this process."""
    ticks = 0
    for task in Path("/proc/self/task").iterdir():
        try:
            name, times = (task / "stat").read_text().rpartition(")")[::2]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
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
    """A table, and everybody who can gather from it: `heads` rows a token.

    draw: gives fresh ids int32 [tokens, heads] on the device. pause_s: how long nothing is done before each call that
    counts.
    """

    def __init__(
        self,
        table: Table,
        draw: Callable[[int], Any],
        *,
        heads: int,
        peers: Path | None,
        hot: str | None,
        pause_s: float,
    ) -> None:
        self.torch = torch_module()
        self.table = table
        self._draw = draw
        self._pause_s = pause_s
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
        self.on_host = HostPeers(
            self.torch, table, draw, heads=heads, device_ptr=self.direct.device_ptr, pause_s=pause_s
        )
        # Both engines' kernels know float8 rows alone.
        self._sglang = self._peer("sglang", lambda: sglang_gather(peers)) if self._float8 else None
        self._vllm = self._peer("vllm", lambda: VllmLookup(peers)) if self._float8 else None

    def _peer(self, name: str, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (EngramdaxError, ImportError, OSError) as e:
            self.absent[name] = str(e)
            return None

    def pin_copy(self) -> None:
        """Give the peers on the host a copy of the table of their own, where there is room for one."""
        try:
            self.on_host.pin_copy()
        except EngramdaxError as e:
            self.absent[OF_PINNED_MEMORY] = str(e)

    def open_lanes(self) -> None:
        """Have the CPU team take part from here on: its threads keep awake, which peers on the CPU are spared."""
        self.mixed = self.table.cuda()
        self.hot_mixed = self.table.cuda(hot=self._hot_budget) if self._hot_budget else None

    def run(self, tokens: int, rounds: int) -> list[Series]:
        """Measure those who work on the device at one number of tokens."""
        torch = self.torch
        rows = tokens * self.heads
        ids = torch.empty((tokens, self.heads), dtype=torch.int32, device="cuda")
        wide = torch.empty(rows, dtype=torch.int64, device="cuda")
        calls = self._float8_calls(ids, wide) if self._float8 else self._raw_calls(ids)
        series = {name: Series(name, tokens) for name in calls}
        events = [(torch.cuda.Event(True), torch.cuda.Event(True)) for _ in calls]

        def fresh_ids() -> None:
            ids.copy_(self._draw(tokens))
            wide.copy_(ids.view(-1))

        burnt, started = team_seconds(), time.perf_counter()
        for round_ in range(-WARM, rounds):
            for (name, call), (begin, end) in zip(calls.items(), events, strict=True):
                for _ in range(self.warm_calls(name)):
                    fresh_ids()
                    call()
                fresh_ids()
                device, host = self._timed(call, begin, end)
                if round_ >= 0:
                    series[name].device_us.append(device)
                    series[name].host_us.append(host)
        self.cores_burnt[tokens] = (team_seconds() - burnt) / (time.perf_counter() - started)
        return list(series.values())

    def warm_calls(self, name: str) -> int:
        """Give how many calls of a contender in each round of `run` do not count."""
        if self._pause_s:
            return 0
        return HOST_WARM if "mix" in name else 1  # the CPU has a part in those

    def _timed(self, call: Callable[[], Any], begin: Any, end: Any, *, busy: int = BUSY_CYCLES) -> tuple[float, float]:
        """Give the microseconds of a call on the device, and those that it took to launch."""
        cuda = self.torch.cuda
        cuda.synchronize()
        time.sleep(self._pause_s)
        cuda._sleep(busy)  # noqa: SLF001 - what torch's own benchmarks use
        begin.record()
        start = time.perf_counter_ns()
        call()
        host = time.perf_counter_ns() - start
        end.record()
        cuda.synchronize()
        return begin.elapsed_time(end) * 1e3, host / 1e3

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

    def beside_work(self, tokens: int, rounds: int, *, matrix_rows: int) -> Step | None:
        """Measure how much rows of two layers, fetched beside products of matrices, lengthen these."""
        if self.mixed is None:
            return None
        torch = self.torch
        ids = torch.empty((tokens, 2, self.heads), dtype=torch.int32, device="cuda")
        matrix = torch.randn((matrix_rows, matrix_rows), dtype=torch.bfloat16, device="cuda")
        product = torch.empty_like(matrix)
        prefetcher = Prefetcher(
            (self.mixed, self.mixed), tokens, columns=self.heads, format="bf16" if self._float8 else "raw"
        )

        def gathers() -> None:
            prefetcher.start(ids)
            prefetcher.finish()

        def work() -> None:
            for _ in range(PRODUCTS[matrix_rows]):
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
                device, _ = self._timed(call, begin, end, busy=STEP_BUSY_CYCLES)
                if round_ >= 0:
                    times[name].append(device)
        prefetcher.close()
        median = {name: float(np.median(found)) for name, found in times.items()}
        return Step(tokens, matrix_rows, median["work"], median["gathers"], median["both"])

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
