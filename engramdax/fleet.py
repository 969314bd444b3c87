# SPDX-License-Identifier: Apache-2.0
"""Commands on many hosts at once, by ClusterShell: its node sets and groups, its ssh, its fan-out and timeouts.

Which worker it takes (ssh, rsh, pdsh, exec), the fan-out and what @groups there are stands in ClusterShell's own
configuration (/etc/clustershell, ~/.config/clustershell), how hosts are reached in ~/.ssh/config.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engramdax.errors import BackingError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS: Final = 15.0
MOST_BYTES: Final = 16 << 20
"""What a host may say before it is cut off: a report with a thousand tables has less than one MiB."""


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


def nodes_of(text: str) -> list[str]:
    """Give the hosts of a node set such as node[1-8] or @rack1; ParameterError for what is none, or empty."""
    shell = _clustershell()
    try:
        found = [str(node) for node in shell.NodeSet.NodeSet(text)]
    except shell.NodeSet.NodeSetException as e:
        raise ParameterError(
            f"--hosts {text} is no set of nodes: {e}", remedy="write node[1-8], a,b or @group"
        ) from None
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
    task.set_info("ssh_options", ssh_options)
    task.set_info("connect_timeout", min(float(task.info("connect_timeout") or seconds), seconds))
    handler = _handler(shell.Event.EventHandler)
    outputs = {host: Output(host) for host in hosts}
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
            self._bytes += len(msg) + 1
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
