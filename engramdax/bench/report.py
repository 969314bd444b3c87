# SPDX-License-Identifier: Apache-2.0
"""What a contest gave, as figures, as tables for people and as JSON."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from engramdax.bench.contenders import LABELS, OURS
from engramdax.version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.bench.contest import Case, Outcome, Plan, Series


@dataclass(frozen=True, slots=True)
class Figure:
    """One contender in one case. `times_ours` is its median by that of `Table.gather`, NaN without one."""

    case: Case
    contender: str
    calls: int
    median_us: float
    p99_us: float
    gb_per_s: float
    """Bytes of rows that were copied, in 10**9."""
    times_ours: float
    detail: str


def figures(outcome: Outcome) -> list[Figure]:
    """Give a figure for each series, in their order."""
    ours = {s.case: float(np.median(s.nanoseconds)) for s in outcome.series if s.contender == OURS}
    return [_figure(series, ours.get(series.case, float("nan"))) for series in outcome.series]


def _figure(series: Series, ours: float) -> Figure:
    median = float(np.median(series.nanoseconds))
    return Figure(
        case=series.case,
        contender=series.contender,
        calls=series.nanoseconds.size,
        median_us=median / 1e3,
        p99_us=float(np.percentile(series.nanoseconds, 99)) / 1e3,
        gb_per_s=series.case.rows * series.case.row_bytes / median,
        times_ours=median / ours,
        detail=series.detail,
    )


COLUMNS = (">ROWS", "CONTENDER", ">MEDIAN US", ">P99 US", ">GB/S", ">TIMES OURS", "")
BUSY_COLUMNS = ("CALLS", "CONTENDER", ">MEDIAN US", ">P99 US", ">P99 / MEDIAN", "")


def grids(outcome: Outcome) -> Iterator[tuple[str, tuple[str, ...], list[tuple[str, ...]]]]:
    """Give a heading, columns and lines for each kind of pool, row and ids."""

    def kind(figure: Figure) -> tuple[str, int, str, bool]:
        case = figure.case
        return case.pages, case.row_bytes, case.ids, case.busy

    for (pages, row_bytes, ids, busy), group in groupby(figures(outcome), kind):
        heading = f"rows of {row_bytes} bytes, {pages} pages, {ids} ids"
        if busy:
            yield f"{heading}, one core busy", BUSY_COLUMNS, [_busy_line(figure) for figure in group]
        else:
            yield heading, COLUMNS, [_line(figure) for figure in group]


def _line(f: Figure) -> tuple[str, ...]:
    ratio = "" if np.isnan(f.times_ours) else f"{f.times_ours:.2f}"
    times = f"{f.median_us:.2f}", f"{f.p99_us:.2f}", f"{f.gb_per_s:.2f}"
    return str(f.case.rows), LABELS[f.contender], *times, ratio, f.detail


def _busy_line(f: Figure) -> tuple[str, ...]:
    calls = f"{f.case.gap * 1e6:.0f} us apart" if f.case.gap else "back to back"
    times = f"{f.median_us:.2f}", f"{f.p99_us:.2f}", f"{f.p99_us / f.median_us:.2f}"
    return calls, LABELS[f.contender], *times, f.detail


def as_json(plan: Plan, outcome: Outcome) -> dict[str, Any]:
    """Give all of it as JSON values; `absent` maps what could not be measured to why."""
    return {
        "engramdax": __version__,
        "machine": {
            "cpu": _cpu_model(),
            "cpus": len(os.sched_getaffinity(0)),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "table_bytes": plan.size,
        "rounds": plan.rounds,
        "others_cpu_share": round(outcome.others, 3),
        "versions": outcome.versions,
        "absent": outcome.absent,
        "results": [_result(figure) for figure in figures(outcome)],
    }


def _result(f: Figure) -> dict[str, Any]:
    return {
        "pages": f.case.pages,
        "row_bytes": f.case.row_bytes,
        "rows": f.case.rows,
        "ids": f.case.ids,
        "gap_us": round(f.case.gap * 1e6),
        "busy_core": f.case.busy,
        "contender": f.contender,
        "calls": f.calls,
        "median_us": f.median_us,
        "p99_us": f.p99_us,
        "gb_per_s": f.gb_per_s,
        "times_ours": None if np.isnan(f.times_ours) else f.times_ours,
        "detail": f.detail,
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
