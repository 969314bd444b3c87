# SPDX-License-Identifier: Apache-2.0
"""`ls`, `info` and `verify`: what a pool holds, and whether it is still what was loaded."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engramdax.backing import parse_size
from engramdax.commands.output import (
    JsonOption,
    PoolOption,
    byte_progress,
    count_text,
    print_grid,
    print_json,
    print_line,
    printable,
    size_text,
)
from engramdax.errors import DamagedTableError, FormatError, ParameterError
from engramdax.health.history import Verified, remember_verified
from engramdax.pool.access import LocalAccess
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve
from engramdax.pool.volume import read_superblock

if TYPE_CHECKING:
    from pathlib import Path

    from engramdax.checksums import BadBlock
    from engramdax.format.directory import TableEntry
    from engramdax.table import Table

TableArgument = Annotated[str | None, typer.Argument(metavar="[TABLE]", help="The table's name.")]


def ls(*, pool: PoolOption = None, as_json: JsonOption = False) -> None:
    """List the tables of a pool and its free space."""
    with Pool(resolve(pool)) as opened:
        tables = [opened.directory.require(name, opened.backing.path) for name in opened.tables]
        free = opened.free()
        total, largest = sum(e.length for e in free), max((e.length for e in free), default=0)
        unfinished = sum(e.length for t in opened.directory.unfinished() for e in t.extents())
        waiting = sum(e.length for r in opened.directory.retired for e in r.extents)
        if as_json:
            print_json(
                {
                    "pool": opened.name,
                    "tables": [_table_json(t) for t in tables],
                    "free": total,
                    "largest_free_extent": largest,
                    "waiting_for_readers": waiting,
                    "unfinished": unfinished,
                }
            )
            return
        if tables:
            print_grid(
                ("TABLE", ">ROWS", ">ROW BYTES", ">SIZE", "FIELDS"),
                [(t.name, str(t.rows), str(t.layout.row_bytes), size_text(t.bytes), _fields(t)) for t in tables],
            )
        waits = f"; {size_text(waiting)} of removed tables wait for readers and the next write" if waiting else ""
        if unfinished:
            waits += f"; {size_text(unfinished)} of an unfinished load, free at the next write"
        print_line(
            f"{count_text(len(tables), 'table')} in {opened.name}; {size_text(total)} free, "
            f"the largest free extent {size_text(largest)}{waits}"
        )


def info(table: TableArgument = None, *, pool: PoolOption = None, as_json: JsonOption = False) -> None:
    """Tell all about a pool, or about one of its tables."""
    path = resolve(pool)
    here = _here(path) if table is None else None  # before this process pins a generation itself
    with Pool(path) as opened:
        value = (
            {**_pool_json(opened), "here": here}
            if table is None
            else _table_json(opened.directory.require(table, opened.backing.path))
        )
    if as_json:
        print_json(value)
        return
    if not value.get("shared", True):
        value.pop("here")  # the owner of a shared pool asks its other hosts for it; here are none
    width = max(map(len, value))
    for key, item in value.items():
        print_line(f"{key.replace('_', ' '):<{width}}  {printable(_text(key, item))}")


def _here(path: Path) -> dict[str, Any] | None:
    """Say what this host's processes do with a shared pool, which its owner asks for; None where nothing is proven."""
    access = LocalAccess(path, writable=False)
    try:
        superblock = read_superblock(access.media, patient=True).value
        if not superblock.shared:
            return None
        answer = access.here(superblock.pool)
        return None if answer is None else answer.to_json(access.host)
    except FormatError as e:
        raise e.at(path) from None
    finally:
        access.close()


