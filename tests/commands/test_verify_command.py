# SPDX-License-Identifier: Apache-2.0
"""Damage that `verify` finds."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome

import engramdax

Command = Callable[..., Outcome]

MIB = 1 << 20
ROWS, ROW_BYTES = 40_000, 100


@pytest.fixture
def wide_pool(make_pool: Callable[..., Path], load_array: Callable[..., Any], kept: np.ndarray[Any, Any]) -> Path:
    """Make a pool with a table of four blocks and a small one."""
    path = make_pool(32 * MIB)
    load_array(path, "wide", np.random.default_rng(1).integers(0, 256, (ROWS, ROW_BYTES), np.uint8))
    load_array(path, "kept", kept)
    return path


def flip(pool: Path, table: str, offset: int, *, checksums: bool = False) -> None:
    with engramdax.open(pool) as opened:
        entry = opened.directory.table(table)
    assert entry is not None
    place = (entry.checksums if checksums else entry.extent).offset + offset
    with pool.open("r+b") as file:
        file.seek(place)
        (byte,) = file.read(1)
        file.seek(place)
        file.write(bytes([byte ^ 0x10]))


def test_undamaged_tables_are_ok(command: Command, wide_pool: Path) -> None:
    outcome = command("verify", "--pool", wide_pool).succeeded()
    assert outcome.out == "kept: ok, 23.4 KiB\nwide: ok, 3.8 MiB\n"


@pytest.mark.parametrize("offset", [0, MIB - 1, MIB, 3 * MIB + 5, ROWS * ROW_BYTES - 1])
def test_flipped_bit_is_found_and_its_rows_named(command: Command, wide_pool: Path, offset: int) -> None:
    flip(wide_pool, "wide", offset)
    outcome = command("verify", "--pool", wide_pool)
    first = offset // MIB * MIB
    last = min(first + MIB, ROWS * ROW_BYTES) - 1
    assert (outcome.code, outcome.err) == (1, "")
    assert outcome.out.splitlines() == [
        "kept: ok, 23.4 KiB",
        "wide: 1 block damaged; `engramdax repair` restores them",
        f"  bytes {first} to {last}: rows {first // ROW_BYTES} to {last // ROW_BYTES}",
    ]
    assert command("verify", "kept", "--pool", wide_pool).code == 0
    assert command("verify", "wide", "--pool", wide_pool).code == 1


def test_damage_in_json(process: Command, wide_pool: Path) -> None:
    import json

    flip(wide_pool, "wide", 5)
    flip(wide_pool, "wide", 2 * MIB)
    outcome = process("verify", "--pool", wide_pool, "--json")
    assert (outcome.code, outcome.err) == (1, "")
    fine, damaged = json.loads(outcome.out)
    assert fine == {"name": "kept", "ok": True, "bad_blocks": []}
    assert (damaged["name"], damaged["ok"]) == ("wide", False)
    assert [(block["offset"], block["length"]) for block in damaged["bad_blocks"]] == [(0, MIB), (2 * MIB, MIB)]


def test_damaged_checksums_are_told_from_damaged_rows(command: Command, wide_pool: Path) -> None:
    flip(wide_pool, "wide", 4, checksums=True)
    outcome = command("verify", "--pool", wide_pool)
    assert outcome.code == 1
    assert "kept: ok" in outcome.out
    assert "wide: the checksums of table wide are damaged themselves" in outcome.out
    assert "`engramdax repair wide SOURCE`" in outcome.out


def test_a_sample_is_told_as_the_share_that_was_asked_for(command: Command, wide_pool: Path) -> None:
    assert "wide: ok, 5% of " in command("verify", "wide", "--sample", "0.05", "--pool", wide_pool).succeeded().out


def test_damaged_table_is_right_again_after_it_is_loaded_again(
    command: Command, wide_pool: Path, tmp_path: Path
) -> None:
    flip(wide_pool, "kept", 0)
    assert command("verify", "--pool", wide_pool).code == 1
    np.save(tmp_path / "again.npy", np.zeros((500, 48), np.uint8))
    command("rm", "kept", "--pool", wide_pool).succeeded()
    command("load", tmp_path / "again.npy", "--name", "kept", "--pool", wide_pool).succeeded()
    command("verify", "--pool", wide_pool).succeeded()


def test_pool_without_tables_is_fine(command: Command, make_pool: Callable[..., Path]) -> None:
    assert command("verify", "--pool", make_pool()).succeeded().out == "there are no tables\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_slow_verification_ends_when_it_is_interrupted(
    program: Path, wide_pool: Path, *, number: signal.Signals
) -> None:
    command = ["env", "--default-signal=INT,TERM", program, "verify", "--rate", "1", "--pool", wide_pool]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(2)
        process.send_signal(number)
        assert "interrupted" in process.communicate(timeout=60)[1] or process.returncode == -number
        assert process.returncode in (1, -number)
