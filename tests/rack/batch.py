# SPDX-License-Identifier: Apache-2.0
"""Many commands in one process of a guest, forked from one that has everything imported: that takes seconds there."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from tools.rack.errors import CommandTimeoutError
from tools.rack.guest import Guest, Process

FOLDER = "/run/batch"
REQUESTS = f"{FOLDER}/requests"

SERVER = f"""
import contextlib, io, json, os, shlex, signal, subprocess, sys, time, traceback
os.dup2(1, 2)
from engramdax.commands.main import run
from engramdax.devices import system
path = os.environ["PATH"]
settle = system.SETTLE_SECONDS

def bash(line):
    done = subprocess.run(["/bin/bash", "-c", line], capture_output=True, text=True)
    return [done.returncode, done.stdout, done.stderr]

def engramdax(words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = run(words)
    return [code, out.getvalue(), err.getvalue()]

def remedy(kind, key, value, options):
    (part,) = [p for p in json.loads(engramdax(["discover", "--json"])[1])[kind] if p[key] == value and p["fitness"]]
    command = part["fitness"]["command"]
    result = [99, "", "discover names no command"]
    for line in command.split(" && ") if command else []:
        program, *words = shlex.split(line)
        result = engramdax(words + list(options)) if program == "engramdax" else bash(line)
        if result[0]:
            break
    return [*result, part["fitness"]]

def answer(command):
    began = time.monotonic()
    if isinstance(command, str):
        result = bash(command)
    elif "part" in command:
        result = remedy(*command["part"])
    else:
        os.environ["PATH"] = command["path"] or path
        system.SETTLE_SECONDS = command["settle"] or settle
        result = engramdax(command["words"])
        os.environ["PATH"] = path
        system.SETTLE_SECONDS = settle
    result.insert(3, time.monotonic() - began)
    return result

def serve(number):
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with open(f"{FOLDER}/{{number}}", "w") as out, open(f"{FOLDER}/{{number}}.json") as commands:
        for command in json.load(commands):
            print(json.dumps(answer(command)), file=out, flush=True)

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.mkfifo("{REQUESTS}")
while True:
    with open("{REQUESTS}") as requests:
        for number in requests:
            if not os.fork():
                try:
                    serve(number.strip())
                except BaseException:
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    os._exit(0)
"""

# With what the agent has imported: it runs this as a fork of itself.
CLIENT = f"""
import os, sys, time
number, end = "{{number}}", time.monotonic() + {{timeout}}
while not os.path.exists("{REQUESTS}") and time.monotonic() < end:
    time.sleep(0.05)
os.mkfifo(f"{FOLDER}/{{{{number}}}}")
fd = os.open("{REQUESTS}", os.O_WRONLY)
os.write(fd, f"{{{{number}}}}\\n".encode())
os.close(fd)
with open(f"{FOLDER}/{{{{number}}}}") as answer:
    sys.stdout.write(answer.read())
"""

_servers: dict[tuple[str, int | None], Process] = {}
"""By the folder of a guest and the process of its machine, which is another one after each boot."""


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


def get_ready(host: Guest) -> None:
    """Start the process that others are forked from, if it is not there; nothing waits for it yet."""
    boot = (str(host.folder), host.pid)
    if boot not in _servers:
        host.run(f"mkdir -p {FOLDER}")
        _servers[boot] = host.start(["python", "-c", SERVER])


def run_all(host: Guest, commands: Sequence[str | Command | Remedy], timeout: float = 200) -> list[Result]:
    """Run them one after the other, whatever each ends with; a string is a line for bash."""
    get_ready(host)
    server = _servers[str(host.folder), host.pid]
    number = uuid4().hex
    host.put(f"{FOLDER}/{number}.json", json.dumps([_given(c) for c in commands]).encode())
    try:
        done = host.python(CLIENT.format(number=number, timeout=timeout), timeout=timeout).stdout
    except CommandTimeoutError:
        raise AssertionError(f"{host.name}: {commands}: not done after {timeout:g} s: {server.output()}") from None
    names = [f"{host.name}: {f'engramdax {c.line}' if isinstance(c, Command) else c}" for c in commands]
    results = [Result(name, *json.loads(line)) for name, line in zip(names, done.splitlines(), strict=False)]
    if len(results) < len(commands):
        raise AssertionError(f"{names[len(results)]}: {server.output()}{host.console[-3000:]}")
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
