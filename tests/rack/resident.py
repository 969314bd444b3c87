# SPDX-License-Identifier: Apache-2.0
"""engramdax in a guest, imported once: an emulated processor takes eight seconds for that, and a command a few.

A process stays there and forks for each command that a small client hands over with its output. The client may be
started by anything, an sshd too: it stands for the program `engramdax`.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Any, Final

from batch import Result

from tools.rack.guest import Guest

CLIENT: Final = "/run/engramdax-client"
SOCKET: Final = "/run/engramdax-resident"
SECONDS: Final = 200.0

SERVER_PROGRAM: Final = f"""
import contextlib, os, signal, socket, sys, traceback
from ClusterShell import Event, NodeSet, Task
from ClusterShell.Worker import Ssh
import engramdax
from engramdax.commands.main import run
from engramdax.health import hosts, report
with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
    run(["health", "--help"])
server = socket.socket(socket.AF_UNIX)
server.bind({SOCKET!r})
server.listen(16)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    client, _ = server.accept()
    data, fds, _, _ = socket.recv_fds(client, 1 << 16, 3)
    if os.fork():
        for fd in fds:
            os.close(fd)
        client.close()
        continue
    server.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    words = data.decode().split("\\0")
    code = 1
    try:
        if words[0] == "-c":
            exec(words[1])
            code = 0
        else:
            code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        client.sendall(b"%d" % code)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)
"""

# With what the interpreter has built in: the modules around it take longer to import than all else that this does.
CLIENT_PROGRAM: Final = f"""
import _socket, sys
client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
client.connect({SOCKET!r})
fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in range(3))
client.sendmsg(["\\0".join(sys.argv[1:]).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)])
code = client.recv(16)
sys.exit(int(code) if code else 70)
"""


class Resident:
    """The process in one guest. It ends with the guest."""

    def __init__(self, host: Guest) -> None:
        self.host = host
        self.program = f"{Path(sys.executable).resolve()} -I -S {CLIENT}"
        """What a shell of the guest starts in place of `engramdax`."""
        host.put(CLIENT, CLIENT_PROGRAM.encode())
        self._server = host.start(["python", "-c", SERVER_PROGRAM])

    def wait_ready(self) -> None:
        """Wait until it takes commands."""
        end = time.monotonic() + SECONDS
        while self.host.run(f"test -S {SOCKET}", check=False).code:
            assert (ended := self._server.poll()) is None, ended
            assert time.monotonic() < end
            time.sleep(0.2)

    def run(self, line: str, *, timeout: float = SECONDS) -> Result:
        """Run an engramdax command, whatever it ends with."""
        done = self.host.run(f"{self.program} {line}", timeout=timeout, check=False)
        return Result(f"{self.host.name}: engramdax {line}", done.code, done.stdout, done.stderr)

    def json(self, line: str) -> Any:
        """Run one that succeeds, and give what it said."""
        return self.run(f"{line} --json").json()

    def start(self, code: str) -> Any:
        """Start a Python program that goes on; gives it as `Guest.start` does, with the pid of the client."""
        return self.host.start(f"exec {self.program} -c {shlex.quote(code)}")
