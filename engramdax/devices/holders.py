# SPDX-License-Identifier: Apache-2.0
"""Who has a device open or mapped, by its numbers: its node may have twins (mknod, containers)."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engramdax.errors import RefusedError
from engramdax.processes import shared_mappings

if TYPE_CHECKING:
    from collections.abc import Iterator


def holders(device: int, proc: Path = Path("/proc")) -> list[int]:
    """Give the processes, without this one, that hold the device with this st_rdev open or mapped.

    Only root sees all; of other users' processes nobody else sees anything.
    """
    return sorted(
        int(process.name)
        for process in proc.glob("[0-9]*")
        if int(process.name) != os.getpid() and any(_is(path, device) for path in _held(process))
    )


def check_unheld(name: str, device: int, proc: Path = Path("/proc")) -> None:
    """Refuse a device that another process has open or mapped: it would lose its memory, or change under it."""
    if processes := holders(device, proc):
        listed = ", ".join(f"{pid} ({_command(proc / str(pid))})" for pid in processes[:8])
        raise RefusedError(f"{name} is in use by process {listed}", remedy="end it first")


def _held(process: Path) -> Iterator[Path]:
    with suppress(OSError):  # gone meanwhile, or somebody else's
        yield from (process / "fd").iterdir()
    with suppress(OSError):
        yield from shared_mappings(process)


def _is(path: Path, device: int) -> bool:
    try:
        status = path.stat()
    except OSError:
        return False
    return (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)) and status.st_rdev == device


def _command(process: Path) -> str:
    try:
        return (process / "comm").read_text(errors="replace").strip()
    except OSError:
        return "gone"
