# SPDX-License-Identifier: Apache-2.0
"""`discover`: what memory devices this host has, and whether a pool can live on them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import fields, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engramdax.commands.output import JsonOption, count_text, print_grid, print_json, print_line, printable, size_text
from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.libraries import cross_check
from engramdax.devices.reading import read_tree
from engramdax.devices.tree import CxlRegion, DaxDevice, DaxRegion, Memdev, Namespace, NdRegion, Tree
from engramdax.devices.watch import changes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engramdax.devices.fitness import Part
    from engramdax.devices.libraries import Comparison

NOTHING: Final = (
    "no dax device, namespace, CXL region or memdev is on this host; "
    "`engramdax provision --file PATH --size N` makes a pool in a file"
)

LISTS: Final[Mapping[type, str]] = {
    DaxDevice: "dax_devices",
    DaxRegion: "dax_regions",
    Namespace: "namespaces",
    NdRegion: "nd_regions",
    CxlRegion: "cxl_regions",
    Memdev: "memdevs",
}
"""Where a part stands in a tree, and in what --json prints."""

DERIVED: Final[Mapping[type, tuple[str, ...]]] = {
    DaxDevice: ("origin", "namespace", "cxl_region", "memdevs"),
    DaxRegion: ("name",),
    CxlRegion: ("enabled", "locked"),
    Namespace: ("seed",),
}
"""What a part knows from others, which nobody should have to join by hand."""

SHORT: Final = {
    Verdict.FIT: "a pool can live here",
    Verdict.SYSTEM_RAM: "system RAM",
    Verdict.SYSTEM_RAM_OFFLINE: "system RAM, offline",
    Verdict.NO_DRIVER: "no driver",
    Verdict.NO_NODE: "no node",
    Verdict.NO_PERMISSION: "no permission",
    Verdict.IN_USE: "in use",
    Verdict.TOO_SMALL: "too small",
    Verdict.ALIGN: "align too large",
    Verdict.MAP_DEV: "not to be shared",
    Verdict.FOREIGN: "holds something else",
    Verdict.UNKNOWN: "holds something unknown",
    Verdict.DAMAGED: "a damaged pool",
}


def discover(
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Go on and print what changes, until Ctrl-C.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show every dax device, namespace, CXL region and memdev, and whether a pool can live there."""
    tree = read_tree()
    found = assess(tree)
    comparison = cross_check(tree)
    if not watch:
        if as_json:
            print_json(document(tree, found, comparison))
        else:
            _print_table(tree, found, comparison)
        return
    if as_json:
        print_line(json.dumps(document(tree, found, comparison)))
    else:
        _print_table(tree, found, comparison)
    sys.stdout.flush()
    try:
        for change in changes(tree, found):
            if as_json:
                part = _part_json(change.part, change.fitness)
                print_line(json.dumps({"action": change.action, "list": LISTS[type(change.part)], "part": part}))
            else:
                now = datetime.now().astimezone().strftime("%H:%M:%S")
                print_line(f"{now} {change.action} {_line(change.part, change.fitness)}")
            sys.stdout.flush()
    except KeyboardInterrupt:
        return  # it is how one ends it


def document(tree: Tree, found: tuple[Fitness, ...], comparison: Comparison) -> dict[str, Any]:
    """Give everything as JSON can say it: each part in full once, elsewhere by its name; null is unknown."""
    verdicts = {id(f.part): f for f in found}
    result: dict[str, Any] = {"format": 1}
    for field in fields(tree):
        values = getattr(tree, field.name)
        result[field.name] = [_part_json(v, verdicts.get(id(v))) if is_dataclass(v) else v for v in values]
    result["libraries"] = list(comparison.present)
    result["disagreements"] = list(comparison.disagreements)
    return result


