# SPDX-License-Identifier: Apache-2.0
"""`trace`: from token traces to hot lists, and what they would serve."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from engramdax.backing import parse_size
from engramdax.commands.output import (
    JsonOption,
    PoolOption,
    count_text,
    print_grid,
    print_json,
    print_line,
    size_text,
)
from engramdax.errors import BackingError, ParameterError
from engramdax.figures import check_figure
from engramdax.files import check_replaceable
from engramdax.ngram import Hasher, Layout, build_token_map
from engramdax.ngram.config import read_layout
from engramdax.ngram.tokenizer import read_tokenizer
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve
from engramdax.trace.archive import array_of, opened_arrays
from engramdax.trace.counts import hot_rows
from engramdax.trace.hotlist import HotList, write_hot_list
from engramdax.trace.plot import plot_shares
from engramdax.trace.shares import own_shares, shares_of
from engramdax.trace.tokens import read_traces

if TYPE_CHECKING:
    import numpy.typing as npt
    from tokenizers import Tokenizer

    from engramdax.trace.counts import HotRows
    from engramdax.trace.tokens import Trace

BUDGETS: Final = ("64M", "256M", "1G", "2G", "4G", "8G")
DEFAULT_ROWS: Final = 32 << 20


def trace(
    source: Annotated[list[Path], typer.Argument(help="Traces: text, .npy or .npz of token ids.")],
    *,
    config: Annotated[Path | None, typer.Option("--config", help="The model's config.json.")] = None,
    table: Annotated[str | None, typer.Option("--table", help="Or a table loaded with --engram.")] = None,
    pool: PoolOption = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="The model's tokenizer.json.")] = None,
    token_map: Annotated[
        Path | None, typer.Option("--token-map", help="Saved map of raw to compressed ids, .npy or .npz.")
    ] = None,
    layer: Annotated[int | None, typer.Option("--layer", help="The model's layer [all].")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE.npz", help="Write the hot list; {layer} stands for its number."),
    ] = None,
    rows: Annotated[int, typer.Option("--rows", help="The longest list to make.")] = DEFAULT_ROWS,
    row_bytes: Annotated[int, typer.Option("--row-bytes", help="Bytes of a row, for the budgets.")] = 264,
    memory: Annotated[str, typer.Option("--memory", help="Bytes that counting may take.")] = "2G",
    split: Annotated[
        float | None, typer.Option("--split", help="Count this share of the trace, serve the rest from the list.")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Draw shares against budgets.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Count the row accesses of a token trace, exactly, and list the rows that are read most."""
    if rows < 1 or row_bytes < 1:
        raise ParameterError(
            f"--rows {rows} with --row-bytes {row_bytes} lists nothing", remedy="give positive numbers"
        )
    if split is not None and not 0 < split < 1:
        raise ParameterError(f"--split {split} is no share", remedy="give a number between 0 and 1, such as 0.9")
    if config is not None and table is not None:
        raise ParameterError("--config and --table were both given", remedy="give either --config or --table")
    bytes_allowed = parse_size(memory)
    if out is not None and not out.parent.is_dir():
        raise BackingError(f"cannot write {out}: there is no directory {out.parent}", remedy="give another --out")
    pool_path = None if table is None else resolve(pool)
    if plot is not None:
        check_figure(plot)
    loaded = None if tokenizer is None else read_tokenizer(tokenizer)
    tokens = read_traces(source, tokenizer=loaded)
    layout = _layout(config, table, pool_path, _token_map(loaded, token_map, needed=not tokens.compressed))
    if tokens.compressed:  # the map was for the pad alone
        layout = replace(layout, token_map=None)
    tokens.check(layout.vocab)
    layers = _layers(layout, layer)
    if out is not None and len(layers) > 1 and "{layer}" not in str(out):
        raise ParameterError(
            f"--out {out} would hold {len(layers)} layers", remedy="write {layer} in it, or say --layer"
        )
    outs = [] if out is None else [Path(str(out).replace("{layer}", str(layout.layer_ids[n]))) for n in layers]
    sources = [*source, *(path for path in (config, tokenizer, token_map) if path is not None)]
    for path in outs:
        check_replaceable(path, pool=pool_path, sources=sources, remedy="give another --out")
    hasher = Hasher(layout)
    counted, rest = tokens.split(split) if split is not None else (tokens, None)
    results: list[dict[str, Any]] = []
    for place, position in enumerate(layers):
        hot = hot_rows(hasher, position, counted, most=rows, memory=bytes_allowed)
        if outs:
            heads = np.array(layout.head_sizes(position), np.int64)
            write_hot_list(outs[place], HotList(hot, layout.rows(position), heads), pool=pool_path)
        results.append(_result(hasher, position, hot, rest, row_bytes))
        del hot  # as large as the counters of the next layer may get
    if plot is not None:
        plot_shares(
            plot,
            {
                f"layer {result['layer']}": [(line["bytes"], line["served"]) for line in result["budgets"]]
                for result in results
            },
        )
    if as_json:
        print_json({"tokens": int(counted.tokens.size), "layers": results})
        return
    what = "served of the rest of the trace" if rest is not None else "served of the same trace"
    print_line(f"{count_text(int(counted.tokens.size), 'token')} counted, exactly; {what}:")
    orders = [f">ORDER {order}" for order in layout.orders]
    print_grid(
        (">LAYER", ">BUDGET", ">ROWS", ">SERVED", *orders),
        [
            (
                str(result["layer"]),
                size_text(line["bytes"]),
                str(line["rows"]),
                f"{line['served']:.1%}",
                *(f"{share:.1%}" for share in line["by_order"].values()),
            )
            for result in results
            for line in result["budgets"]
        ],
    )


