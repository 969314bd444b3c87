# SPDX-License-Identifier: Apache-2.0
"""Commands on many hosts at once, by ClusterShell: its node sets and groups, its ssh, its fan-out and timeouts.

Which worker it takes (ssh, rsh, pdsh, exec), the fan-out and what @groups there are stands in ClusterShell's own
configuration (/etc/clustershell, ~/.config/clustershell), how hosts are reached in ~/.ssh/config. Which hosts share a
pool, and how engramdax is started there, may stand in a file, /etc/engramdax/fleet.toml.
"""

from __future__ import annotations

import os
import shlex
import stat
import time
import tomllib
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engramdax.devices import tools
from engramdax.errors import BackingError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TIMEOUT_SECONDS: Final = 15.0
MOST_SECONDS: Final = 86400.0
MOST_BYTES: Final = 16 << 20
"""What a host may say before it is cut off: a report with a thousand tables has less than one MiB."""
LINE_COST: Final = 64
"""Bytes that a line counts as beside its own: each is an event."""

SETTING: Final = Path("/etc/engramdax/fleet.toml")
ENVIRONMENT: Final = "ENGRAMDAX_FLEET"
"""Names another file in place of SETTING; empty for none."""

NO_COMMAND: Final = 127
SSH_FAILED: Final = 255


class Answered(StrEnum):
    """How a host answered."""

    REPORT = "report"
    TIMEOUT = "timeout"
    FAILED = "failed"
    RUBBISH = "rubbish"


class NoAnswerError(Exception):
    """A host said nothing that counts: how it answered, and in words."""

    def __init__(self, answered: Answered, problem: str) -> None:
        super().__init__(problem)
        self.answered = answered
        self.problem = problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """Hosts that are asked by ssh, and how engramdax is started there. ParameterError for what cannot be used."""

    hosts: str
    """A node set of ClusterShell's: node[1-8], @rack1."""
    program: str = "engramdax"
    """For a shell of each host."""
    ssh_options: str = ""
    timeout: float = TIMEOUT_SECONDS
    """Seconds that one host may take."""

    def __post_init__(self) -> None:
        if not 0 < self.timeout <= MOST_SECONDS:
            problem = f"a timeout of {self.timeout} s is out of range"
            raise ParameterError(problem, remedy=f"give seconds above 0, at most {MOST_SECONDS:.0f}")
        for name, text in (("program", self.program), ("ssh options", self.ssh_options)):
            try:
                shlex.split(text)
            except ValueError as e:
                remedy = "quote it as for a shell"
                raise ParameterError(f"{name} {text!r} is no command line: {e}", remedy=remedy) from None
        if not self.program.strip():  # the arguments alone are another command
            raise ParameterError("the program is empty", remedy="say how engramdax is started there")

    def ask(self, arguments: Sequence[str], *, nodes: Iterable[str] | None = None) -> list[Output]:
        """Run `engramdax` with these arguments on all nodes at once, or on some of them."""
        asked = nodes_of(self.hosts) if nodes is None else list(nodes)
        command = f"{self.program} {shlex.join(arguments)}"
        return run_on(asked, command, seconds=self.timeout, ssh_options=self.ssh_options)


