# SPDX-License-Identifier: Apache-2.0
"""Pools whose metadata are damaged, newer than this code, or impossible."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import numpy as np
import pytest
from outcomes import Outcome, unchanged

from engramdax.format.directory import Directory, from_slot, payload_bytes
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, Extent, standard
from engramdax.format.superblock import Superblock
from engramdax.host import host_id
from engramdax.pool import volume

Command = Callable[..., Outcome]

SIZE = 24 << 20
GEOMETRY = standard(SIZE)


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((4, 4), np.uint8))
    return path


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a damaged directory for what it is at once, and not after 5 s."""
    monkeypatch.setattr(volume, "RETRY_SECONDS", 0.01)


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def superblock_of(path: Path) -> Superblock:
    return Superblock.from_bytes(path.read_bytes()[:SUPERBLOCK_BYTES], media_bytes=path.stat().st_size)


def write_superblocks(path: Path, superblock: Superblock) -> None:
    for place in GEOMETRY.superblocks:
        overwrite(path, place, superblock.to_bytes())


def directory_of(path: Path) -> Directory:
    data = path.read_bytes()
    place = GEOMETRY.slots[0]
    header = data[place : place + LINE]
    length = payload_bytes(header, pool=superblock_of(path).pool, slot_bytes=GEOMETRY.slot_bytes)
    return from_slot(header, data[place + LINE : place + LINE + length], size=SIZE, geometry=GEOMETRY)


def write_slots(path: Path, directory: Directory, slots: tuple[int, ...] = (0, 1)) -> None:
    header, payload = directory.to_slot(GEOMETRY.slot_bytes)
    for slot in slots:
        overwrite(path, GEOMETRY.slots[slot], header + payload)


def failed_alike(command: Command, pool: Path, rows: Path, code: int, *said: str) -> None:
    """Check reading and writing commands."""
    with unchanged(pool):
        for arguments in (["ls"], ["info", "kept"], ["verify"], ["rm", "kept"], ["load", rows]):
            command(*arguments, "--pool", pool).failed(code, str(pool), *said)


def test_unknown_incompatible_feature_forbids_everything(command: Command, pool: Path, rows: Path) -> None:
    write_superblocks(pool, replace(superblock_of(pool), incompat=0x4))
    failed_alike(command, pool, rows, 1, "incompatible features 0x4", "newer engramdax")


def test_unknown_ro_compatible_feature_forbids_writing(command: Command, pool: Path, rows: Path) -> None:
    write_superblocks(pool, replace(superblock_of(pool), ro_compat=0x8))
    with unchanged(pool):
        command("verify", "--pool", pool).succeeded()
        for arguments in (["rm", "kept"], ["load", rows]):
            command(*arguments, "--pool", pool).failed(1, str(pool), "features 0x8", "newer engramdax")


def test_unknown_compatible_feature_forbids_nothing(command: Command, pool: Path, rows: Path) -> None:
    write_superblocks(pool, replace(superblock_of(pool), compat=0x10))
    command("load", rows, "--pool", pool).succeeded()
    command("verify", "--pool", pool).succeeded()


