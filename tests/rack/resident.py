# SPDX-License-Identifier: Apache-2.0
"""A program in a guest that stands for `engramdax` to whatever starts it, an sshd too; the zygote does the work."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any, Final

from batch import Result
from channel import PROGRAM
from zygotes import SECONDS, ready

from tools.rack.guest import Guest, Process

CLIENT: Final = "/run/engramdax-client"


class Resident:
    """That program on one guest."""

    def __init__(self, host: Guest) -> None:
        self.host = host
        self.program = f"{Path(sys.executable).resolve()} -I -S {CLIENT}"
        """What a shell of the guest starts in place of `engramdax`."""
        host.put(CLIENT, PROGRAM.encode())
        ready(host)

    def run(self, line: str, *, under: str = "", timeout: float = SECONDS) -> Result:
        """Run an engramdax command, whatever it ends with; `under` is what starts it, such as setpriv or env."""
        done = self.host.run(f"{under} {self.program} {line}", timeout=timeout, check=False)
        return Result(f"{self.host.name}: engramdax {line}", done.code, done.stdout, done.stderr)

    def json(self, line: str) -> Any:
        """Run one that succeeds, and give what it said."""
        return self.run(f"{line} --json").json()

    def start(self, code: str) -> Process:
        """Start a Python program that goes on."""
        return self.host.start(f"exec {self.program} -c {shlex.quote(code)}")
