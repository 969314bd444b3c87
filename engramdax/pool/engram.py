# SPDX-License-Identifier: Apache-2.0
"""The Engram tables of a checkpoint as loads: what they are called, and how its config.json addresses them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.errors import SourceError
from engramdax.ingest.naming import table_name
from engramdax.ngram.config import layout_of, read_config
from engramdax.pool.loader import Load

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engramdax.ingest.source import TableSource
    from engramdax.ngram import Layout


def engram_loads(sources: Sequence[TableSource], paths: Sequence[Path], name: str | None) -> list[Load]:
    """Name the tables of a checkpoint's layers, and take the rows of their heads from its config.json.

    `sources` are what was opened from `paths`, "layers.N" each. `name` is the tables' prefix, by default that of the
    checkpoint's directory. Without a config.json, or with one that knows no Engram tables, addressing stays unknown.
    Raises SourceError where it cannot be read or does not fit the tables.
    """
    first = paths[0]
    directory = first if first.is_dir() else first.parent
    prefix = table_name(directory.resolve().name) if name is None else name
    layout = _layout(directory / "config.json")
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


def _layout(path: Path) -> Layout | None:
    if not path.exists():
        return None
    config = read_config(path)
    text = config.get("text_config", config) if isinstance(config, dict) else {}
    known = isinstance(text, dict) and "engram_layer_ids" in text
    return layout_of(path, config, token_map=None) if known else None
