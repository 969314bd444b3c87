# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.rack`, from up to down."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tools.rack.prefix import Prefix

pytestmark = pytest.mark.rack

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(prefix: Prefix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Give a function that runs `python -m tools.rack` with a cache where no rack is up."""
    (tmp_path / prefix.path.name).symlink_to(prefix.path)
    monkeypatch.setenv("ENGRAMDAX_RACK_DIR", str(tmp_path))

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "tools.rack", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2],
        )

    return run


def test_rack_is_up_until_it_is_taken_down(command: Command, tmp_path: Path) -> None:
    up = command("up", "--hosts", "1")
    try:
        assert ": h0\n" in up.stdout, up.stderr
        folder = Path((tmp_path / "up").read_text())
        done = command("run", "h0", "echo out; echo err >&2; exit 7")
        assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")
        assert command("run", "h0", "echo", "two  words").stdout == "two  words\n"
        assert "a rack is up in" in command("up").stderr
        assert command("run", "h7", "true").stderr == "rack: there is no host h7, but h0\n"
    finally:
        assert command("down").returncode == 0
    assert not folder.exists()
    assert command("run", "h0", "true").stderr == "rack: no rack is up; `python -m tools.rack up` starts one\n"