def _part_json(part: Any, fitness: Fitness | None) -> dict[str, Any]:
    value = {field.name: _value(getattr(part, field.name)) for field in fields(part)}
    value |= {name: _value(getattr(part, name)) for name in DERIVED.get(type(part), ())}
    if type(part) in LISTS:
        value["fitness"] = None if fitness is None else _fitness_json(fitness)
    return value


def _fitness_json(fitness: Fitness) -> dict[str, Any]:
    pool = fitness.pool
    return {
        "verdict": str(fitness.verdict),
        "why": fitness.why,
        "command": fitness.command,
        "needs_root": fitness.needs_root,
        "pool": None if pool is None else {field.name: getattr(pool, field.name) for field in fields(pool)},
    }


def _value(value: Any) -> Any:
    if isinstance(value, Path):
        return os.fsencode(value).decode("utf-8", "backslashreplace")
    if isinstance(value, tuple):
        return [_value(v) for v in value]
    if is_dataclass(value):
        if hasattr(value, "path") and hasattr(value, "name"):  # a part of its own, in a list of its own
            return value.name
        return {field.name: _value(getattr(value, field.name)) for field in fields(value)}
    return value


def _print_table(tree: Tree, found: tuple[Fitness, ...], comparison: Comparison) -> None:
    if not found and not tree.dax_devices:
        print_line(NOTHING)
    else:
        columns = ("NAME", "WHAT", ">SIZE", ">ALIGN", "MODE", "MEMDEVS", "STATE")
        print_grid(columns, [_row(f.part, f) for f in found])
    for fitness in found:
        words = [w for w in (fitness.why, fitness.command and f"`{fitness.command}`") if w]
        if words:
            print_line(printable(f"{fitness.part.name}: {'; '.join(words)}"))
    denied = sum(u.denied for u in tree.unread)
    if denied:
        print_line(f"{count_text(denied, 'attribute')} of sysfs can be read by root only: `sudo engramdax discover`")
    for unread in tree.unread:
        if not unread.denied:
            print_line(printable(f"{unread.path}: {unread.reason}"))
    for text in comparison.disagreements:
        print_line(printable(text))


def _row(part: Part, fitness: Fitness) -> tuple[str, ...]:
    size, align = _size(part), getattr(part, "align", None)
    return (
        part.name,
        _what(part),
        "?" if size is None else size_text(size),
        size_text(align) if align else "",
        printable(str(getattr(part, "mode", None) or "")),
        printable(_memdevs(part)),
        _state(fitness),
    )


def _state(fitness: Fitness) -> str:
    if fitness.pool and fitness.verdict is Verdict.POOL:
        return f"pool {fitness.pool.name} ({fitness.pool.uuid})"
    short = SHORT.get(fitness.verdict, str(fitness.verdict))
    return f"{short}, pool {fitness.pool.name} ({fitness.pool.uuid})" if fitness.pool else short


def _size(part: Part) -> int | None:
    if isinstance(part, Memdev):
        sizes = [s for s in (part.ram_size, part.pmem_size) if s is not None]
        return sum(sizes) if sizes else None
    return part.available if isinstance(part, DaxRegion) else part.size


def _what(part: Part) -> str:
    if isinstance(part, DaxDevice):
        return str(part.origin)
    kinds = {DaxRegion: "dax region", Namespace: "namespace", NdRegion: "nvdimm region", CxlRegion: "CXL region"}
    return kinds.get(type(part), "memdev")


def _memdevs(part: Part) -> str:
    memdevs = (part,) if isinstance(part, Memdev) else part.memdevs if hasattr(part, "memdevs") else ()
    return ", ".join("?" if m.serial is None else f"{m.serial:#x}" for m in memdevs)


def _line(part: Part, fitness: Fitness | None) -> str:
    size = _size(part)
    words = [_what(part), "" if size is None else size_text(size), str(getattr(part, "mode", None) or "")]
    if fitness is not None:
        words.append(_state(fitness))
    return printable(f"{part.name}: {', '.join(w for w in words if w)}")


COMMANDS = (discover,)
