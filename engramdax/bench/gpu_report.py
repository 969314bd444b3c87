# SPDX-License-Identifier: Apache-2.0
"""The GPU contest from plan to picture: the pool, the rounds, and what is printed of them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.bench.gpu import (
    LARGE_ROUNDS,
    LARGE_TOKENS,
    PRODUCTS,
    ROUNDS,
    STEP_ROUNDS,
    STEP_TOKENS,
    WARM,
    Contest,
    torch_module,
)
from engramdax.bench.gpu_outcome import Outcome, Series
from engramdax.bench.pattern import PatternSource
from engramdax.bench.scratch import TABLE, scratch_pool
from engramdax.errors import CudaError, ParameterError
from engramdax.format.layout import V41_ROW, RowLayout
from engramdax.ngram import Hasher, Layout
from engramdax.ngram.config import read_layout
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.pool import Pool
from engramdax.pool.writer import Writer
from engramdax.trace.counts import hot_rows
from engramdax.trace.hotlist import HotList
from engramdax.trace.tokens import Trace, read_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

TOKENS: Final = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 8192)
WINDOWS_US: Final = {"layer 2 of 64": 56.0, "layer 15 of 64": 780.0}
"""What the layers before leave in Qwen3-32B at 3.6 ms a step."""

SPARE: Final = 1 << 30
"""Room for the small table and a hot list."""

SMALL_ROWS: Final = 24_000
PROFILED: Final = 0.9
"""Share of a trace that the hot list is made of; the rest is what is gathered."""

ROWS: Final = {"v41": (V41_ROW, 24), "paper": (RowLayout.packed(("row", "bfloat16", 160)), 16)}
"""What a row is and how many of them a token has: DeepSeek-V4.1's, and the paper's of 320 bytes."""

OURS: Final = "engramdax"
LAYER: Final = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for; see `engramdax bench gpu --help`."""

    row: str
    tokens: Sequence[int]
    pages: str
    size: int
    trace: Path | None
    config: Path | None
    hot: str | None
    rounds: int | None
    peers: Path | None
    pause_s: float


class FreshIds:
    """Where calls have their ids from: a stretch of a trace, [*, heads], or, without one, uniform ones below `rows`.

    A call has those of successive tokens from any place in the stretch. Taken from its begin on, few rounds would see
    the first documents alone, which differ from the others, and contenders who take turns might have different parts.
    """

    def __init__(self, torch: Any, rows: int, heads: int, stretch: np.ndarray[Any, Any] | None) -> None:
        self._torch = torch
        self._rows = rows
        self._heads = heads
        self._stretch = None if stretch is None else torch.from_numpy(stretch.astype(np.int32)).cuda()
        self._random = np.random.default_rng(0)

    def __call__(self, tokens: int) -> Any:
        """Give ids int32 [tokens, heads] on the device; ParameterError where the trace has fewer tokens."""
        if self._stretch is None:
            return self._torch.randint(0, self._rows, (tokens, self._heads), dtype=self._torch.int32, device="cuda")
        if tokens > self._stretch.shape[0]:
            raise ParameterError(f"the trace has {self._stretch.shape[0]} tokens to gather", remedy="give a longer one")
        at = int(self._random.integers(0, self._stretch.shape[0] - tokens + 1))
        return self._stretch[at : at + tokens]


