# SPDX-License-Identifier: Apache-2.0
"""Other processes on the same host: a script that talks in lines, and can be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOLD_TABLE = """
import sys, engramdax
table = engramdax.open(sys.argv[1])[sys.argv[2]]
print("holding", flush=True)
sys.stdin.readline()
"""
"""Keeps a table until it is told to end. Arguments: path, table."""

HOLD_WRITER = """
import sys
from pathlib import Path
from engramdax.pool.writer import Writer
with Writer(Path(sys.argv[1])):
    print("holding", flush=True)
    sys.stdin.readline()
"""
"""Keeps the writer's lock until it is told to end. Argument: path."""


class Process:
    """A running script."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self._popen = popen

    @property
    def pid(self) -> int:
        return self._popen.pid

    def hear(self) -> str:
        """Give the next line that it prints."""
        assert self._popen.stdout is not None
        return self._popen.stdout.readline().strip()

    def say(self, line: str = "") -> None:
        """Give it a line."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line + "\n")
        self._popen.stdin.flush()

    def running(self) -> bool:
        """Tell whether it has not ended yet."""
        return self._popen.poll() is None

    def kill(self) -> None:
        """Let it die without any chance to clean up."""
        os.kill(self._popen.pid, signal.SIGKILL)
        self._popen.wait()

    def end(self) -> int:
        """Close its input and give its exit status."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        return self._popen.wait()


@contextmanager
def process(script: str, *arguments: str | Path) -> Iterator[Process]:
    """Run `script` with this interpreter; it is killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as popen:
        try:
            yield Process(popen)
        finally:
            if popen.poll() is None:
                popen.kill()


def run_script(script: str, *arguments: str | Path) -> str:
    """Run a script to its end and give what it printed; an error of it is the caller's."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    return done.stdout
