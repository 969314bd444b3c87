# SPDX-License-Identifier: Apache-2.0
"""How fast rows come out of a pool now, against what the same pool gave this host before."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from engramdax.errors import EngramdaxError
from engramdax.health.finding import Finding, critical, ok, warning
from engramdax.health.history import Speed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.health.subject import Subject
    from engramdax.table import Table

ROWS: Final = 4096
REPEATS: Final = 7
SINGLES: Final = 256
SLOWER: Final = 2.0
"""Speeds of a busy host differ by tens of per cent from look to look; half the usual is something else."""

LEAST_HISTORY: Final = 3


def probe(subject: Subject, found: list[Speed]) -> Iterator[Finding]:
    """Gather some thousand random rows of the largest table, and some alone; the measurement is left in `found`."""
    if subject.pool is None:
        return
    tables = [subject.pool.directory.require(name, subject.pool.backing.path) for name in subject.pool.tables]
    if not tables:
        return
    table = subject.pool[max(tables, key=lambda t: t.bytes).name]
    try:
        speed = measure(table)
    except EngramdaxError as e:
        yield critical("pool.bandwidth", f"table {table.name}: {e.problem}", object=table.name, remedy=e.remedy)
        return
    before = list(subject.history.speeds)
    usual = statistics.median(s.bandwidth for s in before) if len(before) >= LEAST_HISTORY else None
    if usual is not None and speed.bandwidth * SLOWER < usual:
        again = measure(table)  # a moment's noise is none of the pool's
        speed = max(speed, again, key=lambda s: s.bandwidth)
    found.append(speed)
    subject.history.speeds.append(speed)
    text = f"{speed.bandwidth / 1e9:.3g} GB/s, {ROWS} rows of {table.row_bytes} bytes at once"
    slow = usual is not None and speed.bandwidth * SLOWER < usual
    text += _usual(None if usual is None else f"{usual / 1e9:.3g} GB/s")
    yield _finding("pool.bandwidth", text, speed.bandwidth, "bytes", slow=slow)
    usual = statistics.median(s.latency for s in before) if len(before) >= LEAST_HISTORY else None
    text = f"{speed.latency * 1e6:.3g} us for one row"
    slow = usual is not None and speed.latency > usual * SLOWER
    text += _usual(None if usual is None else f"{usual * 1e6:.3g} us")
    yield _finding("pool.latency", text, speed.latency, "seconds", slow=slow)


def _usual(text: str | None) -> str:
    return "; nothing to compare with yet" if text is None else f"; {text} is usual here"


def _finding(name: str, text: str, figure: float, unit: str, *, slow: bool) -> Finding:
    if slow:
        remedy = "see what else uses the memory and the CPUs; look at the link (pcie.link)"
        return warning(name, text, figure=figure, unit=unit, remedy=remedy)
    return ok(name, text, figure=figure, unit=unit)


def measure(table: Table) -> Speed:
    """Measure the fastest of some gathers of many rows by all CPUs, and the median of gathers of one row each."""
    random = np.random.default_rng()
    ids = random.integers(0, table.rows, (REPEATS, ROWS), np.int64)
    out = np.empty((ROWS, table.row_bytes), np.uint8)
    table.gather(ids[0], out=out)  # threads are started, pages mapped
    many = []
    for some in ids:
        begin = time.perf_counter()
        table.gather(some, out=out)
        many.append(time.perf_counter() - begin)
    alone = []
    for one in random.integers(0, table.rows, (SINGLES, 1), np.int64):
        begin = time.perf_counter()
        table.gather(one, out=out[:1])
        alone.append(time.perf_counter() - begin)
    bandwidth = ROWS * table.row_bytes / min(many)
    return Speed(time.time(), bandwidth, statistics.median(alone))
