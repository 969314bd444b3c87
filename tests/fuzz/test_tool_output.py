# SPDX-License-Identifier: Apache-2.0
"""Mutated output of cxl, ndctl and daxctl, of engramdax on other hosts, and label areas: findings or errors of this
project, and never a healthy device that none said to be healthy.
"""

from __future__ import annotations

import json
import random
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from corpora import seeds
from mutants import Mutant, changed_bytes, changed_json
from survival import report, share, survive

from engramdax.devices import tools
from engramdax.devices.labels import fletcher64, parse_labels
from engramdax.devices.tools import Done
from engramdax.errors import FormatError, ToolError
from engramdax.fleet import Output
from engramdax.format.directory import Directory, TableEntry
from engramdax.format.directory import Host as PoolHost
from engramdax.format.geometry import MIB, Extent, standard
from engramdax.format.layout import RowLayout
from engramdax.format.superblock import Superblock
from engramdax.health import events, memdevs, poison
from engramdax.health.finding import Finding, State
from engramdax.health.hosts import Answered, Comparison, _answer, _behind, compare
from engramdax.health.subject import Sources, Subject
from engramdax.pool.volume import Found
from tests.devices.trees import Sysfs

OUTPUTS = share(20)


WHOLE = seeds("tools")


def mutant(chance: random.Random) -> Mutant:
    name = chance.choice(list(WHOLE))
    data = WHOLE[name]
    if name.endswith(".json"):
        text = changed_json(data, chance, list(WHOLE.values()))
        if chance.random() < 0.2:
            text = b"  Warning: no matching devices found\n[oops] more\n" + text
        return Mutant(name, text)
    changed = bytearray(changed_bytes(data, chance))
    for place in (0, 256):  # the checksums of the two index blocks
        if chance.random() < 0.8 and len(changed) >= place + 256:
            block = changed[place : place + 256]
            struct.pack_into("<Q", changed, place + 64, fletcher64(bytes(block[:64]) + bytes(8) + bytes(block[72:])))
    return Mutant(name, bytes(changed))


class Host:
    """A host with a pool on an interleaved region of two memdevs, whose tools print what a fuzzer made of theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        sysfs = Sysfs(folder)
        decoders = [sysfs.memdev(0, "0x1122"), sysfs.memdev(1, "0xfedcba9876543210")]
        for place in (sysfs.root / "bus/cxl/devices").glob("mem*"):
            (place / "trigger_poison_list").touch()
        for place in (sysfs.root / "bus/cxl/devices").glob("decoder1*"):
            (place / "dpa_resource").write_text("0x0\n")
            (place / "dpa_size").write_text(f"{256 * MIB:#x}\n")
        region = sysfs.cxl_region("region0", decoders)
        sysfs.dax("dax0.0", region, size=512 * MIB, resource="0x410000000")
        tree = sysfs.read()
        (device,) = tree.dax_devices
        size = 512 * MIB
        superblock = Superblock(UUID(int=1), UUID(int=2), "pool", size, standard(size), shared=True, created=1)
        owner = UUID(int=3)
        directory = Directory(UUID(int=1), 3, 1, owner, (PoolHost(owner, "alpha"),), (table("words", 64 * MIB),))
        self.subject = Subject(
            Sources(),
            tree=tree,
            device=device,
            superblock=Found(superblock, ()),
            directory=Found(directory, ()),
            root=True,
        )

    def events(self, kind: str, data: bytes) -> list[Finding]:
        """Give what health finds when the kernel's trace, or rasdaemon's database, holds this."""
        instance, database = self._folder / "tracing" / "instances" / "engramdax", self._folder / "events.db"
        instance.mkdir(parents=True, exist_ok=True)
        (instance / "trace").write_bytes(data if kind == "trace" else b"")
        database.unlink(missing_ok=True)
        if kind != "trace":
            database.write_bytes(data)
        tracing = self._folder / "tracing"
        self.subject.sources = replace(Sources(), proc=self._folder, tracing=tracing, rasdaemon=database)
        return list(events.probe(self.subject))

    def findings(self, said: str) -> list[Finding]:
        """Give what health finds, whatever it asks cxl for being answered so."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tools, "run", lambda arguments, **_: Done(" ".join(arguments), 0, said, ""))
            version = tools.version("cxl")
            assert version is None or all(0 <= part < 1 << 32 for part in version)
            return [*memdevs.probe(self.subject), *poison.probe(self.subject)]


def table(name: str, at: int) -> TableEntry:
    layout = RowLayout.packed(("row", "uint8", 64))
    extents = Extent(at, 2 * MIB), Extent(at + 2 * MIB, 2 * MIB)
    return TableEntry(name, UUID(int=4), "published", 32768, layout, *extents, 9, None, {})


