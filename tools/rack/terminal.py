# SPDX-License-Identifier: Apache-2.0
"""A shell in a guest on this terminal."""

from __future__ import annotations

import os
import select
import shutil
import socket
import sys
import termios
import tty
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.rack.guest import Guest

CHUNK: Final = 1 << 16
LOOK_SECONDS: Final = 0.3
"""How often to look whether the shell has ended: the guest's end of its console stays open."""


def shell(guest: Guest) -> None:
    """Run a shell in the guest until it ends; needs a terminal on stdin."""
    size = shutil.get_terminal_size()
    with socket.socket(socket.AF_UNIX) as console, _raw(sys.stdin.fileno()) as keyboard:
        console.connect(str(guest.folder / "shell"))
        # Without the user's own start-up file, which an emulated processor may take seconds for.
        # The first terminal that the leader of a session opens becomes the one that Ctrl-C comes from.
        prompt = f'PS1="{guest.name}:\\w# "'  # a shell that runs a line drops it from its environment
        process = guest.start(
            f"exec bash -c 'stty sane rows {size.lines} cols {size.columns}; exec env {prompt} bash --norc -i'"
            " <>/dev/hvc0 >&0 2>&0",
            environment={"TERM": os.environ.get("TERM", "vt100")},
        )
        while process.poll() is None:
            while ready := select.select([keyboard, console.fileno()], [], [], LOOK_SECONDS)[0]:
                if keyboard in ready:
                    console.sendall(os.read(keyboard, CHUNK))
                if console.fileno() in ready:
                    if not (data := console.recv(CHUNK)):
                        return  # the guest went off
                    os.write(sys.stdout.fileno(), data)


@contextmanager
def _raw(keyboard: int) -> Iterator[int]:
    before = termios.tcgetattr(keyboard)
    tty.setraw(keyboard)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