def hold(plan: Plan, progress: Callable[[str], None]) -> Outcome:
    """Make the pool, measure everybody, and remove it again."""
    torch = torch_module()
    trace = None if plan.trace is None else read_traces([plan.trace])
    layout = None if trace is None else _layout(plan, trace)
    row, heads = ROWS[plan.row]
    rows = layout.rows(LAYER) if layout else plan.size // row.row_bytes
    progress(f"making a table of {rows} rows")
    table_bytes = rows * row.row_bytes
    with scratch_pool(plan.pages, table_bytes, row.row_bytes, layout=row, spare=SPARE) as scratch:
        stretch, shares = None, {}
        with Writer(scratch.path) as writer:
            load_tables(writer, [Load(PatternSource(SMALL_ROWS, V41_ROW.row_bytes, layout=V41_ROW), "small")])
            if trace is not None and layout is not None:
                hasher = Hasher(layout)
                profiled, rest = trace.split(PROFILED)
                if plan.hot:
                    progress("counting the trace")
                    hot = hot_rows(hasher, LAYER, profiled, most=32 << 20, memory=64 << 30)
                    listed = HotList(hot, rows, np.array(layout.head_sizes(LAYER), np.int64))
                    writer.set_hot(TABLE, hot.row_ids, listed.points())
                stretch = hasher(rest.tokens, starts=rest.starts)[:, LAYER]
        with Pool(scratch.path) as pool:
            table, small = pool[TABLE], pool["small"]
        ids = FreshIds(torch, rows, heads, stretch)
        contest = Contest(table, ids, heads=heads, peers=plan.peers, hot=plan.hot, pause_s=plan.pause_s)
        if plan.row == "v41" and (wrong := contest.compare(small)):
            raise CudaError(f"{wrong} values differ from the peers'")
        if wrong := contest.seams():
            raise CudaError(f"{wrong} bytes differ from what the CPU gathers")
        rounds = {n: plan.rounds or (ROUNDS if n < LARGE_TOKENS else LARGE_ROUNDS) for n in plan.tokens}
        contest.pin_copy()
        on_the_host = {}
        for tokens in plan.tokens:
            progress(f"{tokens} tokens, peers on the host")
            on_the_host[tokens] = contest.on_host.run(tokens, rounds[tokens])
        contest.on_host.drop_copy()
        progress("measuring the shares of the mix")
        contest.open_lanes()
        series: list[Series] = []
        for tokens in plan.tokens:
            progress(f"{tokens} tokens")
            before = contest.hot.hits() if contest.hot else 0
            found = contest.run(tokens, rounds[tokens])
            series += found + on_the_host[tokens]
            if contest.hot:
                calls = next(s for s in found if s.contender == f"{OURS} hot")
                turns = len(calls.device_us) + WARM
                asked = turns * (contest.warm_calls(calls.contender) + 1) * tokens * heads
                shares[tokens] = (contest.hot.hits() - before) / asked
        steps = []
        for tokens in (n for n in STEP_TOKENS if n in plan.tokens):
            progress(f"{tokens} tokens beside other work")
            for matrix_rows in PRODUCTS:
                step = contest.beside_work(
                    tokens, min(plan.rounds or STEP_ROUNDS, STEP_ROUNDS), matrix_rows=matrix_rows
                )
                if step:
                    steps.append(step)
        return Outcome(
            series,
            heads,
            contest.absent,
            torch.cuda.get_device_name(0),
            contest.registration_s,
            contest.hot.hot_rows if contest.hot else 0,
            contest.hot.nbytes if contest.hot else 0,
            shares,
            {
                f"{OURS} {name}": asdict(cuda.mix)
                for name, cuda in (("mix", contest.mixed), ("hot, mix", contest.hot_mixed))
                if cuda and cuda.mix
            },
            steps,
            contest.cores_burnt,
            plan.pause_s,
        )


def _layout(plan: Plan, trace: Trace) -> Layout:
    if not trace.compressed:
        raise ParameterError(f"{plan.trace} holds raw token ids", remedy="give a trace of compressed_ids")
    if plan.config is not None:
        return read_layout(plan.config, token_map=None)
    heads = plan.size // V41_ROW.row_bytes // 24
    vocab = max(99_092, int(trace.tokens.max()) + 1)
    return Layout.make(
        layer_ids=[1], max_ngram=4, heads_per_order=8, vocab_size=heads - heads // 100, pad_id=2, compressed_vocab=vocab
    )


def best_peers(outcome: Outcome) -> dict[int, tuple[str, float]]:
    """Give the fastest peer and its median by tokens."""
    best: dict[int, tuple[str, float]] = {}
    for s in outcome.series:
        median = float(np.median(s.device_us))
        if s.peer and not s.contender.startswith(OURS) and median < best.get(s.tokens, ("", np.inf))[1]:
            best[s.tokens] = (s.contender, median)
    return best


