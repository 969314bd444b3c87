# SPDX-License-Identifier: Apache-2.0
"""Names that a table cannot have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from outcomes import Outcome, unchanged

Command = Callable[..., Outcome]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((4, 4), np.uint8))
    return path


def test_name_that_exists_is_refused(command: Command, pool: Path, rows: Path) -> None:
    with unchanged(pool):
        outcome = command("load", rows, "--name", "kept", "--pool", pool)
    outcome.failed(1, str(pool), "holds a table kept already", "engramdax rm")


@pytest.mark.parametrize(
    "name",
    ["", "n" * 129, "a\nb", "\x1b[2J", "a\tb", "\x7f", "..", ".", "a/../b", "a/..", "/a", "a/", "a//b", "a b", "ä"],
)
def test_impossible_name_is_a_usage_error(command: Command, pool: Path, rows: Path, name: str) -> None:
    with unchanged(pool):
        command("load", rows, "--name", name, "--pool", pool).failed(2, "cannot name a table", "128 letters, digits")


@pytest.mark.parametrize("name", ["n" * 128, "...", "a/b/c", "-.-"])
def test_unusual_name_is_taken(command: Command, pool: Path, rows: Path, name: str) -> None:
    command("load", rows, "--name", name, "--pool", pool).succeeded()
    assert {t["name"] for t in command("ls", "--json", "--pool", pool).json()["tables"]} == {"kept", name}


@pytest.mark.parametrize("verb", ["rm", "info", "verify"])
@pytest.mark.parametrize("name", ["absent", "", "..", "a\nb", "n" * 5000])
def test_table_that_is_not_there_is_refused(command: Command, pool: Path, verb: str, name: str) -> None:
    with unchanged(pool):
        command(verb, name, "--pool", pool).failed(1, str(pool), "holds no table", "it holds kept")
