# SPDX-License-Identifier: Apache-2.0
"""How a guest's zygote (zygote.py) is reached: from this machine, and by the other guests."""

from __future__ import annotations

TASKS = "/run/zygote"
"""Its socket in the guest. A task is a line of JSON, or PATH, HOME and the words of a command with NUL between them,
sent with the descriptors 1 and 2 of its client, which then gets a line with the exit code. It is done as the client's
user."""

PORT = 7001
"""Where it answers other hosts: a line with a pool gets what `engramdax info` prints of it."""

ASK = f"bash -c 'exec 3<>/dev/tcp/{{host}}/{PORT} && echo {{pool}} >&3 && cat <&3'"
"""A value of ENGRAMDAX_ASK: {host} and {pool} are filled in by engramdax."""

# Without `socket`, which an emulated processor takes a while to import.
CLIENT = """
import _socket, posix, sys
client = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
client.connect({path!r})
outputs = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (1, 2))
client.sendmsg([{task}], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, outputs)])
sys.exit(int(client.recv(9) or 1))
"""


def client(task: bytes) -> str:
    """Give a program for a guest that has this task done, prints what it prints and ends as it ends."""
    return CLIENT.format(path=TASKS, task=repr(task + b"\n"))


_WORDS = 'b"\\0".join([*map(posix.environ.get, (b"PATH", b"HOME")), *map(str.encode, sys.argv[1:])]) + b"\\n"'
PROGRAM = CLIENT.format(path=TASKS, task=_WORDS)
"""A program for a guest that stands for `engramdax`, also to an sshd; `-c TEXT` runs a Python program."""
