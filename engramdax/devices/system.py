# SPDX-License-Identifier: Apache-2.0
"""The host whose devices are changed: its sysfs and device nodes, read again after each change."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from engramdax.devices.reading import read_tree
from engramdax.errors import BackingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.devices.tree import Tree

T = TypeVar("T")

SETTLE_SECONDS: Final = 5.0
"""Drivers probe behind the back of the command that made a device."""

LOOK_SECONDS: Final = 0.05


@dataclass(frozen=True, slots=True)
class System:
    """Where a host's devices are seen and changed; anywhere else in tests."""

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")

    def tree(self) -> Tree:
        """Read what there is now."""
        return read_tree(self.sysfs, self.dev)

    def wait_for(self, look: Callable[[Tree], T | None], *, seconds: float | None = None) -> T | None:
        """Look at the tree until `look` finds something; None after `seconds` (or SETTLE_SECONDS) without."""
        end = time.monotonic() + (SETTLE_SECONDS if seconds is None else seconds)
        while (found := look(self.tree())) is None and time.monotonic() < end:
            time.sleep(LOOK_SECONDS)
        return found

    @property
    def online_policy(self) -> Path:
        """The file that says what happens to memory when a driver adds it to the system's."""
        return self.sysfs / "devices" / "system" / "memory" / "auto_online_blocks"

    def read_online_policy(self) -> str | None:
        """Give offline, online, online_kernel or online_movable; None where memory cannot be added at all."""
        try:
            return self.online_policy.read_text().strip()
        except OSError:
            return None

    def write_online_policy(self, policy: str) -> None:
        """Set it."""
        try:
            self.online_policy.write_text(policy)
        except OSError as e:
            raise BackingError(
                f"cannot write {policy} to {self.online_policy}: {e.strerror}", remedy="run as root"
            ) from None

    def keeps_page_structures_on_added_memory(self) -> bool:
        """Tell whether kmem would write to a device's memory already when it takes it, offline or not."""
        place = self.sysfs / "module" / "memory_hotplug" / "parameters" / "memmap_on_memory"
        try:
            return place.read_text().strip() not in ("N", "0")
        except OSError:
            return False
