# SPDX-License-Identifier: Apache-2.0
"""The baton: of all contenders' processes exactly one runs at any time, the others are stopped.

Contenders cannot share a process: torch's and OpenMP's idle threads spin for milliseconds after a parallel
region and would take cores from whoever is timed next. Nor does it help to wait until they sleep, for how
long that takes is each library's affair. So whoever has finished its turn gets SIGSTOP, which takes all its
threads off the CPUs at once, and SIGCONT before its next turn, which begins with calls that do not count.
Within its own turn every contender may spin as it likes.

Turns go round several times, so that a change in the machine's speed meets all alike, beginning with
another contender each time. Ids differ from turn to turn: the same ones would be cold to the first contender
and in the caches, which all share, to the others.
"""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from typing import TYPE_CHECKING

from engramdax.bench.worker import Failed, Ready, Setup, Taken, Turn, serve

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from typing import Any, Self


class Runner:
    """The parent's end of one worker; a context manager that ends it. `failed` says why it takes no turns."""

    def __init__(self, setup: Setup) -> None:
        self.name = setup.contender
        self.failed = ""
        self.version = ""
        # Not forked: OpenMP does not survive that, and a worker starts with nothing of the others' caches.
        context = get_context("spawn")
        here: Connection[Any, Any]
        there: Connection[Any, Any]
        here, there = context.Pipe()
        self._connection = here
        self._process = context.Process(target=serve, args=(setup, there), name=f"bench-{self.name}", daemon=True)
        try:
            self._process.start()
            there.close()
            answer = self._answer()
        except BaseException:
            self.close()
            raise
        if isinstance(answer, Ready):
            self.version = answer.version
            self._stop()
        else:
            self.failed = answer.reason if isinstance(answer, Failed) else f"answered {answer}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, wherever it is."""
        if self._process.pid is not None:
            self._process.kill()
            self._process.join()
        self._connection.close()

    def take(self, turn: Turn) -> Taken | Failed:
        """Give it the baton for one turn."""
        if self.failed:
            return Failed(self.failed)
        self._signal(signal.SIGCONT)
        try:
            self._connection.send(turn)
        except OSError:
            self.failed = "its process has ended"
            return Failed(self.failed)
        answer = self._answer()
        self._stop()
        return answer if isinstance(answer, Taken | Failed) else Failed(f"answered {answer}")

    def _answer(self) -> Ready | Taken | Failed:
        try:
            answer: Ready | Taken | Failed = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            self.failed = f"its process ended with {self._process.exitcode}"
            return Failed(self.failed)
        return answer

    def _stop(self) -> None:
        if self.failed:
            return
        self._signal(signal.SIGSTOP)
        # Wait until it has stopped; should it end instead, its exit status is left for `_process`.
        os.waitid(os.P_PID, self._pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)  # never somebody else's pid: nobody has waited for this process yet

    @property
    def _pid(self) -> int:
        pid = self._process.pid
        if pid is None:
            raise RuntimeError("the worker was never started")
        return pid
