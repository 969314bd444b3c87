# SPDX-License-Identifier: Apache-2.0
"""Which pool a command means: a path, a name, a uuid, the environment, or the only one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from outcomes import Outcome, unchanged

Command = Callable[..., Outcome]


def chosen(command: Command, *options: object) -> str:
    return str(command("info", "--json", *options).json()["name"])


@pytest.fixture
def two(make_pool: Callable[..., Path]) -> tuple[Path, Path]:
    return make_pool(16 << 20, "north"), make_pool(16 << 20, "south")


def test_path_name_and_uuid(command: Command, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    north, south = two
    uuid = command("info", "--json", "--pool", south).json()["uuid"]
    assert chosen(command, "--pool", north) == "north"
    assert chosen(command, "--pool", "south") == "south"
    assert chosen(command, "--pool", uuid) == "south"
    monkeypatch.chdir(north.parent)
    assert chosen(command, "--pool", "north.pool") == "north"
    assert chosen(command, "--pool", "./south.pool") == "south"


def test_environment_and_option_before_it(
    command: Command, two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("south", str(two[1])):
        monkeypatch.setenv("ENGRAMDAX_POOL", value)
        assert chosen(command) == "south"
    assert chosen(command, "--pool", "north") == "north"


def test_the_only_pool_needs_no_name(command: Command, make_pool: Callable[..., Path]) -> None:
    path = make_pool(16 << 20, "alone")
    assert chosen(command) == "alone"
    path.unlink()
    command("info").failed(1, "the pools of this host are gone: alone (", f"was at {path}", "engramdax provision")


def test_with_several_pools_a_choice_is_asked_for(command: Command, two: tuple[Path, Path]) -> None:
    with unchanged(*two):
        for verb in ("ls", "info", "verify", "deprovision", "deprovision --force"):
            command(*verb.split()).failed(2, "there are 2 pools", "north", "south", "--pool", "ENGRAMDAX_POOL")


def test_unknown_name_is_told_what_there_is(command: Command, two: tuple[Path, Path]) -> None:
    command("info", "--pool", "east").failed(1, "there is no pool east", "north", "south")


@pytest.mark.parametrize("verb", ["ls", "rm x", "deprovision --force"])
def test_empty_name_is_not_the_only_pool(command: Command, make_pool: Callable[..., Path], verb: str) -> None:
    """A script's `--pool "$UNSET"` must not remove what happens to be there."""
    path = make_pool(16 << 20, "alone")
    with unchanged(path):
        command(*verb.split(), "--pool", "").failed(2, "the pool's name is empty")


def test_name_that_two_pools_have_is_ambiguous(command: Command, tmp_path: Path) -> None:
    for number in (1, 2):
        command("provision", "--file", tmp_path / f"{number}.pool", "--size", "16M", "--name", "twin").succeeded()
    command("info", "--pool", "twin").failed(2, "2 pools are named twin", "1.pool", "2.pool", "by its path or uuid")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "n" * 5000])
def test_strange_name_is_one_printable_line(command: Command, name: str) -> None:
    command("info", "--pool", name).failed(1, "there is no pool")