def setting_path() -> Path | None:
    """Give the file that says which hosts share pools; None where there is none."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen is not None:
        return Path(chosen) if chosen.strip() else None
    return SETTING if SETTING.exists() else None


def configured_fleet() -> Fleet | None:
    """Give what that file says; ParameterError with its path where it says something else."""
    path = setting_path()
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            _check_writers(path, os.fstat(file.fileno()))
            value = tomllib.load(file)
    except OSError as e:
        raise ParameterError(
            f"cannot read {path}: {e.strerror}", remedy=f"correct {ENVIRONMENT}, or the file"
        ) from None
    except (ValueError, RecursionError) as e:  # no TOML, or no UTF-8
        raise ParameterError(f"{path} is no TOML: {e}", remedy=_EXAMPLE) from None
    known = {f.name: f.type for f in fields(Fleet)}
    for name, one in value.items():
        right = (int, float) if known.get(name) == "float" else (str,)
        if name not in known or type(one) not in right:
            raise ParameterError(f"{path}: {name} = {one!r} is no setting", remedy=_EXAMPLE)
    if "hosts" not in value:
        raise ParameterError(f"{path} names no hosts", remedy=_EXAMPLE)
    try:
        return Fleet(**value)
    except ParameterError as e:
        raise ParameterError(f"{path}: {e.problem}", remedy=e.remedy) from None


def _check_writers(path: Path, status: os.stat_result) -> None:
    """Refuse a file that somebody else may write: what stands there is run as the user who reads it."""
    if status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ParameterError(
            f"{path} can be written by other users, who could have commands run as this one",
            remedy=f"`chown root {path}; chmod go-w {path}`",
        )


_EXAMPLE: Final = 'write lines such as hosts = "node[1-8]", program, ssh_options, timeout = 15'


def chosen_fleet(
    hosts: str | None, *, timeout: float | None = None, program: str | None = None, ssh_options: str | None = None
) -> Fleet | None:
    """Give the fleet of these hosts, or of those in the file; what is not None counts more than the file.

    None where nobody names hosts; ParameterError where then something else is chosen.
    """
    chosen: dict[str, Any] = {"hosts": hosts, "timeout": timeout, "program": program, "ssh_options": ssh_options}
    changes = {name: value for name, value in chosen.items() if value is not None}
    configured = configured_fleet()
    if hosts is None and configured is None:
        if changes:
            option = f"--{next(iter(changes)).replace('_', '-')}"
            remedy = f"give --hosts, or write hosts into {SETTING}"
            raise ParameterError(f"{option} is for other hosts, and none is named", remedy=remedy)
        return None
    return replace(configured or Fleet(hosts or ""), **changes)


@dataclass
class Output:
    """What came of a command on one host."""

    host: str
    stdout: str = ""
    stderr: str = ""
    code: int | None = None
    """None where it did not end by itself: it took too long, or said too much."""
    seconds: float = 0.0
    too_much: bool = False
    limit: float = TIMEOUT_SECONDS
    """Seconds that it had."""

    def document(self, key: str) -> dict[str, Any]:
        """Give the last JSON object with this key among what it said; NoAnswerError where there is none."""
        if self.too_much:
            raise NoAnswerError(Answered.RUBBISH, f"it said more than {MOST_BYTES >> 20} MiB and was cut off")
        if self.code is None:
            raise NoAnswerError(Answered.TIMEOUT, f"no answer within {self.limit:g} s")
        try:
            values = [v for v in tools.parse(self.stdout) if key in v]
        except EngramdaxError:
            values = []
        if values:
            return values[-1]
        said = _last_line(self.stderr) or _last_line(self.stdout) or "it said nothing"
        if self.code in (NO_COMMAND, SSH_FAILED) or (self.code and self.stderr.strip()):
            raise NoAnswerError(Answered.FAILED, f"exit code {self.code}: {said}")
        raise NoAnswerError(Answered.RUBBISH, f"what it said is no report: {said}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""


def nodes_of(text: str) -> list[str]:
    """Give the hosts of a node set such as node[1-8] or @rack1; ParameterError for what is none, or empty."""
    shell = _clustershell()
    try:
        found = [str(node) for node in shell.NodeSet.NodeSet(text)]
    except shell.NodeSet.NodeSetException as e:
        raise ParameterError(
            f"--hosts {text} is no set of nodes: {e}", remedy="write node[1-8], a,b or @group"
        ) from None
    if odd := [node for node in found if node.startswith("-")]:
        raise ParameterError(f"{odd[0]!r} is no host, but an option to ssh", remedy="write node[1-8], a,b or @group")
    if not found:
        raise ParameterError(f"--hosts {text} names no host", remedy="write node[1-8], a,b or @group")
    return found


def run_on(
    hosts: Sequence[str], command: str, *, seconds: float = TIMEOUT_SECONDS, ssh_options: str = ""
) -> list[Output]:
    """Run a command, as a shell of each host reads it, on all hosts at once; give what came of it in their order.

    A host that has not ended after `seconds` is given up. EngramdaxError where ClusterShell or its worker's program is
    missing. Not for several threads at once: ClusterShell has one task per thread, and signals are the process's.
    """
    shell = _clustershell()
    task = shell.Task.task_self()
    task.set_default("stderr", True)
    for stream in ("stdout", "stderr"):
        task.set_default(f"{stream}_msgtree", False)  # its own copy of all that is said
    task.set_info("ssh_options", ssh_options)
    task.set_info("connect_timeout", min(float(task.info("connect_timeout") or seconds), seconds))
    handler = _handler(shell.Event.EventHandler)
    outputs = {host: Output(host, limit=seconds) for host in hosts}
    try:
        for host, output in outputs.items():
            # A worker for each host: one that says too much can be ended alone.
            task.shell(command, nodes=host, handler=handler(output), timeout=seconds, stdin=False)
        task.resume()
    except OSError as e:
        task.abort()
        raise BackingError(
            f"cannot ask other hosts: {e}", remedy="install openssh-client, or configure ClusterShell's worker"
        ) from None
    return list(outputs.values())


def _clustershell() -> Any:
    """Give ClusterShell's modules Event, NodeSet and Task."""
    try:
        import ClusterShell.Event  # noqa: PLC0415 - an extra, which only this needs
        import ClusterShell.NodeSet  # noqa: PLC0415
        import ClusterShell.Task  # noqa: PLC0415
    except ImportError:
        raise EngramdaxError(
            "the Python package ClusterShell is not installed", remedy="pip install 'engramdax[fleet]'"
        ) from None
    return ClusterShell


def _handler(base: Any) -> Any:
    class Collector(base):  # type: ignore[misc] # ClusterShell has no types
        """Keeps what one host says."""

        def __init__(self, output: Output) -> None:
            self._output = output
            self._said: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
            self._bytes = 0
            self._begun = time.monotonic()

        def ev_pickup(self, worker: Any, node: str) -> None:  # noqa: ARG002 - ClusterShell's names
            self._begun = time.monotonic()

        def ev_read(self, worker: Any, node: str, sname: str, msg: bytes) -> None:  # noqa: ARG002
            output = self._output
            self._bytes += len(msg) + LINE_COST
            if self._bytes > MOST_BYTES:
                if not output.too_much:
                    output.too_much = True
                    worker.abort()
                return
            self._said[sname].append(msg)

        def ev_hup(self, worker: Any, node: str, rc: int) -> None:  # noqa: ARG002
            self._output.code = rc

        def ev_close(self, worker: Any, timedout: bool) -> None:  # noqa: ARG002
            output = self._output
            output.seconds = time.monotonic() - self._begun
            output.stdout, output.stderr = (
                b"\n".join(lines).decode(errors="backslashreplace") for lines in self._said.values()
            )

    return Collector
