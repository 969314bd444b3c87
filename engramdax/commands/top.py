# SPDX-License-Identifier: Apache-2.0
"""`top`: a live view of a pool on this host: tables, readers, what they gather, and health."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from engramdax.activity import Rate, Snapshot
from engramdax.commands.health import SkipOption, check_skipped
from engramdax.commands.output import JsonOption, PoolOption, print_json, printable, size_text
from engramdax.errors import ParameterError
from engramdax.health.finding import State
from engramdax.health.report import Report, examine
from engramdax.host import host_name
from engramdax.pool.records import resolve

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 1
LOOK_SECONDS: Final = 10.0
"""Between two looks at the pool, its readers and its health, which cost half a second of one CPU each."""

MOST_INTERVAL: Final = 2.0
"""Pages tell calls modulo 2^24, and a difference of half of that from a table that came anew: one thread makes so many
in three seconds."""

SLOW_PROBES: Final = ("pool.bandwidth", "table")
"""Left out of these looks: they load the memory that is watched."""

_STYLES: Final = {State.OK: "green", State.WARNING: "yellow", State.CRITICAL: "red", State.UNKNOWN: "magenta"}


@dataclass
class View:
    """What is shown, and how it is found out anew. `report` is exchanged by another thread."""

    target: str | None
    skip: tuple[str, ...]
    snapshot: Snapshot = field(default_factory=Snapshot.take)
    rates: list[Rate] = field(default_factory=list)
    report: Report | None = None
    seconds: float = 0.0
    """What the rates are over."""

    def look(self) -> None:
        """Look at the pool's health, its tables and its readers."""
        self.report = examine(self.target, skip=self.skip)

    def measure(self) -> None:
        """Take the rates since the last time."""
        now = Snapshot.take()
        pool = self.report.pool.uuid if self.report and self.report.pool else None
        self.seconds = now.time - self.snapshot.time
        self.rates = [r for r in now.rates(self.snapshot) if pool is None or str(r.pool) == pool]
        self.snapshot = now


