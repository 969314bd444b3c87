# SPDX-License-Identifier: Apache-2.0
"""The rules as a Promela model (pool.pml), all states of which spin visits."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

MODEL = Path(__file__).with_name("pool.pml")
STATES = re.compile(r"^ *(\d+) states, stored", re.MULTILINE)

pytestmark = [
    pytest.mark.unsanitized,
    pytest.mark.skipif(shutil.which("spin") is None, reason="spin is not installed (Debian's package of that name)"),
]


def check(folder: Path, *defines: str) -> tuple[bool, int]:
    """Visit all states of the model; tell whether none breaks an assertion or hangs, and how many there are."""
    subprocess.run(["spin", *defines, "-a", MODEL], cwd=folder, check=True, capture_output=True)
    subprocess.run(["cc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"], cwd=folder, check=True)
    done = subprocess.run(["./pan", "-m200000", "-w24"], cwd=folder, check=True, capture_output=True, text=True)
    assert "max search depth too small" not in done.stdout
    states = STATES.search(done.stdout)
    assert states is not None
    return "errors: 0" in done.stdout, int(states[1])


@pytest.mark.parametrize("case", [("-DLIVES=2",), ("-DLIVES=1", "-DTAKE_OVER")], ids=["death", "take-over"])
def test_no_state_of_the_model_breaks_a_rule(
    tmp_path: Path, case: tuple[str, ...], figure: Callable[[str], None]
) -> None:
    right, states = check(tmp_path, *case)
    figure(f"spin {' '.join(case)}: {states} states")
    assert right
    assert states > 100_000


@pytest.mark.parametrize(
    "case",
    [
        ("-DLIVES=2", "-DNO_SECOND_LOOK"),
        ("-DLIVES=2", "-DNO_PIN"),
        ("-DLIVES=2", "-DNO_INVALIDATION"),
        ("-DLIVES=2", "-DSAME_ORDER"),
        ("-DLIVES=1", "-DTAKE_OVER", "-DNO_CHECK"),
        ("-DLIVES=1", "-DTAKE_OVER", "-DNO_PROOF"),
    ],
    ids=lambda case: case[-1],
)
def test_the_model_catches_each_rule_that_is_left_out(tmp_path: Path, case: tuple[str, ...]) -> None:
    right, _ = check(tmp_path, *case)
    assert not right
