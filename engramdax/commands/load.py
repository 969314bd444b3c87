# SPDX-License-Identifier: Apache-2.0
"""`load` and `rm`: tables into a pool and out of it."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engramdax.commands.output import JsonOption, PoolOption, byte_progress, print_json, print_line, size_text
from engramdax.errors import ParameterError, SourceError
from engramdax.ingest.naming import table_name
from engramdax.ingest.open import open_sources
from engramdax.ngram import Layout
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.records import resolve
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.ingest.source import TableSource


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
    as_json: JsonOption = False,
) -> None:
    """Load a table (with --engram one per layer) into a pool, and publish it when it is whole."""
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
        writer = stack.enter_context(Writer(path))
        progress = stack.enter_context(byte_progress({one.name: one.source.nbytes for one in loads}))
        entries = load_tables(writer, loads, progress=progress)
    if as_json:
        print_json(
            [{"name": e.name, "load": str(e.load), "rows": e.rows, "row_bytes": e.layout.row_bytes} for e in entries]
        )
        return
    for e in entries:
        print_line(f"{e.name}: {e.rows} rows of {e.layout.row_bytes} bytes, {size_text(e.bytes)}, published")


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


def engram_loads(sources: Sequence[TableSource], paths: Sequence[Path], name: str | None) -> list[Load]:
    """Name the tables of a checkpoint's layers, and take the rows of their heads from its config.json."""
    first = paths[0]
    prefix = table_name((first if first.is_dir() else first.parent).resolve().name) if name is None else name
    directory = first if first.is_dir() else first.parent
    config = _config(directory)
    layout = None if config is None else _layout(config, directory)
    loads = []
    for source in sources:
        layer_id = int(source.name.rpartition(".")[2])
        heads, addressing = None, None
        if layout is not None and layer_id in layout.layer_ids:
            layer = layout.layer_ids.index(layer_id)
            if layout.rows(layer) != source.rows:
                raise SourceError(
                    f"{source.name} of {first} has {source.rows} rows, its config.json means {layout.rows(layer)}",
                    remedy="the config belongs to another model, or the checkpoint is incomplete",
                )
            # Without the tokenizer's map the layout's pad is the raw one.
            heads = layout.head_sizes(layer)
            addressing = {**layout.addressing(layer), "pad_token_id": layout.pad_id}
        loads.append(Load(source, f"{prefix}/{source.name}", heads, addressing))
    return loads


def _config(directory: Path) -> dict[str, Any] | None:
    """Read the checkpoint's config.json; None where there is none, or none of a model with Engram tables."""
    path = directory / "config.json"
    try:
        config: Any = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as e:
        raise SourceError(f"{path} cannot be read: {e}", remedy="correct or remove it") from None
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    return config if isinstance(text, dict) and "engram_layer_ids" in text else None


def _layout(config: dict[str, Any], directory: Path) -> Layout:
    try:
        return Layout.from_config(config, token_map=None)
    except ParameterError as e:
        raise SourceError(f"{directory / 'config.json'}: {e.problem}", remedy=e.remedy) from None


COMMANDS = (load, rm)
