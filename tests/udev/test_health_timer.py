# SPDX-License-Identifier: Apache-2.0
"""The unit and the timer that look at a pool's health, as `engramdax udev install --health-timer` installs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from engramdax.commands.main import run
from engramdax.devices.installation import HEALTH, HEALTH_TIMER, HEALTH_UNIT, HEALTH_WANTED
from engramdax.health.finding import EXIT_CODES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    return root


def below(root: Path, place: Path) -> Path:
    return root / place.relative_to("/")


def test_timer_is_installed_only_when_asked_and_taken_away_again(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["udev", "install", "--root", str(root)]) == 0
    assert not any(os.path.lexists(below(root, place)) for place in HEALTH)
    assert run(["udev", "install", "--root", str(root), "--health-timer"]) == 0
    assert all(os.path.lexists(below(root, place)) for place in HEALTH)
    assert str(below(root, HEALTH_WANTED).readlink()) == str(HEALTH_TIMER)
    assert run(["udev", "remove", "--root", str(root)]) == 0
    assert list(root.iterdir()) == []


def test_unit_succeeds_with_every_code_of_a_check(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run(["udev", "install", "--root", str(root), "--health-timer"])
    text = below(root, HEALTH_UNIT).read_text()
    (codes,) = re.findall(r"^SuccessExitStatus=(.*)$", text, re.MULTILINE)
    assert {0, *map(int, codes.split())} == set(EXIT_CODES.values())
    assert "@" not in text
    assert re.search(r"^ExecStart=\S+.* health --prometheus \$\{METRICS\}$", text, re.MULTILINE)


def test_systemd_takes_unit_and_timer(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    run(["udev", "install", "--root", str(root), "--health-timer"])
    for place in (HEALTH_UNIT, HEALTH_TIMER):
        command = [analyze, "verify", "--recursive-errors=no", below(root, place)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
