# SPDX-License-Identifier: Apache-2.0
"""From poisoned addresses to rows, through decoders, interleaves and the place of a device in its region."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reports import found
from tools_output import Cxl

from engramdax.devices.tree import Tree
from engramdax.format.geometry import LINE, Extent
from engramdax.health import poison
from engramdax.health.finding import State
from engramdax.health.places import offset_of, uses
from engramdax.health.subject import Sources, Subject
from engramdax.pool.pool import Pool
from tests.devices.trees import Sysfs

MIB = 1 << 20


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    (tmp_path / "host").mkdir()
    return Sysfs(tmp_path / "host")


def interleaved(sysfs: Sysfs, ways: int, grain: int, **dax: Any) -> Tree:
    """Give a host with one region over `ways` memdevs, whose decoders begin at different addresses of theirs."""
    targets = [sysfs.memdev(n, f"0x{0xE0 + n:x}") for n in range(ways)]
    for n, target in enumerate(targets):
        place = (sysfs.root / "bus/cxl/devices" / target).resolve()
        values = {"dpa_resource": hex(n * MIB), "dpa_size": hex(256 * MIB), "interleave_ways": str(ways)}
        for name, value in values.items():
            (place / name).write_text(f"{value}\n")
    parent = sysfs.cxl_region("region2", targets, interleave_granularity=grain)
    sysfs.dax_region(parent, id=2, size=256 * MIB * ways, align=2 * MIB)
    sysfs.dax("dax2.0", parent, **{"size": 256 * MIB * ways, "resource": "0x410000000", **dax})
    return sysfs.read()


@pytest.mark.parametrize(("ways", "grain"), [(1, 256), (2, 256), (3, 1024), (4, 4096)])
def test_each_byte_of_an_interleave_has_one_place(sysfs: Sysfs, ways: int, grain: int) -> None:
    tree = interleaved(sysfs, ways, grain)
    device = tree.dax("dax2.0")
    assert device is not None
    seen = {
        offset_of(device, memdev, n * MIB + dpa)
        for n, memdev in enumerate(device.memdevs)
        for dpa in range(0, 4 * grain, LINE)
    }
    # The first grains of all targets together are the first bytes of the region.
    assert seen == set(range(0, 4 * grain * ways, LINE))


def test_address_outside_of_the_decoder_or_the_device_has_no_place(sysfs: Sysfs) -> None:
    tree = interleaved(sysfs, 1, 256, size=64 * MIB, resource="0x412000000")
    device = tree.dax("dax2.0")
    assert device is not None
    (memdev,) = device.memdevs
    assert offset_of(device, memdev, 32 * MIB) == 0
    assert offset_of(device, memdev, 32 * MIB - LINE) is None
    assert offset_of(device, memdev, 96 * MIB) is None
    assert offset_of(device, memdev, 300 * MIB) is None


def test_part_of_a_region_has_no_place_without_addresses(sysfs: Sysfs) -> None:
    tree = interleaved(sysfs, 1, 256, size=64 * MIB, resource=None)
    device = tree.dax("dax2.0")
    assert device is not None
    assert offset_of(device, device.memdevs[0], 0) is None


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Path:
    path = make_pool(32 * MIB)
    load_array(path, "words", np.zeros((40_000, 64), np.uint8))
    return path


def test_every_part_of_a_pool_is_named(pool: Path) -> None:
    with Pool(pool) as opened:
        geometry, directory = opened.superblock.geometry, opened.directory
        table = directory.require("words", pool)

    def at(offset: int, length: int = LINE) -> list[str]:
        return [use.what for use in uses(geometry, directory, Extent(offset, length))]

    assert at(0) == ["superblock copy at 0"]
    assert at(geometry.slots[1] + LINE) == ["directory slot 1"]
    assert at(table.extent.offset) == ["row 0 of table words"]
    assert at(table.extent.offset + 10 * 64, 128) == ["rows 10 to 11 of table words"]
    assert at(table.extent.offset + table.bytes - LINE) == ["row 39999 of table words"]
    assert at(table.checksums.offset) == ["checksums of table words"]
    assert at(28 * MIB) == ["free space"]
    assert [u.needed for u in uses(geometry, directory, Extent(28 * MIB, LINE))] == [False]


def test_poisoned_rows_are_named_with_their_table(sysfs: Sysfs, pool: Path, cxl: Cxl) -> None:
    tree = interleaved(sysfs, 2, 256)
    with Subject.open(str(pool), Sources(sysfs=sysfs.root, dev=sysfs.dev)) as subject:
        subject.tree, subject.device, subject.root = tree, tree.dax("dax2.0"), True
        assert subject.directory is not None
        extent = subject.directory.value.require("words", pool).extent
        # Row 100 lies 6400 bytes into the table, which begins on an even grain: grain 25, of the second target.
        dpa = MIB + (extent.offset + 6400) // 512 * 256
        errors = [{"offset": dpa, "length": 64, "source": "Injected"}]
        cxl.prints("", json.dumps([{"memdev": "mem0"}, {"memdev": "mem1", "media_errors": errors}]))
        findings = list(poison.probe(subject))
        bad = found(findings, "memdev.poison", "0xe1")
        assert bad.state is State.CRITICAL
        assert bad.found == f"64 bytes at {dpa:#x} of mem1 (injected): row 100 of table words"
        errors[0]["offset"] = MIB + 28 * MIB // 2
        cxl.prints("", json.dumps([{"memdev": "mem0"}, {"memdev": "mem1", "media_errors": errors}]))
        spare = found(poison.probe(subject), "memdev.poison", "0xe1")
        assert (spare.state, spare.found.rpartition(": ")[2]) == (State.WARNING, "free space")


def test_source_of_an_error_is_cut_where_it_is_no_word(sysfs: Sysfs, pool: Path, cxl: Cxl) -> None:
    tree = interleaved(sysfs, 1, 256)
    errors = [{"offset": 28 * MIB, "length": 64, "source": "0x" + 6000 * "F"}]
    cxl.prints("", json.dumps([{"memdev": "mem0", "media_errors": errors}]))
    with Subject.open(str(pool), Sources(sysfs=sysfs.root, dev=sysfs.dev)) as subject:
        subject.tree, subject.device, subject.root = tree, tree.dax("dax2.0"), True
        (bad,) = poison.probe(subject)
    assert bad.state is State.WARNING
    assert bad.found == f"64 bytes at {28 * MIB:#x} of mem0 (0x{78 * 'f'}...): free space"


def test_hundred_bad_places_are_counted_and_not_all_listed(sysfs: Sysfs, pool: Path, cxl: Cxl) -> None:
    tree = interleaved(sysfs, 1, 256)
    errors = [{"offset": 28 * MIB + n * 64, "length": 64, "source": "Internal"} for n in range(100)]
    cxl.prints("", json.dumps([{"memdev": "mem0", "media_errors": errors}]))
    with Subject.open(str(pool), Sources(sysfs=sysfs.root, dev=sysfs.dev)) as subject:
        subject.tree, subject.device, subject.root = tree, tree.dax("dax2.0"), True
        findings = list(poison.probe(subject))
    assert len(findings) == poison.NAMED + 1
    assert findings[0].figure == 100
    assert findings[-1].found == "84 more places"