def examine(host: Host, mutant: Mutant) -> str:
    if mutant.name.startswith("labels"):
        return examine_labels(mutant.data)
    said = mutant.data.decode(errors="backslashreplace")
    Done("cxl list", 1, said, said).problem.encode()
    for one in host.findings(said):
        text = json.dumps(one.to_json(), allow_nan=False)
        assert Finding.from_json(json.loads(text)) == one
        assert len(one.found) < 2000
        assert one.probe != "memdev.health" or one.state is not State.OK or "media_normal" in said
    other = examine_answer(said)
    try:
        values = tools.parse(said)
    except ToolError:
        return "refused"
    assert all(isinstance(value, dict) for value in values)
    return "report" if other else "objects" if values else "nothing"


def examine_answer(said: str) -> bool:
    """Compare a host that says this with others that are well; tell whether that was a report."""
    answer = _answer(Output("a", said, "", 0))
    good = [_answer(Output(name, WHOLE["health-report.json"].decode(), "", 0)) for name in "bc"]
    assert [a.answered for a in good] == [Answered.REPORT] * 2
    answers = (answer, *good)
    _behind(answers)
    comparison = Comparison(answers, tuple(compare(answers)))
    json.dumps(comparison.to_json())
    assert comparison.answers[0].report is not None or comparison.state is not State.OK
    return answer.answered is Answered.REPORT


def examine_labels(data: bytes) -> str:
    try:
        labels = parse_labels(data)
    except FormatError:
        return "refused labels"
    assert len(labels) <= len(data) // 128
    return "labels" if labels else "no labels"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_whole_output_is_understood(host: Host) -> None:
    outcomes = {name: examine(host, Mutant(name, data)) for name, data in WHOLE.items()}
    assert outcomes == {
        "cxl-list.json": "objects",
        "cxl-media-errors.json": "objects",
        "daxctl-list.json": "objects",
        "health-report.json": "report",
        "labels-1.2": "labels",
        "labels-2.1": "labels",
        "ndctl-list.json": "objects",
    }
    healthy = {f.object: f.state for f in host.findings(WHOLE["cxl-list.json"].decode()) if f.probe == "memdev.health"}
    assert healthy == {"0x1122": State.OK, "0xfedcba9876543210": State.OK}
    poisoned = [f.found for f in host.findings(WHOLE["cxl-media-errors.json"].decode()) if f.probe == "memdev.poison"]
    assert len(poisoned) == 3
    assert "table words" in poisoned[0]


def test_mutated_output_gives_findings_or_errors(host: Host, figure: Callable[[str], None]) -> None:
    outcomes = survive(OUTPUTS, mutant, lambda mutant: examine(host, mutant))
    report(figure, "outputs of tools", OUTPUTS, outcomes)
    if OUTPUTS >= 1000:
        assert {"refused", "objects", "report", "labels", "refused labels"} <= outcomes.keys()


def database(path: Path) -> bytes:
    """Give a database as rasdaemon makes it, of small pages."""
    with closing(sqlite3.connect(path)) as made:
        made.execute("PRAGMA page_size = 512")
        columns = "id INTEGER PRIMARY KEY, timestamp TEXT, memdev TEXT, host TEXT, serial INTEGER, log_type TEXT"
        made.execute(f"CREATE TABLE cxl_general_media_event ({columns})")
        row = ("2099-01-01 00:00:00 +0000", "mem0", "0000:0d:00.0", 0x1122, "Fatal")
        made.execute("INSERT INTO cxl_general_media_event VALUES (1, ?, ?, ?, ?, ?)", row)
        made.commit()
    return path.read_bytes()


def test_mutated_events_are_findings(host: Host, tmp_path: Path, figure: Callable[[str], None]) -> None:
    kept = {"trace": seeds("events")["trace"], "database": database(tmp_path / "whole.db")}
    for kind, data in kept.items():
        (worst, *_) = (f for f in host.events(kind, data) if f.object.startswith("0x1122"))
        assert (kind, worst.state) == (kind, State.CRITICAL)

    def make(chance: random.Random) -> Mutant:
        kind = chance.choice(list(kept))
        return Mutant(kind, changed_bytes(kept[kind], chance))

    def look(mutant: Mutant) -> str:
        found = host.events(*mutant)
        for one in found:
            assert Finding.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False))) == one
        return "refused" if any(f.state is State.UNKNOWN for f in found) else "told"

    outcomes = survive(OUTPUTS, make, look)
    report(figure, "events", OUTPUTS, outcomes)
