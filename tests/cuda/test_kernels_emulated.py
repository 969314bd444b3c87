# SPDX-License-Identifier: Apache-2.0
"""The kernels on an emulated GPU (tests/cuda/emulator), launched by c/cuda.c, with random calls and in random orders.

ENGRAMDAX_TRIALS sets how many trials (64 if unset), ENGRAMDAX_SEED the seed of the first one (another each time if
unset). One that failed is run again by `ENGRAMDAX_SEED=... ENGRAMDAX_TRIALS=1`.

The CPU's side of lanes is played, so that all follows from the seed, but for one test, in which c/lane.c has it.
What is not shown: whether fences are missing, as stores are seen at once and in order; and what takes how long.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from emulator_program import Emulator, compilers

pytestmark = pytest.mark.skipif(compilers() is None, reason="no compiler for C++ (Debian: g++)")

HERE = "tests/cuda/test_kernels_emulated.py"
TRIALS = int(os.environ.get("ENGRAMDAX_TRIALS", "64"))
SEED = int(os.environ.get("ENGRAMDAX_SEED") or random.SystemRandom().randrange(1 << 40))
FIXED = 112
"""Each kind of trial with each form of rows."""

RARE = (
    "blocks that begin while the launch before runs",
    "blocks that run beside others",
    "calls that fill the staging buffer",
    "calls that found the lane in use",
    "calls without a staged row",
    "direct calls",
    "hot rows",
    "ids within heads",
    "lanes taken after a late round",
    "late chunks",
    "launches of insert_hot",
    "launches of post_few",
    "launches of post_many",
    "launches of take_lane",
    "launches that post with fewer blocks",
    "launches with shared memory",
    "rounds of chunks in other places",
    "rounds of more than 64 chunks",
    "rows that could not be had",
    "sequence numbers near their end",
    "trials with a lane in use for ever",
    "trials with ids of the host",
    "trials without a registered table",
)
FORMS = ("raw_1", "raw_2", "raw_4", "raw_8", "raw_16", "float8_bf16", "float8_fp16")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """Give the emulator."""
    return Emulator(tmp_path_factory.mktemp("emulator"))


def run_trials(program: Path, first: int, count: int, test: str = "random") -> dict[str, int]:
    """Give how often what happened. test: what the one is called that takes any seed."""
    done = subprocess.run([program, str(first), str(count)], capture_output=True, text=True, check=False)
    if done.returncode:
        seed = re.search(r"\bseed (\d+)", done.stderr)
        again = f"ENGRAMDAX_SEED={seed[1]} ENGRAMDAX_TRIALS=1 .venv/bin/pytest {HERE} -k {test}" if seed else "unknown"
        pytest.fail(f"{done.stderr}exit code {done.returncode}; once more: {again}", pytrace=False)
    lines = (line.split("\t") for line in done.stdout.splitlines())
    return {what: int(times) for what, times in lines}


def test_rows_come_out_right_and_all_that_is_rare_happens(emulator: Emulator) -> None:
    happened = run_trials(emulator.program(), 0, FIXED)
    names = (*RARE, *(f"launches of {kernel}_{form}" for form in FORMS for kernel in ("gather", "mixed")))
    assert [name for name in names if not happened.get(name)] == []


@pytest.mark.timeout(120 + TRIALS)
def test_rows_come_out_right_in_random_trials(emulator: Emulator, figure: Callable[[str], None]) -> None:
    happened = run_trials(emulator.program(), SEED, TRIALS)
    counted = "; ".join(f"{name} {happened.get(name, 0)}" for name in ("calls", "rows", "staged rows", *RARE))
    figure(f"{TRIALS} trials, seed {SEED}: {counted}")


@pytest.mark.timeout(120 + TRIALS)
def test_rows_come_out_right_by_way_of_the_real_team(emulator: Emulator) -> None:
    """Its threads come when they come: a seed that fails need not fail again."""
    happened = run_trials(emulator.program_with_team(), SEED, max(1, TRIALS // 2), "team")
    assert happened["calls"] > 0
