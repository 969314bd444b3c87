# SPDX-License-Identifier: Apache-2.0
"""The command line in this process and as a process of its own, and a pool with a table in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome

from engramdax.commands.main import run

MIB = 1 << 20
PROGRAM = Path(sys.executable).with_name("engramdax")


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Believe at once that a superblock or directory is damaged: no other host is about to mend it here."""
    monkeypatch.setattr("engramdax.pool.volume.RETRY_SECONDS", 0.1)


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Give a function that runs one command in this process."""

    def call(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        return Outcome(code, *capfd.readouterr())

    return call


@pytest.fixture(scope="session")
def program() -> Path:
    """Give the console script as pip installed it."""
    if not PROGRAM.exists():
        pytest.skip(f"engramdax is not installed beside {sys.executable}")
    return PROGRAM


@pytest.fixture
def process(program: Path) -> Callable[..., Outcome]:
    """Give a function that runs one command as users do."""

    def call(*arguments: object, **options: Any) -> Outcome:
        done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False, **options)
        return Outcome(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture
def kept() -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Give the rows of the table that stands in `pool`."""
    return np.random.default_rng(7).integers(0, 256, (500, 48), np.uint8)


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., object], kept: np.ndarray[Any, Any]) -> Path:
    """Make the pool "shelf" with the table "kept", and room for two small tables more."""
    path = make_pool(24 * MIB, "shelf")
    load_array(path, "kept", kept)
    return path