def tokens_within(outcome: Outcome, window: float) -> dict[str, float]:
    """Give how many tokens' rows each contender brings within a time, between two measured numbers by a straight line.

    0 where the least measured number takes longer; the largest measured number where that is fast enough.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(s.contender for s in outcome.series):
        points = sorted((s.tokens, float(np.median(s.device_us))) for s in outcome.series if s.contender == name)
        found[name] = points[0][0] if points[0][1] <= window else 0
        for (fewer, fast), (more, slow) in pairwise(points):
            if fast <= window:
                found[name] = more if slow <= window else fewer + (more - fewer) * (window - fast) / (slow - fast)
    return found


COLUMNS: Final = (
    ">TOKENS",
    ">ROWS",
    "CONTENDER",
    ">MEDIAN US",
    ">P90 US",
    ">P99 US",
    ">HOST US",
    ">M ROWS/S",
    ">OF BEST PEER",
    "",
)


def heading(outcome: Outcome) -> list[str]:
    """Give the lines above the table."""
    first = [f"{outcome.gpu}; registered in {outcome.registration_s:.1f} s"]
    if outcome.pause_s:
        first.append(f"{1e3 * outcome.pause_s:g} ms of nothing before each call")
    if outcome.hot_rows:
        first.append(f"{outcome.hot_rows} hot rows in {outcome.hot_bytes} bytes of GPU memory")
    for name, mix in outcome.mix.items():
        shares = f"{mix['first_local']} rows and {mix['local_of_64']} of each 64 that follow direct"
        first.append(f"{name}: from {mix['from_rows']} rows on, {shares}; found in {mix['seconds']:.1f} s")
    if outcome.mix:
        burnt = ", ".join(f"{cores:.1f} at {tokens}" for tokens, cores in outcome.cores_burnt.items())
        first.append(f"cores of the CPU used by the team while measuring, by tokens: {burnt}")
    first += [
        f"{s.tokens} tokens, two layers beside products of matrices of {s.matrix_rows} rows: "
        f"alone {s.gathers_us:.0f} us, beside them {s.both_us - s.work_us:.0f} us more than {s.work_us:.0f}: "
        f"{s.growth:.0%}"
        for s in outcome.steps
    ]
    for name, window in WINDOWS_US.items():
        within = {who: tokens for who, tokens in tokens_within(outcome, window).items() if tokens}
        if within:
            listed = ", ".join(f"{who} {tokens:.0f}" for who, tokens in sorted(within.items(), key=lambda w: -w[1]))
            first.append(f"tokens within {window:.0f} us ({name}): {listed}")
    return first + [f"absent: {name}: {why}" for name, why in outcome.absent.items()]


def lines(outcome: Outcome) -> list[tuple[str, ...]]:
    """Give a line for each series."""
    best = best_peers(outcome)
    return [_line(s, outcome.heads, best.get(s.tokens), outcome.hot_share.get(s.tokens)) for s in outcome.series]


def _line(s: Series, heads: int, best: tuple[str, float] | None, share: float | None) -> tuple[str, ...]:
    median, p90, p99 = (float(np.percentile(s.device_us, q)) for q in (50, 90, 99))
    host = f"{np.median(s.host_us):.1f}" if s.host_us else ""
    notes = ["wall"] if s.wall else []
    if s.contender == f"{OURS} hot" and share is not None:
        notes.append(f"{share:.1%} served hot")
    return (
        str(s.tokens),
        str(s.tokens * heads),
        s.contender,
        f"{median:.1f}",
        f"{p90:.1f}",
        f"{p99:.1f}",
        host,
        f"{s.tokens * heads / median:.1f}",
        f"{median / best[1]:.2f}" if best else "",
        ", ".join(notes),
    )


def as_json(outcome: Outcome) -> dict[str, Any]:
    """Give all of it as JSON values."""
    best = best_peers(outcome)
    return {
        "gpu": outcome.gpu,
        "registration_s": outcome.registration_s,
        "hot_rows": outcome.hot_rows,
        "hot_bytes": outcome.hot_bytes,
        "absent": outcome.absent,
        "mix": outcome.mix,
        "cores_burnt": outcome.cores_burnt,
        "pause_s": outcome.pause_s,
        "steps": [asdict(s) | {"growth": s.growth} for s in outcome.steps],
        "tokens_within": {f"{window:.0f} us": tokens_within(outcome, window) for window in WINDOWS_US.values()},
        "results": [
            {
                "tokens": s.tokens,
                "rows": s.tokens * outcome.heads,
                "contender": s.contender,
                "wall": s.wall,
                "peer": s.peer and not s.contender.startswith(OURS),
                "calls": len(s.device_us),
                "median_us": float(np.median(s.device_us)),
                "p90_us": float(np.percentile(s.device_us, 90)),
                "p99_us": float(np.percentile(s.device_us, 99)),
                "host_us": float(np.median(s.host_us)) if s.host_us else None,
                "of_best_peer": float(np.median(s.device_us)) / best[s.tokens][1] if s.tokens in best else None,
                "hot_share": outcome.hot_share.get(s.tokens) if s.contender == f"{OURS} hot" else None,
            }
            for s in outcome.series
        ],
    }


def draw(outcome: Outcome, path: Path) -> None:
    """Draw medians against tokens, and the windows within which rows have to be there."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # optional; the caller has checked

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name in dict.fromkeys(s.contender for s in outcome.series):
        points = [(s.tokens, float(np.median(s.device_us))) for s in outcome.series if s.contender == name]
        axes.plot(*zip(*points, strict=True), "o-", label=name)
    for name, window in WINDOWS_US.items():
        axes.axhline(window, linestyle="--", linewidth=1, color="grey")
        axes.annotate(f"{window:.0f} us: {name}", (1, window), va="bottom", fontsize="small")
    axes.set(xscale="log", yscale="log", xlabel="tokens, 24 rows each", ylabel="us")
    axes.legend(fontsize="small")
    figure.savefig(path)
