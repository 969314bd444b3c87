# SPDX-License-Identifier: Apache-2.0
"""`engramdax top`: rates of a gather that runs, in a terminal and for scripts."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from outcomes import Outcome

ROWS = 10
GATHER = f"""
import sys, time
import numpy as np
import engramdax
table = engramdax.open(sys.argv[1])["kept"]
ids = np.arange({ROWS}, dtype=np.int64)
print("gathering", flush=True)
while True:
    table.gather(ids)
    time.sleep(0.01)
"""
MOST_CALLS = 1000
"""Per second: ten times what 10 ms between two allow, since a short time may hold one more."""


@pytest.fixture
def gathering(pool: Path) -> Iterator[subprocess.Popen[str]]:
    """Give a process that gathers from the pool's table."""
    with subprocess.Popen([sys.executable, "-c", GATHER, pool], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "gathering\n"
        yield process
        process.kill()


def test_json_holds_the_rates_of_each_process(
    command: Callable[..., Outcome], pool: Path, gathering: subprocess.Popen[str]
) -> None:
    document = command("top", "--pool", pool, "--json", "--interval", "0.5").json()
    (process,) = document["processes"]
    assert process["pid"] == gathering.pid
    assert process["table"] == "kept"
    assert 0 < process["calls_per_second"] < MOST_CALLS
    assert process["rows_per_second"] == pytest.approx(ROWS * process["calls_per_second"])
    (table,) = document["tables"]
    assert table["rows_per_second"] == process["rows_per_second"]
    assert table["bytes_per_second"] == table["rows_per_second"] * table["row_bytes"]
    assert document["seconds"] >= 0.5
    assert document["state"] == "ok"
    assert [r["pid"] for r in document["readers"]] == [gathering.pid]


def test_one_screen_for_a_pipe_is_not_cut(
    process: Callable[..., Outcome], pool: Path, gathering: subprocess.Popen[str]
) -> None:
    said = process("top", "--pool", pool, "--once", "--interval", "0.2").succeeded().out
    lines = said.splitlines()
    assert lines[0].startswith("pool shelf on ")
    assert "health ok, seen" in lines[0]
    assert any(line.split()[:2] == ["kept", "500"] for line in lines if line), said
    assert any(line.split()[:1] == [str(gathering.pid)] for line in lines)


def test_what_is_wrong_with_the_pool_is_shown(command: Callable[..., Outcome], pool: Path) -> None:
    pool.chmod(0o666)
    said = command("top", "--pool", pool, "--once", "--interval", "0.05").succeeded().out
    assert "health critical" in said
    assert "critical  device.permissions: " in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "this is no terminal"),
        (("--interval", "0"), "is out of range"),
        (("--interval", "nan"), "is out of range"),
        (("--skip", "nothing"), "is no probe"),
    ],
)
def test_what_cannot_be_shown_is_an_error(
    command: Callable[..., Outcome], pool: Path, arguments: tuple[str, ...], said: str
) -> None:
    command("top", "--pool", pool, *arguments).failed(2, said)


class Terminal:
    """A terminal of tmux with a program in it."""

    def __init__(self, socket: Path, program: list[str]) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        # What is left of the terminal after the program shows whether it was put back as it was.
        line = f"{shlex.join(program)}; echo ended with $?; stty -a; cat"
        self.tmux("new-session", "-d", "-x", "150", "-y", "40", line)

    def tmux(self, *arguments: str) -> str:
        return subprocess.run([*self._tmux, *arguments], capture_output=True, text=True, check=True).stdout

    def screen_with(self, right: Callable[[str], bool], seconds: float = 60) -> str:
        """Give the screen as soon as it is right."""
        end = time.monotonic() + seconds
        while not right(screen := self.tmux("capture-pane", "-p")):
            assert time.monotonic() < end, screen
            time.sleep(0.1)
        return screen


@pytest.fixture
def terminal(pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Give a terminal in which `top` runs."""
    for name in ("COLUMNS", "LINES"):  # which would count more than the terminal's size
        monkeypatch.delenv(name, raising=False)
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    program = [sys.executable, "-m", "engramdax", "top", "--pool", str(pool), "--interval", "0.3"]
    terminal = Terminal(tmp_path / "tmux", program)
    yield terminal
    terminal.tmux("kill-server")


def rates(screen: str, first: str) -> list[str]:
    """Give the words behind the bytes of the row that begins so."""
    (line,) = [line for line in screen.splitlines() if line.split()[:1] == [first]]
    return line.split()


def test_terminal_shows_the_rates_of_a_gather_that_runs(gathering: subprocess.Popen[str], terminal: Terminal) -> None:
    pid = str(gathering.pid)

    def moves(screen: str) -> bool:
        lines = [line.split() for line in screen.splitlines()]
        found = [words for words in lines if words[:1] == [pid]]
        return bool(found) and float(found[0][-1]) > 0 and "health ok" in screen

    screen = terminal.screen_with(moves)
    words = rates(screen, pid)
    # PID COMMAND HOLDS TABLE ROWS/S BYTES/S CALLS/S
    assert words[1].startswith("python")
    assert words[2:4] == ["3", "kept"]
    calls = float(words[-1])
    assert 0 < calls < MOST_CALLS
    rows = float(words[4]) * (1000 if words[5] == "k" else 1)
    assert rows == pytest.approx(ROWS * calls, rel=0.02)
    assert rates(screen, "kept")[-1] == words[-1]

    gathering.kill()
    gathering.wait()
    terminal.screen_with(lambda screen: not any(line.split()[-1:] == [words[-1]] for line in screen.splitlines()))

    terminal.tmux("send-keys", "q")
    screen = terminal.screen_with(lambda screen: " echo " in screen)
    assert "ended with 0" in screen
    assert " icanon " in screen


def test_a_key_before_q_does_not_hide_it(terminal: Terminal) -> None:
    terminal.screen_with(lambda screen: "health ok" in screen)
    terminal.tmux("send-keys", "-l", "xq")
    assert "ended with 0" in terminal.screen_with(lambda screen: " echo " in screen, seconds=20)


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGTERM"])
def test_signal_ends_it_without_an_error_and_puts_the_terminal_back(terminal: Terminal, how: str) -> None:
    terminal.screen_with(lambda screen: "health ok" in screen)
    if how == "Ctrl-C":
        terminal.tmux("send-keys", "C-c")
    else:
        (shell,) = terminal.tmux("list-panes", "-F", "#{pane_pid}").split()
        (top,) = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        os.kill(int(top), signal.SIGTERM)
    screen = terminal.screen_with(lambda screen: " echo " in screen)
    assert "ended with 0" in screen
    assert "interrupted" not in screen
    assert " icanon " in screen


def test_json_is_one_document(process: Callable[..., Outcome], pool: Path) -> None:
    document = json.loads(process("top", "--pool", pool, "--json", "--interval", "0.05").succeeded().out)
    assert document["format"] == 1
    assert document["processes"] == []
