# SPDX-License-Identifier: Apache-2.0
"""Two processes that want to write one pool."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from outcomes import Outcome, unchanged

from engramdax.pool.writer import Writer

Command = Callable[..., Outcome]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((4, 4), np.uint8))
    return path


def test_second_writer_is_told_who_writes(process: Command, pool: Path, rows: Path) -> None:
    with Writer(pool), unchanged(pool):
        for arguments in (["load", rows], ["rm", "kept"], ["deprovision", "--force"]):
            outcome = process(*arguments, "--pool", pool)
            outcome.failed(1, str(pool), f"written by another process (pid {os.getpid()})", "try again")
    process("load", rows, "--pool", pool).succeeded()


def test_readers_do_not_care_about_a_writer(command: Command, pool: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.arange(3, dtype=np.int32))
    with Writer(pool), unchanged(pool):
        command("ls", "--pool", pool).succeeded()
        command("verify", "--pool", pool).succeeded()
        command("gather", "kept", "--ids", ids, "--out", tmp_path / "out.npy", "--pool", pool).succeeded()
