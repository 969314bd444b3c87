# SPDX-License-Identifier: Apache-2.0
"""Unmaking pools."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from outcomes import Outcome, unchanged

import engramdax
from engramdax.backing import open_fd
from engramdax.errors import RefusedError
from engramdax.media import MappedMedia
from engramdax.pool.records import read_records
from engramdax.pool.remains import _look, lost_pool, plan_forgetting
from engramdax.pool.steps import carry_out
from engramdax.pool.writer import Writer

Command = Callable[..., Outcome]


def records() -> list[Path]:
    return sorted((Path(os.environ["ENGRAMDAX_STATE_DIR"]) / "pools").glob("*"))


def test_empty_pool_gives_its_file_back(command: Command, make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    assert records()
    outcome = command("deprovision", "--pool", path).succeeded()
    assert outcome.out == f"pool {path.stem} is gone from {path}\n"
    assert not path.exists()
    assert records() == []
    command("ls").failed(2, "no pool is known on this host")


def test_tables_need_force(command: Command, pool: Path) -> None:
    with unchanged(pool):
        command("deprovision", "--pool", pool).failed(3, "pool shelf", str(pool), "1 table", "kept", "--force")
        command("deprovision", "--pool", pool, "--dry-run").failed(3, "--force")
    command("deprovision", "--pool", pool, "--force").succeeded()
    assert not pool.exists()


def test_readers_need_force_and_keep_what_they_read(command: Command, make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    with engramdax.open(path) as opened:
        with unchanged(path):
            command("deprovision", "--pool", path).failed(3, "is open in process", str(os.getpid()), "--force")
        command("deprovision", "--pool", path, "--force").succeeded()
        assert opened.tables == ()
    assert not path.exists()


def test_writer_is_never_disturbed(command: Command, pool: Path) -> None:
    with Writer(pool), unchanged(pool):
        outcome = command("deprovision", "--pool", pool, "--force")
        outcome.failed(1, str(pool), "written by another process", str(os.getpid()))


def test_dry_run_changes_nothing(command: Command, pool: Path) -> None:
    with unchanged(pool):
        outcome = command("deprovision", "--pool", pool, "--force", "--dry-run").succeeded()
        assert all(line.startswith("would ") for line in outcome.out.splitlines())
        assert f"would remove {pool}" in outcome.out
        planned = command("deprovision", "--pool", pool, "--force", "--dry-run", "--json").json()
        assert planned["done"] is False
    assert len(records()) == 1


def test_removed_pool_is_no_pool_through_another_name(
    command: Command, make_pool: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_pool()
    (tmp_path / "link").hardlink_to(path)
    command("deprovision", "--pool", path).succeeded()
    command("ls", "--pool", tmp_path / "link").failed(1, "no pool here")


def test_pool_whose_file_is_gone_is_forgotten_when_forced(command: Command, make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    path.unlink()
    command("ls").failed(1, "are gone", str(path), "deprovision --force")
    command("deprovision").failed(3, f"was at {path} and is not there now", "--force")
    assert command("deprovision", "--force", "--dry-run").succeeded().out == "would forget the pool\n"
    assert len(records()) == 1
    command("deprovision", "--force").succeeded()
    assert records() == []
    command("deprovision", "--force").failed(2, "no pool is known on this host")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_pool_where_this_user_may_not_look_is_not_taken_for_lost(pool: Path) -> None:
    (record,) = read_records()
    pool.unlink()
    pool.parent.chmod(0o700)
    assert _look(record) is not None
    os.seteuid(65534)
    try:
        assert _look(record) is None
    finally:
        os.seteuid(0)


def test_lost_pool_is_forgotten_by_its_uuid_beside_the_one_made_in_its_place(
    command: Command, make_pool: Callable[..., Path]
) -> None:
    path = make_pool(name="tables")
    lost = records()[0].stem
    path.unlink()
    assert make_pool(name="tables") == path
    with unchanged(path):
        command("deprovision", "--pool", lost).failed(3, lost, "--force")
        command("deprovision", "--pool", lost, "--force").succeeded()
    assert len(records()) == 1
    command("deprovision", "--pool", "tables").succeeded()
    assert (records(), path.exists()) == ([], False)


def test_lost_pools_of_one_name_are_told_apart(command: Command, make_pool: Callable[..., Path]) -> None:
    for _ in range(2):
        make_pool(name="tables").unlink()
    uuids = [record.stem for record in records()]
    command("deprovision", "--pool", "tables", "--force").failed(2, *uuids, "by its uuid")
    for uuid in uuids:
        command("deprovision", "--pool", uuid, "--force").succeeded()
    assert records() == []


SIZE = 24 << 20


def left_of(path: Path) -> int:
    """Give the bytes of a file that its directory names still, -1 for none."""
    return path.stat().st_size if path.exists() else -1


@pytest.mark.parametrize("left", [0, 5, 30, 50, 4095, 4096, 3 << 20, 13 << 20, SIZE - 1])
@pytest.mark.parametrize("named", ["path", "name", "uuid", "nothing"])
def test_pool_in_a_truncated_file_is_given_back_when_forced(
    command: Command, pool: Path, tmp_path: Path, left: int, named: str
) -> None:
    (uuid,) = [record.stem for record in records()]
    (tmp_path / "link").hardlink_to(pool)
    os.truncate(pool, left)
    which = {"path": ["--pool", pool], "name": ["--pool", "shelf"], "uuid": ["--pool", uuid], "nothing": []}[named]
    with unchanged(pool):
        restored = ["restore its size"] if left else []
        said = (f"pool shelf ({uuid}) on {pool}", f"the file has {left} bytes, the pool {SIZE}", *restored)
        command("deprovision", *which).failed(3, *said, "say --force to remove the file")
        planned = command("deprovision", *which, "--force", "--dry-run").succeeded().out.splitlines()
        assert planned == [f"would remove {pool} ({left} bytes), what is left of the pool", "would forget the pool"]
    command("deprovision", *which, "--force").succeeded()
    assert (left_of(pool), records()) == (-1, [])
    os.truncate(tmp_path / "link", SIZE)
    # Less than a superblock is none, whoever lengthens it.
    command("ls", "--pool", tmp_path / "link").failed(1, "no pool here" if left >= 4096 else "")


def test_truncated_file_is_given_back_whose_record_says_no_size(command: Command, pool: Path) -> None:
    (file,) = records()
    file.write_text(json.dumps({**json.loads(file.read_text()), "size": 0}))
    os.truncate(pool, SIZE // 2)
    command("deprovision").failed(3, f"says {SIZE} bytes, the media has {SIZE // 2}", "--force")
    command("deprovision", "--force").succeeded()
    assert (left_of(pool), records()) == (-1, [])


def test_file_with_damaged_superblocks_is_given_back_when_forced(command: Command, pool: Path) -> None:
    with pool.open("r+b") as file:
        for place in (100, (2 << 20) + 100):
            file.seek(place)
            file.write(b"\xff")
    with unchanged(pool):
        command("deprovision").failed(3, str(pool), "checksum is wrong", "--force")
    command("deprovision", "--force").succeeded()
    assert (left_of(pool), records()) == (-1, [])


def test_writer_of_a_truncated_file_is_not_disturbed(command: Command, pool: Path) -> None:
    for left in (SIZE // 2, 0):
        with Writer(pool):
            os.truncate(pool, left)
            command("deprovision", "--force").failed(1, "written by another process")
        assert left_of(pool) == left
        os.truncate(pool, SIZE)


def test_grown_file_goes_as_any_other(command: Command, make_pool: Callable[..., Path]) -> None:
    path = make_pool(SIZE)
    os.truncate(path, 3 * SIZE)
    command("deprovision").succeeded()
    assert (left_of(path), records()) == (-1, [])


def others(content: str, path: Path, make_pool: Callable[..., Path]) -> None:
    """Put into the place of a pool's file what is not that pool's."""
    if content == "directory":
        path.unlink()
        path.mkdir()
        return
    data = {
        "zeros": bytes(SIZE),
        "text": b"somebody's notes\n",
        "like one": b"ENGRMDAX" + bytes(100),
        "part of another": make_pool(SIZE, "other").read_bytes()[: 3 << 20],
    }[content]
    path.write_bytes(data)


@pytest.mark.parametrize("content", ["zeros", "text", "like one", "part of another", "directory"])
def test_what_stands_in_the_place_of_a_pool_and_is_not_its_own_stays(
    command: Command, pool: Path, make_pool: Callable[..., Path], content: str
) -> None:
    (uuid,) = [record.stem for record in records()]
    others(content, pool, make_pool)
    before = left_of(pool)
    command("deprovision", "--pool", pool).failed(3, f"pool shelf ({uuid}) was at {pool}", "not it", "leaves that")
    with unchanged(*([pool] if pool.is_file() else [])):
        planned = command("deprovision", "--pool", pool, "--force", "--dry-run").succeeded()
        assert planned.out == f"would forget the pool, and leave {pool} as it is\n"
        command("deprovision", "--pool", pool, "--force").succeeded()
    assert left_of(pool) == before
    assert uuid not in [record.stem for record in records()]


def test_file_that_changes_before_it_is_removed_stays(pool: Path) -> None:
    os.truncate(pool, SIZE // 2)
    left = lost_pool(pool)
    assert left is not None
    steps = plan_forgetting(left, force=True).steps
    pool.write_text("somebody's notes")
    with pytest.raises(RefusedError, match="is something else now"):
        carry_out(steps)
    assert pool.read_text() == "somebody's notes"
    assert len(records()) == 1


def test_file_that_is_replaced_while_it_is_removed_stays(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.truncate(pool, SIZE // 2)
    left = lost_pool(pool)
    assert left is not None
    fence = MappedMedia.fence

    def fence_and_replace(media: MappedMedia) -> None:
        fence(media)
        notes = pool.with_name("notes")
        notes.write_text("somebody's notes")
        notes.replace(pool)

    monkeypatch.setattr(MappedMedia, "fence", fence_and_replace)
    with pytest.raises(RefusedError, match="is something else now"):
        carry_out(plan_forgetting(left, force=True).steps)
    assert pool.read_text() == "somebody's notes"
    assert len(records()) == 1


def test_nothing_is_written_to_another_file_that_stood_there_for_a_moment(
    pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest, notes = tmp_path / "rest", tmp_path / "notes"
    os.truncate(pool, SIZE // 2)
    pool.rename(rest)
    pool.symlink_to(rest)
    notes.write_bytes(b"n" * SIZE)
    left = lost_pool(pool)
    assert left is not None
    steps = plan_forgetting(left, force=True).steps

    def lead_to(place: Path) -> None:
        pool.unlink()
        pool.symlink_to(place)

    def open_and_lead_back(path: Path, *, writable: bool) -> int:
        fd = open_fd(path, writable=writable)
        lead_to(rest)
        return fd

    lead_to(notes)
    monkeypatch.setattr("engramdax.pool.remains.open_fd", open_and_lead_back)
    with unchanged(notes, rest), pytest.raises(RefusedError, match="is something else now"):
        carry_out(steps)


def test_truncated_file_behind_a_link_is_removed_and_not_the_link(command: Command, pool: Path, tmp_path: Path) -> None:
    rest = tmp_path / "rest"
    pool.rename(rest)
    pool.symlink_to(rest)
    os.truncate(rest, SIZE // 2)
    planned = command("deprovision", "--force", "--dry-run").succeeded().out.splitlines()
    assert planned[0] == f"would remove {rest} ({SIZE // 2} bytes), what is left of the pool"
    command("deprovision", "--force").succeeded()
    assert (left_of(rest), records()) == (-1, [])


def test_giving_back_a_file_with_holes_takes_no_more_of_its_disk(command: Command, pool: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.hardlink_to(pool)
    for size in (1 << 20, SIZE):
        os.truncate(pool, size)
    with pool.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff")
    taken = link.stat().st_blocks
    command("deprovision", "--force").succeeded()
    assert left_of(pool) == -1
    assert link.stat().st_blocks == taken
    assert not any(link.read_bytes()[: 4 << 10])
