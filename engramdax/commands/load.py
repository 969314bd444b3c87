# SPDX-License-Identifier: Apache-2.0
"""`load` and `rm`: tables into a pool and out of it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from engramdax.commands.output import JsonOption, PoolOption, byte_progress, print_json, print_line, size_text
from engramdax.errors import ParameterError, SourceError
from engramdax.ingest.open import open_sources
from engramdax.pool.engram import engram_loads
from engramdax.pool.loader import Load, load_tables, space_needed
from engramdax.pool.records import resolve
from engramdax.pool.writer import Writer


def load(
    source: Annotated[list[Path], typer.Argument(help="A .bin or .npy file, or a checkpoint.")],
    *,
    pool: PoolOption = None,
    name: Annotated[str | None, typer.Option("--name", help="The table's name (with --engram a prefix).")] = None,
    row_bytes: Annotated[int | None, typer.Option("--row-bytes", metavar="N", help="Bytes of a row.")] = None,
    dtype: Annotated[str | None, typer.Option("--dtype", help="Element type of a raw file, such as float16.")] = None,
    dim: Annotated[int | None, typer.Option("--dim", metavar="N", help="Elements of a row of a raw file.")] = None,
    tensor: Annotated[str | None, typer.Option("--tensor", help="The tensor of a checkpoint to load.")] = None,
    engram: Annotated[
        bool, typer.Option("--engram", help="Load the Engram tables of a DeepSeek-V4.1 checkpoint.")
    ] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a load that died: what equals the source stays.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Put a new version in the place of a table, in one step.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Load a table (with --engram one per layer) into a pool, and publish it when it is whole.

    With --replace readers see the old version until they refresh; both take space until no reader holds the old one.
    """
    if resume and replace:
        raise ParameterError(
            "--resume and --replace were both given", remedy="give --resume: a replacing load that died goes on as one"
        )
    if engram or tensor is not None:  # else what is no checkpoint by its name is said to be a file
        for one in source:
            if not os.path.exists(one):  # noqa: PTH110 (raises less)
                raise SourceError(f"{one}: no such file or directory", remedy="check the path")
    with ExitStack() as stack:
        sources = open_sources(source, row_bytes=row_bytes, dtype=dtype, dim=dim, tensor=tensor, engram=engram)
        for opened in sources:
            stack.callback(opened.close)
        loads = (
            engram_loads(sources, source, name)
            if engram
            else [Load(sources[0], sources[0].name if name is None else name)]
        )
        path = resolve(pool)
        names = {one.name for one in loads}
        writer = stack.enter_context(Writer(path, keep=lambda entry: resume and entry.name in names))
        if not as_json:
            _announce(writer, loads, resume=resume, replace=replace)
        progress = stack.enter_context(byte_progress({one.name: one.source.nbytes for one in loads}))
        entries = load_tables(writer, loads, resume=resume, replace_old=replace, progress=progress)
    if as_json:
        print_json(
            [{"name": e.name, "load": str(e.load), "rows": e.rows, "row_bytes": e.layout.row_bytes} for e in entries]
        )
        return
    for e in entries:
        print_line(f"{e.name}: {e.rows} rows of {e.layout.row_bytes} bytes, {size_text(e.bytes)}, published")


def _announce(writer: Writer, loads: list[Load], *, resume: bool, replace: bool) -> None:
    """Say what goes on, or what a replacement takes, before it starts."""
    unfinished = {t.name for t in writer.directory.unfinished()}
    for one in loads:
        old = writer.directory.table(one.name)
        if old is not None and not replace:
            continue  # it will be refused, which is all there is to say
        if resume:
            found = "goes on" if one.name in unfinished else "starts from the beginning, nothing of it was left"
            print_line(f"{one.name}: the load {found}")
        elif replace and old is not None:
            held = sum(extent.length for extent in old.extents())
            free = sum(extent.length for extent in writer.free())
            print_line(
                f"{one.name}: the new version takes {size_text(space_needed(writer, [one]))} of {size_text(free)} "
                f"free; the {size_text(held)} of the old one are free when no reader holds it"
            )


def rm(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    *,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove a table; its space is free once no reader holds it."""
    with Writer(resolve(pool)) as writer:
        size = writer.published(table).bytes
        free = writer.remove(table)
    if as_json:
        print_json({"name": table, "bytes": size, "free": free})
        return
    waits = "its space is free" if free else "its space waits until no reader holds the table"
    print_line(f"{table} is removed; {waits}")


COMMANDS = (load, rm)
