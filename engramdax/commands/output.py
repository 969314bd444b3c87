# SPDX-License-Identifier: Apache-2.0
"""What commands print: tables for people, JSON for programs, progress for whoever watches a terminal."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table as Grid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PoolOption = Annotated[
    str | None,
    typer.Option("--pool", metavar="POOL", help="Device, path, pool name or uuid [env: ENGRAMDAX_POOL]."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Go on where data would be lost.")]


def print_json(value: Any) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, indent=2) + "\n")


def print_line(text: str) -> None:
    """Print one line: no markup, no wrapping, nothing that is not printable but line ends."""
    sys.stdout.write("\n".join(printable(line) for line in text.split("\n")) + "\n")


def printable(text: str) -> str:
    """Keep what files, pools and arguments say from ending the line or moving the terminal's cursor."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def print_grid(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headings; columns named with a leading '>' are set to the right."""
    grid = Grid(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        grid.add_column(column.lstrip(">"), justify="right" if column.startswith(">") else "left", no_wrap=True)
    for row in rows:
        grid.add_row(*row)
    # A pipe has no width: lines must not be cut there.
    Console(width=None if sys.stdout.isatty() else 10_000, soft_wrap=True, highlight=False, markup=False).print(grid)


def size_text(count: int) -> str:
    """Give a number of bytes in the largest binary unit that keeps it above 1."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def count_text(count: int, noun: str) -> str:
    """Give '1 table', '2 tables'."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@contextmanager
def byte_progress(totals: dict[str, int]) -> Iterator[Callable[[str, int], None]]:
    """Show a bar per name with rate and time left, on stderr and only on a terminal."""
    if not sys.stderr.isatty():
        yield lambda _name, _done: None
        return
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
    with bars:
        tasks = {name: bars.add_task(name, total=total, start=False) for name, total in totals.items()}
        started: set[str] = set()

        def update(name: str, done: int) -> None:
            if name not in started:
                started.add(name)
                bars.start_task(tasks[name])
            bars.update(tasks[name], completed=done)

        yield update
