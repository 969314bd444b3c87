# SPDX-License-Identifier: Apache-2.0
"""Unmaking pools."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from outcomes import Outcome, unchanged

import engramdax
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