def _result(hasher: Hasher, layer: int, hot: HotRows, rest: Trace | None, row_bytes: int) -> dict[str, Any]:
    """Say what a list serves at each budget, up to the first that the whole list fits."""
    layout = hasher.layout
    fitting = [min(parse_size(budget) // row_bytes, hot.row_ids.size) for budget in BUDGETS]
    if hot.row_ids.size in fitting:
        fitting = fitting[: fitting.index(hot.row_ids.size) + 1]
    shares = (
        own_shares(layout, layer, hot, fitting)
        if rest is None
        else shares_of(hasher, layer, rest, hot.row_ids, fitting)
    )
    return {
        "layer": layout.layer_ids[layer],
        "accesses": hot.accesses,
        "rows": int(hot.row_ids.size),
        "budgets": [
            {
                "bytes": parse_size(budget),
                "rows": fits,
                "served": float(share[-1]),
                "by_order": {str(order): float(part) for order, part in zip(layout.orders, share[:-1], strict=True)},
            }
            for budget, fits, share in zip(BUDGETS, fitting, shares, strict=False)
        ],
    }


def _token_map(tokenizer: Tokenizer | None, path: Path | None, *, needed: bool) -> npt.NDArray[np.integer[Any]] | None:
    if path is None:
        if tokenizer is not None:
            return build_token_map(tokenizer)
        if needed:
            raise ParameterError("raw token ids need the model's map", remedy="give --tokenizer or --token-map")
        return None
    with opened_arrays(path, "token map", remedy="save one with numpy.save") as value:
        array: npt.NDArray[Any] = value if isinstance(value, np.ndarray) else array_of(value, "token_map")
        return array


def _layout(
    config: Path | None, table: str | None, pool: Path | None, token_map: npt.NDArray[np.integer[Any]] | None
) -> Layout:
    if table is not None and pool is not None:
        with Pool(pool) as opened:
            return Layout.of_table(opened[table], token_map=token_map)
    if config is None:
        raise ParameterError("the model is not known", remedy="give either --config or --table")
    return read_layout(config, token_map=token_map)


def _layers(layout: Layout, layer: int | None) -> list[int]:
    if layer is None:
        return list(range(len(layout.layer_ids)))
    if layer not in layout.layer_ids:
        raise ParameterError(f"layer {layer} has no table", remedy=f"the model's are {list(layout.layer_ids)}")
    return [layout.layer_ids.index(layer)]


COMMANDS = (trace,)
