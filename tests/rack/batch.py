# SPDX-License-Identifier: Apache-2.0
"""Many commands in one process of a guest, forked from its zygote (zygote.py)."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from channel import client
from zygotes import ready

from tools.rack.errors import CommandTimeoutError
from tools.rack.guest import Guest


@dataclass(frozen=True)
class Command:
    """An engramdax command, with a PATH of its own where one is given."""

    line: str
    path: str = ""
    settle: float = 0.0
    """Seconds to wait for what does not come; 0 leaves it at what is waited for what does."""


@dataclass(frozen=True)
class Remedy:
    """The command that `discover` prints for a part of the host, run as it stands.

    The part is the one of this list of its JSON whose `key` is `value`; `options` are added to the last command.
    """

    kind: str
    key: str
    value: Any
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """What came of one."""

    what: str
    code: int
    out: str
    err: str
    seconds: float = 0.0
    fitness: dict[str, Any] = field(default_factory=dict)
    """What `discover` said of the part, of a Remedy."""

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


def run_all(host: Guest, commands: Sequence[str | Command | Remedy], timeout: float = 200) -> list[Result]:
    """Run them one after the other, whatever each ends with; a string is a line for bash."""
    zygote = ready(host)
    path = f"/run/{uuid4().hex}.json"
    host.put(path, json.dumps([_given(c) for c in commands]).encode())
    task = json.dumps({"do": "in_turn", "arguments": {"path": path}, "environment": {}})
    try:
        done = host.python(client(task.encode()), timeout=timeout, check=False)
    except CommandTimeoutError:
        raise AssertionError(f"{host.name}: {commands}: not done after {timeout:g} s: {zygote.output()}") from None
    names = [f"{host.name}: {f'engramdax {c.line}' if isinstance(c, Command) else c}" for c in commands]
    results = [Result(name, *json.loads(line)) for name, line in zip(names, done.stdout.splitlines(), strict=False)]
    if len(results) < len(commands):
        raise AssertionError(f"{names[len(results)]}: {done.stderr}{host.console[-3000:]}")
    return results


def _given(command: str | Command | Remedy) -> Any:
    if isinstance(command, Command):
        return {"words": shlex.split(command.line), "path": command.path, "settle": command.settle}
    if isinstance(command, Remedy):
        return {"part": [command.kind, command.key, command.value, command.options]}
    return command


def engramdax(*lines: str) -> list[Command]:
    """Give engramdax commands."""
    return [Command(line) for line in lines]
