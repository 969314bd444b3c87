# SPDX-License-Identifier: Apache-2.0
"""What udev has to do with pools: looking at a device again, and the links to those that hold one.

The rules in udev/ make the links and give pools' devices to group engramdax; `engramdax udev install` installs them.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

LINKS: Final = Path("/dev/engramdax")
CONTROL: Final = Path("/run/udev/control")
"""udevd's socket: without it nobody answers an event."""

SETTLE_SECONDS: Final = 20
"""udevd answers in milliseconds, unless it is busy with the events of other devices."""


def udevadm() -> str | None:
    """Give the program, None where it is not installed; systemd's units and cron have no sbin in PATH."""
    return shutil.which("udevadm") or shutil.which("udevadm", path="/usr/sbin:/sbin:/usr/bin:/bin")


def running() -> bool:
    """Tell whether a udevd runs here, as it does not in most containers."""
    return CONTROL.exists()


def trigger(device: Path) -> bool:
    """Let udev look at a device node again, and wait until it has.

    False where it could not: no udev here, no permission, no answer. That is never an error: links and access are
    then as they were before.
    """
    program = udevadm()
    if program is None or not running():
        return False
    try:
        done = subprocess.run(
            [program, "trigger", "--settle", "--action=change", f"--name-match={device}"],
            capture_output=True,
            check=False,
            timeout=SETTLE_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


class LinkedPool(NamedTuple):
    """A pool by udev's links: its name, "" where another pool has the link of that name, and its device node."""

    name: str
    path: Path


def linked_pools() -> dict[UUID, LinkedPool]:
    """Give the pools that udev found on this host's devices, by uuid. Nobody needs a permission for that."""
    names = {target: name for name, target in _links(LINKS / "by-name").items()}
    found = {}
    for link, target in _links(LINKS / "by-id").items():
        kind, _, text = link.partition("-")
        if kind != "pool":
            continue
        try:
            found[UUID(text)] = LinkedPool(names.get(target, ""), target)
        except ValueError:  # somebody else's link
            continue
    return found


def _links(folder: Path) -> dict[str, Path]:
    """Give name and target of the links in a folder whose target exists."""
    found = {}
    with suppress(OSError):  # no such folder
        for link in sorted(folder.iterdir()):
            with suppress(OSError):  # its device is gone
                if link.is_symlink():
                    found[link.name] = link.resolve(strict=True)
    return found
