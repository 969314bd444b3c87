# SPDX-License-Identifier: Apache-2.0
"""`repair`: a table that rotted, from the source that it was loaded from."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from engramdax.commands.output import JsonOption, PoolOption, byte_progress, count_text, print_json, print_line
from engramdax.errors import SourceError
from engramdax.ingest.open import open_sources
from engramdax.pool.records import resolve
from engramdax.pool.repair import repair_table
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from engramdax.format.directory import TableEntry
    from engramdax.ingest.source import TableSource


def repair(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    source: Annotated[list[Path], typer.Argument(help="What it was loaded from.")],
    *,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the damaged blocks of a table again, from the source that it was loaded from.

    Nothing is written unless the source is the one: its checksums must be those that were published with the table.
    """
    with ExitStack() as stack:
        writer = stack.enter_context(Writer(resolve(pool)))
        entry = writer.published(table)
        chosen = _open(entry, source, stack)
        progress = stack.enter_context(byte_progress({table: entry.bytes}))
        found = repair_table(writer, table, chosen, progress=lambda done: progress(table, done))
        load = str(writer.published(table).load)
    if as_json:
        blocks = [{"offset": b.offset, "length": b.length} for b in found]
        print_json({"name": table, "repaired": blocks, "load": load})
        return
    if load == str(entry.load):
        print_line(f"{table}: nothing was damaged")
    elif not found:
        print_line(f"{table}: its checksums are repaired, its rows were not damaged")
    else:
        print_line(f"{table}: {count_text(len(found), 'block')} repaired; readers see them when they refresh")
        for block in found:
            print_line(
                f"  bytes {block.offset} to {block.offset + block.length - 1}: "
                f"rows {block.first_row} to {block.last_row}"
            )


def _open(entry: TableEntry, paths: list[Path], stack: ExitStack) -> TableSource:
    """Open the source in the way that the load did, as far as the directory tells."""
    tensors = [str(name) for name in entry.source.get("tensors", ())]
    engram = len(tensors) > 1
    sources = open_sources(
        paths,
        row_bytes=entry.layout.row_bytes if entry.source.get("kind") == "binary" else None,
        tensor=tensors[0] if len(tensors) == 1 else None,
        engram=engram,
    )
    for opened in sources:
        stack.callback(opened.close)
    chosen = [one for one in sources if not engram or list(one.tensors) == tensors]
    if not chosen:
        raise SourceError(
            f"{paths[0]} has no tensors {', '.join(tensors)}",
            remedy="give the checkpoint that was loaded",
        )
    return chosen[0]


COMMANDS = (repair,)
