# SPDX-License-Identifier: Apache-2.0
"""Progress of load and verify: for whoever watches a terminal, and for nobody else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from outcomes import Outcome

MIB = 1 << 20


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "rows.bin"
    with path.open("wb") as file:
        file.truncate(40 * MIB)
    return path


def on_a_terminal(*arguments: object) -> tuple[int, str, str]:
    """Run a program whose stderr is a terminal; give exit code, stdout, and what the terminal got."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "24"}
    with subprocess.Popen(
        list(map(str, arguments)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # what Linux says when the last writer has gone
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        assert process.stdout
        out = process.stdout.read().decode()
    return process.returncode, out, shown.decode()


def test_bar_shows_name_bytes_rate_and_time_left_on_a_terminal(
    program: Path, make_pool: Callable[..., Path], source: Path
) -> None:
    pool = make_pool(64 * MIB)
    for arguments in (("load", source, "--row-bytes", 1024), ("verify",)):
        code, out, shown = on_a_terminal(program, *arguments, "--pool", pool)
        assert code == 0
        plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
        assert re.search(r"rows\b.*40\.0/40\.0 MiB.*[0-9]:[0-9]{2}:[0-9]{2}", plain)
        assert "rows: " in out
        assert "\x1b" not in out
    # A load this small may end before its rate can be told; a verify reports every block.
    assert re.search(r"[0-9.]+ [kMG]B/s", plain)


def test_nothing_is_shown_where_stderr_is_no_terminal(
    process: Callable[..., Outcome], make_pool: Callable[..., Path], source: Path
) -> None:
    pool = make_pool(64 * MIB)
    process("load", source, "--row-bytes", 1024, "--pool", pool).succeeded()
    process("verify", "--pool", pool).succeeded()