def top(
    *,
    pool: PoolOption = None,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", help="Between two screens, and what rates are over.")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one screen and end.")] = False,
    skip: SkipOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what the processes of this host gather from a pool, and its health, until q or Ctrl-C."""
    if not 0.05 <= interval <= MOST_INTERVAL:
        problem = f"--interval {interval:g} is out of range"
        raise ParameterError(problem, remedy=f"give 0.05 to {MOST_INTERVAL:g} seconds")
    skipped = check_skipped(skip)
    resolve(pool)  # an error now, and not a screen that says so
    view = View(pool, (*SLOW_PROBES, *skipped))
    if once or as_json:
        view.look()
        view.snapshot = Snapshot.take()
        time.sleep(interval)
        view.measure()
        if as_json:
            print_json(to_json(view))
        else:
            # A pipe has no width: lines must not be cut there.
            width = None if sys.stdout.isatty() else 10_000
            Console(width=width, highlight=False, markup=False, soft_wrap=True).print(screen(view))
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ParameterError("this is no terminal to show something on", remedy="say --once, or --json")
    _watch(view, interval)


def _watch(view: View, interval: float) -> None:
    ended = threading.Event()

    def look_again() -> None:
        while True:
            view.look()
            if ended.wait(LOOK_SECONDS):
                return

    threading.Thread(target=look_again, daemon=True).start()
    # The terminal has to be put back, whoever ends this.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(highlight=False, markup=False)
    try:
        with _keys() as pressed, Live(screen(view), console=console, screen=True, auto_refresh=False) as live:
            while not pressed(interval):
                view.measure()
                live.update(screen(view), refresh=True)
    except KeyboardInterrupt:
        pass
    finally:
        ended.set()
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _keys() -> Iterator[Any]:
    """Give a function that waits some seconds, and tells whether q was pressed."""
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _pressed(seconds: float) -> bool:
    end = time.monotonic() + seconds
    while select.select([sys.stdin], [], [], max(end - time.monotonic(), 0))[0]:
        # As bytes: a text stream keeps what it has read ahead, and waits for the rest of a character.
        keys = os.read(sys.stdin.fileno(), 1024)
        if not keys or b"q" in keys:
            return True
    return False


@dataclass(frozen=True, slots=True)
class Total:
    """What is gathered from one load of a table, by all processes of the host."""

    table: str
    load: str
    rows: int | None
    """None of a table that is no more published."""
    row_bytes: int
    hot_rows: int
    hot_share: float | None
    """Of the reads of the trace that the hot list was made of, those that it serves."""
    rows_rate: float
    calls_rate: float
    unreadable: int


def totals(view: View) -> list[Total]:
    """Give the published tables, then those that are only still read."""
    rates: dict[str, list[Rate]] = {}
    for rate in view.rates:
        rates.setdefault(str(rate.load), []).append(rate)
    published = view.report.pool.tables if view.report and view.report.pool else ()
    found = []
    for t in published:
        sums = _sums(rates.pop(t.load, []))
        found.append(Total(t.name, t.load, t.rows, t.bytes // max(t.rows, 1), t.hot_rows, t.hot_share, *sums))
    for load, of in sorted(rates.items()):
        found.append(Total(of[0].table, load, None, of[0].row_bytes, 0, None, *_sums(of)))
    return found


def _sums(rates: Sequence[Rate]) -> tuple[float, float, int]:
    return sum(r.rows for r in rates), sum(r.calls for r in rates), sum(r.unreadable for r in rates)


def screen(view: View) -> Group:
    """Give what a terminal shows."""
    parts: list[Any] = [_head(view), Text()]
    tables = _grid("TABLE", ">ROWS", ">SIZE", ">HOT ROWS", ">SERVE", ">ROWS/S", ">BYTES/S", ">CALLS/S", ">UNREADABLE")
    for t in totals(view):
        tables.add_row(
            printable(t.table),
            "removed" if t.rows is None else str(t.rows),
            "" if t.rows is None else size_text(t.rows * t.row_bytes),
            str(t.hot_rows) if t.hot_rows else "",
            "" if t.hot_share is None else f"{t.hot_share:.0%}",
            *_rate_cells(t.rows_rate, t.row_bytes, t.calls_rate),
            str(t.unreadable) if t.unreadable else "",
        )
    processes = _grid("PID", "COMMAND", ">HOLDS", "TABLE", ">ROWS/S", ">BYTES/S", ">CALLS/S")
    for row in _process_rows(view):
        processes.add_row(*row)
    parts += [tables, Text(), processes, Text(), *_health_lines(view)]
    return Group(*parts)


def _head(view: View) -> Text:
    report, pool = view.report, view.report.pool if view.report else None
    if report is None:
        return Text(f"looking at the pool on {host_name()} ...")
    if pool is None:
        return Text(f"no pool can be read on {report.host}")
    age = max(time.time() - report.time, 0)
    text = Text(
        no_wrap=True,
        text=printable(
            f"pool {pool.name} on {report.host}: {pool.kind}, {size_text(pool.size)}, "
            f"{'' if pool.free is None else f'{size_text(pool.free)} free, '}"
            f"generation {pool.generation}, epoch {pool.epoch}; health "
        ),
    )
    text.append(str(report.state), _STYLES[report.state])
    return text.append(f", seen {age:.0f} s ago")


def _process_rows(view: View) -> Iterator[tuple[str, ...]]:
    readers = {r.pid: r for r in view.report.readers} if view.report else {}
    by_pid: dict[int, list[Rate]] = {}
    for rate in view.rates:
        by_pid.setdefault(rate.pid, []).append(rate)
    for pid in sorted(readers.keys() | by_pid.keys()):
        reader, rates = readers.get(pid), by_pid.get(pid, [])
        command = reader.command if reader else rates[0].command
        holds = str(reader.generation) if reader and reader.generation is not None else ""
        first = (str(pid), printable(command), holds)
        if not rates:
            yield (*first, "", "", "", "")
        for rate in rates:
            yield (*first, printable(rate.table), *_rate_cells(rate.rows, rate.row_bytes, rate.calls))
            first = ("", "", "")


def _health_lines(view: View) -> Iterator[Text]:
    for finding in view.report.findings if view.report else ():
        if finding.state is not State.OK:
            name = f"{finding.probe} of {finding.object}" if finding.object else finding.probe
            line = Text(str(finding.state), _STYLES[finding.state], no_wrap=True)
            yield line.append(printable(f"  {name}: {finding.found}"), "default")


def _grid(*columns: str) -> Grid:
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    return grid


def _rate_cells(rows: float, row_bytes: int, calls: float) -> tuple[str, str, str]:
    return _short(rows), f"{size_text(round(rows * row_bytes))}", _short(calls)


def _short(number: float) -> str:
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"


def to_json(view: View) -> dict[str, Any]:
    """Give the form that `--json` prints."""
    report = view.report
    pool = report.pool if report else None
    return {
        "format": FORMAT,
        "host": host_name(),
        "time": time.time(),
        "seconds": view.seconds,
        "pool": None if pool is None else pool.uuid,
        "state": str(report.state) if report else str(State.UNKNOWN),
        "findings": [f.to_json() for f in report.findings if f.state is not State.OK] if report else [],
        "tables": [
            {
                "name": t.table,
                "load": t.load,
                "rows": t.rows,
                "row_bytes": t.row_bytes,
                "hot_rows": t.hot_rows,
                "hot_share": t.hot_share,
                "rows_per_second": t.rows_rate,
                "bytes_per_second": t.rows_rate * t.row_bytes,
                "calls_per_second": t.calls_rate,
                "unreadable_rows": t.unreadable,
            }
            for t in totals(view)
        ],
        "processes": [
            {
                "pid": r.pid,
                "command": r.command,
                "table": r.table,
                "load": str(r.load),
                "rows_per_second": r.rows,
                "bytes_per_second": r.rows * r.row_bytes,
                "calls_per_second": r.calls,
                "unreadable_rows": r.unreadable,
            }
            for r in view.rates
        ],
        "readers": [
            {"pid": r.pid, "command": r.command, "generation": r.generation} for r in (report.readers if report else ())
        ],
    }


COMMANDS = (top,)
