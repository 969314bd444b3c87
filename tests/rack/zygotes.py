# SPDX-License-Identifier: Apache-2.0
"""The zygotes of the guests, one for each boot of each, as this machine starts and waits for them."""

from __future__ import annotations

import time
from pathlib import Path

from tools.rack.guest import Guest, Process

SECONDS = 300.0
"""A guest takes long for everything while this machine is busy otherwise."""

PROGRAM = Path(__file__).with_name("zygote.py")

_zygotes: dict[tuple[str, int | None], Process] = {}
"""By the folder of a guest and the process of its machine, which is another one after each boot."""


def start(host: Guest, *modules: str) -> Process:
    """Start the host's zygote, if it has none since it booted. Nothing waits for it yet.

    modules: what it imports beside what most commands need.
    """
    boot = (str(host.folder), host.pid)
    if boot not in _zygotes:
        _zygotes[boot] = host.start(["python", str(PROGRAM), *modules])
    return _zygotes[boot]


def is_ready(host: Guest) -> bool:
    """Tell whether it takes tasks."""
    zygote = _zygotes.get((str(host.folder), host.pid))
    return zygote is not None and "ready" in zygote.output()


def ready(host: Guest) -> Process:
    """Have the host's zygote take tasks."""
    zygote = start(host)
    wait_for(zygote, "ready")
    return zygote


def wait_for(process: Process, text: str) -> str:
    """Wait until a process in the background has printed this, and give all that it printed."""
    end = time.monotonic() + SECONDS
    while text not in process.output():
        assert (done := process.poll()) is None, done
        assert time.monotonic() < end, f"{text!r} was not printed"
        time.sleep(0.05)
    return process.output()
