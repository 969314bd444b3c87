# SPDX-License-Identifier: Apache-2.0
"""Runs in a guest: commands one after the other in one process, and what came of each."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import subprocess
import time
from pathlib import Path
from typing import Any

from engramdax.commands.main import run
from engramdax.devices import system

Done = tuple[int, str, str]
"""Exit code, and what was said on stdout and stderr."""


def in_turn(path: str) -> int:
    """Do the commands of a JSON file, and print a line of JSON for each: as `batch.Result` takes them."""
    for command in json.loads(Path(path).read_text()):
        print(json.dumps(_answer(command)), flush=True)
    return 0


def _answer(command: Any) -> list[Any]:
    began = time.monotonic()
    fitness: dict[str, Any] = {}
    if isinstance(command, str):
        done = _bash(command)
    elif "part" in command:
        done, fitness = _remedy(*command["part"])
    else:
        path, settle = os.environ["PATH"], system.SETTLE_SECONDS
        os.environ["PATH"] = command["path"] or path
        system.SETTLE_SECONDS = command["settle"] or settle  # type: ignore[misc]
        done = _engramdax(command["words"])
        os.environ["PATH"] = path
        system.SETTLE_SECONDS = settle  # type: ignore[misc]
    return [*done, time.monotonic() - began, fitness]


def _bash(line: str) -> Done:
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def _engramdax(words: list[str]) -> Done:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return code, out.getvalue(), err.getvalue()


def _remedy(kind: str, key: str, value: Any, options: list[str]) -> tuple[Done, dict[str, Any]]:
    """Run the command that `discover` prints for a part of this host."""
    listed = json.loads(_engramdax(["discover", "--json"])[1])[kind]
    (part,) = [p for p in listed if p[key] == value and p["fitness"]]
    done: Done = (99, "", "discover names no command")
    for line in (part["fitness"]["command"] or "").split(" && "):
        program, *words = shlex.split(line) or [""]
        if program:
            done = _engramdax([*words, *options]) if program == "engramdax" else _bash(line)
        if done[0]:
            break
    return done, part["fitness"]
