# SPDX-License-Identifier: Apache-2.0
"""The rows of a table that are read most, published with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from engramdax.commands.output import JsonOption, PoolOption, count_text, print_grid, print_json, print_line
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve
from engramdax.pool.writer import Writer
from engramdax.trace.hotlist import read_hot_list

GROUP: Final = "hot"
FIRST_SHOWN: Final = 8


def set_list(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    source: Annotated[Path, typer.Argument(metavar="LIST", help="A hot list that `engramdax trace` wrote.")],
    *,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish a hot list with a table, in place of the one it may have."""
    hot_list = read_hot_list(source)
    with Writer(resolve(pool)) as writer:
        hot_list.check(writer.published(table), source)
        writer.set_hot(table, hot_list.hot.row_ids, hot_list.points())
    rows, share = hot_list.points()[-1]
    if as_json:
        print_json({"table": table, "rows": rows, "share": share})
        return
    print_line(f"{table} has a hot list of {count_text(rows, 'row')}, which served {share:.1%} of the trace's reads")


def show_list(
    table: Annotated[str, typer.Argument(help="The table's name.")],
    *,
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the hot list of a table: its length, its first rows, and what it served of its trace."""
    with Pool(resolve(pool)) as opened:
        chosen = opened[table]
        ids, points = chosen.hot, chosen.hot_served
    if as_json:
        first = [] if ids is None else ids[:FIRST_SHOWN].tolist()
        rows = 0 if ids is None else int(ids.size)
        print_json({"table": table, "rows": rows, "first": first, "served": [list(point) for point in points]})
        return
    if ids is None:
        print_line(f"{table} has no hot list")
        return
    print_line(f"{count_text(int(ids.size), 'row')}, the hottest: {', '.join(map(str, ids[:FIRST_SHOWN]))}")
    print_grid((">ROWS", ">SERVED"), [(str(rows), f"{share:.1%}") for rows, share in points])


COMMANDS: Final = {"set": set_list, "show": show_list}
