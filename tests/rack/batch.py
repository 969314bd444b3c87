# SPDX-License-Identifier: Apache-2.0
"""Many commands in one process of a guest: an interpreter with everything imported takes seconds to start there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tools.rack.guest import Guest

PROGRAM = """
import contextlib, io, json, os, subprocess, sys
from engramdax.commands.main import run
results = []
path = os.environ["PATH"]
for command in json.load(sys.stdin):
    if isinstance(command, str):
        done = subprocess.run(["/bin/bash", "-c", command], capture_output=True, text=True)
        results.append([done.returncode, done.stdout, done.stderr])
        continue
    os.environ["PATH"] = command[0] or path
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(command[1:])
    os.environ["PATH"] = path
    results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.stdout)
"""


@dataclass(frozen=True)
class Command:
    """An engramdax command, with a PATH of its own where one is given."""

    line: str
    path: str = ""


@dataclass(frozen=True)
class Result:
    """What came of one."""

    what: str
    code: int
    out: str
    err: str

    def succeeded(self) -> Result:
        assert self.code == 0, f"{self.what}: {self.code}: {self.out}{self.err}"
        return self

    def failed(self, code: int, *said: str) -> None:
        assert self.code == code, f"{self.what}: {self.code}: {self.out}{self.err}"
        assert self.err.startswith("engramdax: ")
        for words in said:
            assert words in self.err, self.err

    def json(self) -> Any:
        return json.loads(self.succeeded().out)


def run_all(host: Guest, commands: Sequence[str | Command], timeout: float = 200) -> list[Result]:
    """Run them one after the other, whatever each ends with; a string is a line for bash."""
    given = [c if isinstance(c, str) else [c.path, *shlex.split(c.line)] for c in commands]
    done = host.run(["python", "-c", PROGRAM], stdin=json.dumps(given).encode(), timeout=timeout)
    names = [c if isinstance(c, str) else f"engramdax {c.line}" for c in commands]
    return [
        Result(f"{host.name}: {name}", *result) for name, result in zip(names, json.loads(done.stdout), strict=True)
    ]


def engramdax(*lines: str) -> list[Command]:
    """Give engramdax commands."""
    return [Command(line) for line in lines]
