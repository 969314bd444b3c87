# SPDX-License-Identifier: Apache-2.0
"""The CXL memory `ram` of a rack as a pool of its two hosts, which ask each other over their network."""

from __future__ import annotations

import json
import shlex
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from batch import Result
from channel import ASK, client
from devices import attach
from zygotes import SECONDS, is_ready, ready, start

from engramdax.errors import RefusedError
from tools.rack.guest import Completed, Guest, Process
from tools.rack.rack import Rack

MEMORY = "ram"
PATIENCE = 4
"""How often a question is asked again that is not answered in time."""


class PoolOfTwo:
    """The pool on both hosts."""

    def __init__(self, rack: Rack) -> None:
        self.rack = rack
        self.uuid = ""
        self.devices: dict[str, str] = {}
        self._threads = ThreadPoolExecutor(2)
        self._started: list[Process] = []

    def set_up(self) -> None:
        """Have it, owned by the first host and without a table: what another module left of it, or on what is there."""
        self._started.clear()
        first = self.rack.hosts[0]
        if not self._is_left():
            self._make()
            return
        self.take_over(first)
        for name in self.look(first)["tables"]:
            self.run(first, f"rm {name}").succeeded()
        assert self.reclaim(first) == 0

    def _make(self) -> None:
        first, second = self.rack.hosts
        for future in [self._threads.submit(self.prepare, host) for host in self.rack.hosts]:
            future.result()
        provision = f"provision {self.devices[first.name]} --name {MEMORY} --force --overwrite-unknown --json"
        self.uuid = self.run(first, provision).json()["uuid"]
        joined = self.run(second, f"provision --join {self.devices[second.name]} --json").json()
        self.run(first, joined[0]["admission"].removeprefix("engramdax ")).succeeded()

    def _is_left(self) -> bool:
        for host in self.rack.hosts:
            if not self.uuid or not is_ready(host):  # it booted since
                return False
            found = self.run(host, "info --json")
            if found.code or found.json()["uuid"] != self.uuid:
                return False
        return True

    def prepare(self, host: Guest) -> None:
        """On a host that has booted: have the device there, and the zygote."""
        start(host)
        self.devices[host.name] = attach(self.rack, host, MEMORY)
        ready(host)

    def boot(self, host: Guest) -> Future[None]:
        """Boot a host that was killed, and prepare it, meanwhile."""

        def again() -> None:
            self.rack.boot(host)
            self.prepare(host)

        return self._threads.submit(again)

    def other(self, host: Guest) -> Guest:
        """Give the host that is not this one."""
        return next(one for one in self.rack.hosts if one is not host)

    def start(self, host: Guest, do: str, **arguments: Any) -> Process:
        """Start a task of the host's zygote."""
        process = host.start_python(self._client(host, do, arguments))
        self._started.append(process)
        return process

    def end_tasks(self) -> None:
        """Kill what still runs of what was started, on hosts that were up all the time."""
        for process in self._started:
            process.kill()
        self._started.clear()

    def call(self, host: Guest, do: str, **arguments: Any) -> Any:
        """Do a task, and give what it said."""
        done = host.python(self._client(host, do, arguments), timeout=SECONDS)
        return json.loads(done.stdout.splitlines()[-1])

    def run(self, host: Guest, line: str, *, ask: bool = True) -> Result:
        """Run an engramdax command; where it may not ask, no host answers."""
        program = self._client(host, "command", {"words": shlex.split(line)}, ask=ask)
        done = host.python(program, timeout=SECONDS, check=False)
        return result_of(host, line, done)

    def reclaim(self, host: Guest) -> int:
        """Reclaim with an answer from the other host, and give the bytes that wait all the same.

        A busy machine may keep a guest from answering in time.
        """
        for _ in range(PATIENCE):
            done = self.run(host, "reclaim --json")
            answer = json.loads(done.out)
            assert done.code == (RefusedError.exit_code if answer["waiting"] else 0), done
            assert answer["looked_here"]
            if not answer["silent"]:
                return sum(one["bytes"] for one in answer["waiting"])
        raise AssertionError(answer)

    def answered(self, host: Guest, line: str) -> Result:
        """Run a command again until the other host has answered it in time."""
        for _ in range(PATIENCE):
            done = self.run(host, line)
            if "did not answer" not in done.out:
                break
        return done

    def take_over(self, host: Guest) -> None:
        """Take the pool over where nobody writes."""
        self.answered(host, "own --take-over").succeeded()

    def look(self, host: Guest) -> Any:
        """Compare every byte of every table with what its version holds, and give what is there."""
        return self.call(host, "look")

    def write_table(self, host: Guest, name: str, version: int, rows: int) -> str:
        """Give the path, in the guest, of what to load as this version of a table."""
        return str(self.call(host, "write_table", name=name, version=version, rows=rows))

    def stop_at(self, host: Guest, line: str, step: int, *, torn: bool = False, go: str = "/nowhere") -> Process | None:
        """Start a command that stands still at a step until there is a file `go`; None where it ends before."""
        process = self.start(host, "stop_at", words=shlex.split(line), step=step, torn=torn, go=go)
        end = time.monotonic() + SECONDS
        while f"stopped at step {step}\n" not in process.output():
            if (done := process.poll()) is not None:
                result_of(host, line, done).succeeded()
                return None
            assert time.monotonic() < end
            time.sleep(0.05)
        return process

    def _client(self, host: Guest, do: str, arguments: dict[str, Any], *, ask: bool = True) -> str:
        environment = {"ENGRAMDAX_POOL": self.devices[host.name], "ENGRAMDAX_ASK": ASK if ask else ""}
        task = json.dumps({"do": do, "arguments": arguments, "environment": environment})
        return client(task.encode())


def result_of(host: Guest, line: str, done: Completed) -> Result:
    return Result(f"{host.name}: engramdax {line}", done.code, done.stdout, done.stderr)