def verify(
    table: TableArgument = None,
    *,
    pool: PoolOption = None,
    sample: Annotated[
        str, typer.Option("--sample", metavar="SHARE", help="Compare this share of the blocks, such as 5%.")
    ] = "100%",
    rate: Annotated[
        str | None, typer.Option("--rate", metavar="N", help="Bytes per second to keep below, such as 500M.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Compare every byte of a table, or of all, with the checksums published with it."""
    share, limit = share_of(sample), None if rate is None else parse_size(rate)
    results: dict[str, list[BadBlock] | str] = {}
    with Pool(resolve(pool)) as opened:
        tables = [opened[name] for name in (opened.tables if table is None else [table])]
        with byte_progress({t.name: round(t.nbytes * share) for t in tables}) as progress:
            for t in tables:
                name = t.name
                try:
                    results[name] = t.verify(
                        sample=share,
                        rate=limit,
                        progress=lambda done, name=name: progress(name, done),  # type: ignore[misc]
                    )
                except DamagedTableError as e:
                    results[name] = str(e)
        _remember(opened, tables, results, share)
    if as_json:
        print_json([_verdict_json(name, found) for name, found in results.items()])
    else:
        for t in tables:
            _print_verdict(t, results[t.name], share)
        if not tables:
            print_line("there are no tables")
    return 1 if any(results.values()) else 0


def _remember(pool: Pool, tables: list[Table], results: dict[str, list[BadBlock] | str], share: float) -> None:
    """Let `engramdax health` know of it."""
    loads = {str(t.load) for t in pool.directory.published()}
    for table in tables:
        found = results[table.name]
        bad, problem = (0, found) if isinstance(found, str) else (len(found), "")
        remember_verified(pool.uuid, table.load_id, Verified(time.time(), share, bad, problem), loads=loads)


def share_of(text: str) -> float:
    """Give the share that 5% or 0.05 means; ParameterError for what is none."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise ParameterError(f"--sample {text} is no share", remedy="give one such as 5% or 0.05")
    return share


def _print_verdict(table: Table, found: list[BadBlock] | str, share: float) -> None:
    if isinstance(found, str):
        print_line(f"{table.name}: {found}")
    elif not found:
        sampled = "" if share == 1 else f"{100 * share:.3g}% of "
        print_line(f"{table.name}: ok, {sampled}{size_text(table.nbytes)}")
    else:
        print_line(f"{table.name}: {count_text(len(found), 'block')} damaged; `engramdax repair` restores them")
        for bad in found:
            print_line(f"  bytes {bad.offset} to {bad.offset + bad.length - 1}: rows {bad.first_row} to {bad.last_row}")


def _verdict_json(name: str, found: list[BadBlock] | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"name": name, "ok": False, "problem": found}
    blocks = [{"offset": b.offset, "length": b.length, "first_row": b.first_row, "last_row": b.last_row} for b in found]
    return {"name": name, "ok": not found, "bad_blocks": blocks}


def _fields(table: TableEntry) -> str:
    return " + ".join(f"{f.count} {f.dtype}" for f in table.layout.fields)


def _table_json(table: TableEntry) -> dict[str, Any]:
    return {
        "name": table.name,
        "rows": table.rows,
        "row_bytes": table.layout.row_bytes,
        "bytes": table.bytes,
        "layout": table.layout.to_json(),
        "heads": list(table.heads) if table.heads else None,
        "addressing": table.addressing,
        "hot_rows": table.hot.rows if table.hot else 0,
        "load": str(table.load),
        "source": table.source,
    }


def _pool_json(pool: Pool) -> dict[str, Any]:
    s, d = pool.superblock, pool.directory
    return {
        "name": pool.name,
        "uuid": str(pool.uuid),
        "path": str(pool.backing.path),
        "kind": str(pool.backing.kind),
        "size": s.size,
        "page_size": pool.page_bytes(),
        "shared": s.shared,
        "created": s.created,
        "generation": d.generation,
        "epoch": d.epoch,
        "owner": str(d.owner),
        "hosts": [{"id": str(h.id), "name": h.name} for h in d.hosts],
        "tables": len(pool),
        "free": sum(e.length for e in pool.free()),
        "problems": list(pool.problems),
    }


def _text(key: str, item: Any) -> str:
    if key in ("size", "page_size", "free", "bytes"):
        return f"{size_text(item)} ({item})"
    if key == "layout":
        return ", ".join(f"{f['name']}: {f['count']} {f['dtype']} at {f['offset']}" for f in item["fields"])
    if key == "heads":
        return f"{len(item)}" if item else "unknown"
    if key == "addressing":
        # Other tools may have written less, or something else.
        return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in item.items()) if item else "unknown"
    if key == "hot_rows":
        return str(item or "none")
    if key == "hosts":
        return ", ".join(f"{h['name']} ({h['id']})" for h in item)
    if key == "here":
        if item is None:
            return "unknown: only root sees who maps the device"
        return f"{count_text(len(item['pinned']), 'generation')} held by readers"
    if key == "problems":
        return "; ".join(item) or "none"
    if key == "created":
        try:
            return datetime.fromtimestamp(item, UTC).astimezone().isoformat()
        except (ValueError, OverflowError, OSError):  # of a year past 9999
            return str(item)
    if key == "source":
        return _source_text(item)
    return str(item)


def _source_text(source: dict[str, Any]) -> str:
    """Say what a reader of table files described; other tools may have written less, or something else."""
    files, tensors = (found if isinstance(found := source.get(key), list) else [] for key in ("files", "tensors"))
    paths = [str(file["path"]) for file in files if isinstance(file, dict) and "path" in file]
    return ", ".join([str(source.get("kind", "unknown")), *paths, *map(str, tensors)])


COMMANDS = (ls, info, verify)
