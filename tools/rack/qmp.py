# SPDX-License-Identifier: Apache-2.0
"""QEMU's control socket (QMP): commands, and events to wait for."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any, Self

from tools.rack.errors import GuestGoneError, RackError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class Qmp:
    """A connection; QEMU serves one at a time. Not for several threads."""

    def __init__(self, path: Path, *, timeout: float = 30) -> None:
        self._events: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            self._socket.settimeout(timeout)
            self._socket.connect(str(path))
            self._lines = self._socket.makefile("rb")
            self._read()  # the greeting
            self.execute("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run a command and give what it returns; an underscore in a name of an argument stands for a hyphen.

        RackError with QEMU's own words where it refuses.
        """
        renamed = {name.replace("_", "-"): value for name, value in arguments.items()}
        self._socket.sendall(json.dumps({"execute": command, "arguments": renamed}).encode() + b"\n")
        while True:
            answer = self._read()
            if "error" in answer:
                raise RackError(f"QEMU refuses {command} {renamed}: {answer['error']['desc']}")
            if "return" in answer:
                return answer["return"]
            self._events.append(answer)

    def wait(self, event: str, *, timeout: float, **data: Any) -> dict[str, Any]:
        """Wait for an event that carries this data, among those since the connection was made, and give its data."""
        end = time.monotonic() + timeout
        while True:
            for seen in self._events:
                if seen.get("event") == event and data.items() <= seen.get("data", {}).items():
                    return dict(seen["data"])
            self._socket.settimeout(max(end - time.monotonic(), 0.001))
            try:
                self._events.append(self._read())
            except TimeoutError:
                raise RackError(f"no {event} with {data} within {timeout:g} s") from None

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise GuestGoneError("QEMU closed its control socket")
        answer: dict[str, Any] = json.loads(line)
        return answer
