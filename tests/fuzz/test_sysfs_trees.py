# SPDX-License-Identifier: Apache-2.0
"""Mutated trees of sysfs: what is told of them can be shown, and what makes no sense is unknown."""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path

import pytest
from corpora import seeds
from survival import report, share, survive
from tree_texts import Entry, changed_entries, entries, write

from engramdax.commands.discover import _print_table, document
from engramdax.devices.assembly import describe
from engramdax.devices.fitness import assess
from engramdax.devices.libraries import Comparison
from engramdax.devices.reading import read_tree
from engramdax.devices.tree import Tree
from engramdax.health import device, locality, memdevs, pcie, poison
from engramdax.health.finding import Finding
from engramdax.health.subject import Sources, Subject

TREES = share(50)
MEMORY = Path("/dev/shm")  # noqa: S108 - where the thousands of files of a run cost least


@cache
def whole() -> dict[str, list[Entry]]:
    return {name: entries(text) for name, text in seeds("sysfs").items()}


def mutant(chance: random.Random) -> list[Entry]:
    tree = whole()[chance.choice(list(whole()))]
    if chance.random() < 0.2:
        tree = [*tree, *whole()[chance.choice(list(whole()))]]
    return changed_entries(tree, chance)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Give an empty folder, in memory where there is such."""
    if not MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="engramdax-fuzz-") as name:
        yield Path(name)


def examine(folder: Path, made: list[Entry]) -> str:
    """Make a tree, and ask everything of it that discovery and health ask."""
    sysfs = folder / "sys"
    sysfs.mkdir()
    try:
        write(made, sysfs)
        tree = read_tree(sysfs, folder / "dev")
        check(tree)
        show(tree)
        if any(entry.kind == "pipe" for entry in made):  # the kernel's has none, and health waits for it
            return f"{len(tree.dax_devices)} dax devices"
        for one in tree.dax_devices:
            json.dumps(asdict(describe(one, tree)))
            subject = Subject(Sources(sysfs=sysfs, proc=folder / "proc"), tree=tree, device=one)
            for probe in (device.probe, memdevs.probe, pcie.probe, poison.probe, locality.probe):
                for found in probe(subject):
                    assert Finding.from_json(json.loads(json.dumps(found.to_json()))) == found
        return f"{len(tree.dax_devices)} dax devices"
    finally:
        shutil.rmtree(sysfs)


def check(tree: Tree) -> None:
    """Check that numbers are ones that the kernel may mean."""
    for kind in fields(tree):
        for part in getattr(tree, kind.name):
            for field in fields(part) if not isinstance(part, str) else ():
                value = getattr(part, field.name)
                assert not isinstance(value, int) or 0 <= value < 1 << 64, f"{part.name}: {field.name} is {value}"


def show(tree: Tree) -> None:
    """Do what `engramdax discover` does with it."""
    found = assess(tree, Path("/nowhere"))
    nothing = Comparison((), ())
    json.dumps(document(tree, found, nothing), allow_nan=False).encode()
    with redirect_stdout(io.StringIO()) as printed:
        _print_table(tree, found, nothing)
    assert all(c.isprintable() or c == "\n" for c in printed.getvalue())


def test_whole_trees_are_read(folder: Path) -> None:
    found = {name: examine(folder, tree).split()[0] for name, tree in whole().items()}
    assert found == {"cxl-ram": "2", "nvdimm": "1", "odd": "1", "system-ram": "1"}


def test_mutated_trees_are_told_of(folder: Path, figure: Callable[[str], None]) -> None:
    outcomes = survive(TREES, mutant, lambda made: examine(folder, made))
    report(figure, "trees of sysfs", TREES, outcomes)
