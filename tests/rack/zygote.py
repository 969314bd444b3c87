# SPDX-License-Identifier: Apache-2.0
"""Runs in a guest: a process that has everything imported and forks for each task, with the task's own outputs.

An emulated processor takes seconds to get an interpreter there. A task is one of FUNCTIONS, or an engramdax command as
a shell gives it. Tasks come from the guest itself over a unix socket, with the descriptors of their outputs; a task
whose client went away is killed. Other hosts ask over TCP who uses a pool here, and get what `engramdax info` prints.
"""

from __future__ import annotations

import array
import importlib
import io
import json
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import NoReturn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "crash")]

# What commands import when they need it, too; what only some tests need is named by who starts this.
import ctypes.util  # noqa: E402

import cffi.cparser  # noqa: E402, F401
import numpy.random  # noqa: E402, F401
import rich._emoji_codes  # noqa: E402, F401
import soak  # noqa: E402
import tasks  # noqa: E402
import turns  # noqa: E402
from channel import PORT, TASKS  # noqa: E402

from engramdax.commands.main import run  # noqa: E402
from engramdax.health import hosts  # noqa: E402, F401

QUESTION_BYTES = 64
SO_PEERGROUPS, MAX_GROUPS, PR_SET_DUMPABLE = 59, 64, 4

FUNCTIONS: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        tasks.command,
        tasks.hold,
        tasks.look,
        tasks.map_device,
        tasks.steps,
        tasks.stop_at,
        tasks.write_table,
        turns.in_turn,
        soak.take_part,
    )
}


def become(outputs: dict[int, int], act: Callable[[], int]) -> NoReturn:
    """Be the child that does a task, with these descriptors as 1 and 2."""
    code = 1
    try:
        os.setsid()
        for number, fd in outputs.items():
            os.dup2(fd, number)
        code = act()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 1
    except BaseException:  # noqa: BLE001 - this process must not go on as a second zygote
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def be_the_user_of(client: socket.socket) -> None:
    """Go on with the user and the groups of the process at the other end."""
    _, user, group = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user:
        groups = client.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * MAX_GROUPS)
        os.setgroups(struct.unpack(f"{len(groups) // 4}i", groups))
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        # What /proc tells of a process that changed its user is root's, unless it says so or runs another program.
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def do(text: bytes) -> int:
    """Do what a client sent: JSON, or the words of a command."""
    if not text.startswith(b"{"):
        os.environ["PATH"], os.environ["HOME"], *words = text.decode().split("\0")
        return tasks.code(*words[1:]) if words[0] == "-c" else tasks.command(words)
    task = json.loads(text)
    os.environ.update(task["environment"])
    return FUNCTIONS[task["do"]](**task["arguments"])


class Zygote:
    """The sockets, and the children that run."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._tasks = socket.socket(socket.AF_UNIX)
        self._tasks.bind(TASKS)
        Path(TASKS).chmod(0o777)
        self._tasks.listen()
        self._questions = socket.create_server(("", PORT))
        self._selector.register(self._tasks, selectors.EVENT_READ, self._take_task)
        self._selector.register(self._questions, selectors.EVENT_READ, self._take_question)

    def serve(self) -> NoReturn:
        """Go on for ever."""
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._selector.get_map():  # another event of this turn may have ended it
                    key.data()

    def _take_task(self) -> None:
        client, _ = self._tasks.accept()
        fds = array.array("i")
        text = b""
        while not text.endswith(b"\n"):
            part, ancillary, _, _ = client.recvmsg(1 << 16, socket.CMSG_SPACE(2 * fds.itemsize))
            for _, _, data in ancillary:
                fds.frombytes(data)
            text += part

        def act() -> int:
            be_the_user_of(client)
            return do(text[:-1])

        self._fork(client, dict(zip((1, 2), fds, strict=True)), act)
        for fd in fds:
            os.close(fd)

    def _take_question(self) -> None:
        client, _ = self._questions.accept()
        pool = client.recv(QUESTION_BYTES).decode().strip()
        words = ["info", "--json", "--pool", pool]
        self._fork(client, {1: client.fileno()}, lambda: tasks.command(words=words))

    def _fork(self, client: socket.socket, outputs: dict[int, int], act: Callable[[], int]) -> None:
        if not (pid := os.fork()):
            for one in (self._selector, self._tasks, self._questions):
                one.close()
            become(outputs, act)
        pidfd = os.pidfd_open(pid)
        watched = {client, pidfd}

        def gone() -> None:
            self._selector.unregister(client)
            watched.remove(client)
            if pidfd in watched:
                os.kill(pid, signal.SIGKILL)

        def ended() -> None:
            for one in watched:
                self._selector.unregister(one)
            watched.clear()
            os.close(pidfd)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            with suppress(OSError):  # it went away
                if 2 in outputs:
                    client.send(b"%d\n" % (code if code >= 0 else 128 - code))
                client.shutdown(socket.SHUT_RDWR)  # of which other children have copies
            client.close()

        self._selector.register(client, selectors.EVENT_READ, gone)
        self._selector.register(pidfd, selectors.EVENT_READ, ended)


def build_command_line() -> None:
    """Have done what the first command of a process does, half of what most take there; this one finds no pool."""
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        run(["ls", "--pool", "/nowhere"])


if __name__ == "__main__":
    build_command_line()
    for name in sys.argv[1:]:
        importlib.import_module(name)
    zygote = Zygote()
    print("ready", flush=True)
    zygote.serve()