def test_pool_larger_than_its_file_is_refused(command: Command, pool: Path, rows: Path) -> None:
    os.truncate(pool, SIZE // 2)
    failed_alike(
        command, pool, rows, 1, f"says {SIZE} bytes", f"has {SIZE // 2}", "truncated", "what is left is as it was"
    )
    os.truncate(pool, SIZE)
    command("ls", "--pool", pool).succeeded()


@pytest.mark.parametrize("beyond", [1, 1 << 40, (1 << 64) - 1 - SIZE])
def test_superblock_with_a_size_beyond_the_file_is_refused(
    command: Command, pool: Path, rows: Path, beyond: int
) -> None:
    write_superblocks(pool, replace(superblock_of(pool), size=SIZE + beyond))
    failed_alike(command, pool, rows, 1, f"says {SIZE + beyond} bytes", f"has {SIZE}")


def test_both_superblocks_damaged_is_refused(command: Command, pool: Path, rows: Path) -> None:
    for place in GEOMETRY.superblocks:
        overwrite(pool, place + 100, b"\xff" * 8)
    failed_alike(command, pool, rows, 1, "no usable superblock", "checksum is wrong", "provision it anew")


def test_both_superblocks_gone_is_no_pool(command: Command, pool: Path, rows: Path) -> None:
    for place in GEOMETRY.superblocks:
        overwrite(pool, place, bytes(SUPERBLOCK_BYTES))
    failed_alike(command, pool, rows, 1, "no pool here")


@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("damage", [b"\xff" * 8, bytes(SUPERBLOCK_BYTES)], ids=["flipped", "gone"])
def test_one_bad_superblock_is_a_warning(process: Command, pool: Path, rows: Path, copy: int, damage: bytes) -> None:
    place = GEOMETRY.superblocks[copy]
    overwrite(pool, place, damage)
    with unchanged(pool):
        outcome = process("ls", "--pool", pool)
    outcome.warned(str(pool), f"superblock copy at {place}")
    assert "kept" in outcome.out
    assert process("load", rows, "--pool", pool).code == 0


def test_superblock_of_another_pool_in_one_place_is_a_warning(
    process: Command, pool: Path, make_pool: Callable[..., Path]
) -> None:
    other = make_pool(SIZE, "other")
    place = GEOMETRY.superblocks[1]
    overwrite(pool, place, other.read_bytes()[place : place + SUPERBLOCK_BYTES])
    outcome = process("ls", "--pool", pool)
    outcome.warned(str(pool), f"superblock copy at {place}")
    assert "kept" in outcome.out


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("offset", [0, 20, LINE], ids=["magic", "uuid", "payload"])
def test_one_bad_slot_is_a_warning_until_the_next_write_repairs_it(
    process: Command, pool: Path, rows: Path, slot: int, offset: int
) -> None:
    overwrite(pool, GEOMETRY.slots[slot] + offset, b"\xff" * 8)
    with unchanged(pool):
        outcome = process("ls", "--pool", pool)
    outcome.warned(str(pool), f"directory slot {slot}", "damaged")
    assert "kept" in outcome.out
    process("load", rows, "--pool", pool).succeeded()
    process("verify", "--pool", pool).succeeded()


def test_older_slot_alone_is_used_when_the_newer_is_bad(
    command: Command, process: Command, pool: Path, rows: Path
) -> None:
    older = directory_of(pool)
    command("load", rows, "--pool", pool).succeeded()
    write_slots(pool, older, (1,))
    overwrite(pool, GEOMETRY.slots[0], b"\xff")
    outcome = process("ls", "--pool", pool)
    outcome.warned("directory slot 0")
    assert "rows " not in outcome.out


def test_generation_that_a_bad_slot_may_have_held_is_not_used_again(command: Command, pool: Path) -> None:
    newer = directory_of(pool)
    write_slots(pool, replace(newer, generation=newer.generation - 1), (1,))
    overwrite(pool, GEOMETRY.slots[0], b"\xff")
    command("rm", "absent", "--pool", pool).failed(1, "holds no table")
    assert directory_of(pool).generation > newer.generation


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("offset", [0, LINE], ids=["headers", "payloads"])
def test_both_slots_bad_is_refused(command: Command, pool: Path, rows: Path, offset: int) -> None:
    for place in GEOMETRY.slots:
        overwrite(pool, place + offset, b"\xff" * 8)
    failed_alike(command, pool, rows, 1, "no usable directory", "slot 0", "slot 1", "damaged", "provision it anew")


def test_both_slots_bad_is_reported_within_the_time_a_publication_may_take(process: Command, pool: Path) -> None:
    for place in GEOMETRY.slots:
        overwrite(pool, place, bytes(LINE))
    with unchanged(pool):
        process("ls", "--pool", pool).failed(1, str(pool), "no usable directory", "the slot is empty")


@pytest.mark.usefixtures("no_patience")
def test_slots_of_another_pool_are_refused(
    command: Command, pool: Path, rows: Path, make_pool: Callable[..., Path]
) -> None:
    other = make_pool(SIZE, "other")
    write_slots(pool, directory_of(other))
    failed_alike(command, pool, rows, 1, "no usable directory", f"another pool, {superblock_of(other).pool}")


def test_one_slot_of_another_pool_is_a_warning(process: Command, pool: Path, make_pool: Callable[..., Path]) -> None:
    other = make_pool(SIZE, "other")
    write_slots(pool, replace(directory_of(other), generation=1 << 40), (0,))
    outcome = process("ls", "--pool", pool)
    outcome.warned("slot 0", "another pool")
    assert "kept" in outcome.out


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize(
    ("extent", "said"),
    [
        (Extent(SIZE, 2 << 20), "outside the pool"),
        (Extent(SIZE - (2 << 20), 4 << 20), "outside the pool"),
        (Extent((1 << 63) - (2 << 20), 2 << 20), "outside the pool"),
        (Extent((12 << 20) + LINE, 2 << 20), "outside the pool"),
        (Extent(0, 2 << 20), "overlapping extents"),
        (Extent(GEOMETRY.slots[0], 2 << 20), "overlapping extents"),
        (Extent(12 << 20, 0), "empty extent"),
        (Extent(-(2 << 20), 2 << 20), "where a count belongs"),
        (Extent(1 << 64, 2 << 20), "where a count belongs"),
    ],
    ids=[
        "behind-the-end",
        "across-the-end",
        "end-of-2**63",
        "unaligned",
        "superblock",
        "directory",
        "empty",
        "negative",
        "2**64",
    ],
)
@pytest.mark.parametrize("which", ["extent", "checksums"])
def test_impossible_extent_under_a_right_checksum_is_refused(
    command: Command, pool: Path, rows: Path, *, extent: Extent, said: str, which: str
) -> None:
    directory = directory_of(pool)
    (entry,) = directory.tables
    changed = replace(entry, extent=extent) if which == "extent" else replace(entry, checksums=extent)
    write_slots(pool, replace(directory, tables=(changed,)))
    failed_alike(command, pool, rows, 1, "no usable directory", said)


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("count", [1 << 20, 1 << 62])
def test_more_rows_than_the_extent_holds_is_refused(command: Command, pool: Path, rows: Path, count: int) -> None:
    directory = directory_of(pool)
    (entry,) = directory.tables
    write_slots(pool, replace(directory, tables=(replace(entry, rows=count),)))
    failed_alike(command, pool, rows, 1, "no usable directory", "does not fit its extents")


@pytest.mark.usefixtures("no_patience")
@pytest.mark.parametrize("name", ["../kept", "a\nb", ""])
def test_impossible_table_name_under_a_right_checksum_is_refused(
    command: Command, pool: Path, rows: Path, name: str
) -> None:
    directory = directory_of(pool)
    (entry,) = directory.tables
    write_slots(pool, replace(directory, tables=(replace(entry, name=name),)))
    failed_alike(command, pool, rows, 1, "no usable directory", "impossible table name")


def test_pool_of_a_host_that_was_not_admitted_is_refused(command: Command, pool: Path, rows: Path) -> None:
    write_superblocks(pool, replace(superblock_of(pool), shared=True))
    stranger = uuid4()
    directory = directory_of(pool)
    write_slots(pool, replace(directory, owner=stranger, hosts=(replace(directory.hosts[0], id=stranger),)))
    admission = f"`engramdax hosts admit {host_id()} --name "
    failed_alike(command, pool, rows, 3, "is not admitted to the shared pool shelf", "its owner, run", admission)


def test_pool_that_another_host_writes_can_be_read_and_not_written(command: Command, pool: Path, rows: Path) -> None:
    write_superblocks(pool, replace(superblock_of(pool), shared=True))
    directory = directory_of(pool)
    owner = replace(directory.hosts[0], id=UUID(int=7), name="elsewhere")
    write_slots(pool, replace(directory, owner=owner.id, hosts=(*directory.hosts, owner)))
    with unchanged(pool):
        command("verify", "--pool", pool).succeeded()
        for arguments in (["rm", "kept"], ["load", rows]):
            command(*arguments, "--pool", pool).failed(3, "is written by host elsewhere", "run this on elsewhere")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({}, "unknown"),
        ({"kind": 5, "files": [{"path": "a\x1b[2J\nb"}], "tensors": ["t"]}, r"5, a\x1b[2J\x0ab, t"),
        ({"kind": "npy", "files": [{"path": "caf\udcff"}, {}, 7, None]}, r"npy, caf\xdcff"),
        ({"kind": "raw", "files": {"path": "x"}, "tensors": "abc"}, "raw"),
        ({"kind": "raw", "files": None, "tensors": 3}, "raw"),
        ({"kind": ["x"], "files": [], "tensors": [None, {}]}, "['x'], None, {}"),
    ],
)
def test_odd_description_of_a_source_is_told_on_one_printable_line(
    command: Command, pool: Path, source: dict[str, Any], told: str
) -> None:
    found = directory_of(pool)
    write_slots(pool, replace(found, tables=tuple(replace(t, source=source) for t in found.tables)))
    lines = command("info", "kept", "--pool", pool).succeeded().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert [line.split(maxsplit=1)[1] for line in lines if line.startswith("source")] == [told]
    assert command("info", "kept", "--pool", pool, "--json").json()["source"] == source


def test_time_of_making_that_no_calendar_has_is_told_as_a_number(command: Command, pool: Path) -> None:
    for created in (1 << 62, (1 << 64) - 1, 1 << 40):
        write_superblocks(pool, replace(superblock_of(pool), created=created))
        lines = command("info", "--pool", pool).succeeded().out.splitlines()
        assert [line.split()[1] for line in lines if line.startswith("created")] == [str(created)]
