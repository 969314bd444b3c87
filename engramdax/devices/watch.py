# SPDX-License-Identifier: Apache-2.0
"""What changes on a host, as it changes: the kernel's events say when to look, sysfs says what there is."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.reading import read_tree
from engramdax.errors import EngramdaxError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.fitness import Part
    from engramdax.devices.tree import Tree

SUBSYSTEMS: Final = ("dax", "nd", "cxl", "memory", "block")
UDEVD: Final = Path("/run/udev/control")
SETTLE_SECONDS: Final = 0.2
"""How long nothing happens before it is looked at what has happened: a region brings a dozen events."""


@dataclass(frozen=True, slots=True)
class Change:
    """A part that came, went or became another."""

    action: str
    """added, removed or changed."""
    part: Part
    """As it is now, or was before it went."""
    fitness: Fitness | None


def changes(tree: Tree, found: tuple[Fitness, ...]) -> Iterator[Change]:
    """Wait for changes against this state, for ever.

    Events come through udevd where one runs, when its rules have been applied, else from the kernel.
    EngramdaxError where events cannot be had. The events are subscribed to when the first change is asked for; what
    happened between the reading of `tree` and then is found all the same.
    """
    events = _Events()
    before = _state(tree, found)
    named: set[str] = set()
    while True:
        tree = read_tree()
        # An event may be all that tells of a pool made on a device: sysfs says the same as before. That a process
        # lets go of one brings no event.
        known = [f for f in found if f.part.name not in named and f.verdict is not Verdict.IN_USE]
        found = assess(tree, known=known)
        now = _state(tree, found)
        yield from _difference(before, now)
        before = now
        named = events.wait()


State = dict[tuple[type, str], tuple[Any, Fitness | None]]


def _state(tree: Tree, found: tuple[Fitness, ...]) -> State:
    verdicts = {id(f.part): f for f in found}
    lists = (tree.memdevs, tree.cxl_regions, tree.nd_regions, tree.namespaces, tree.dax_regions, tree.dax_devices)
    return {(type(part), part.name): (part, verdicts.get(id(part))) for parts in lists for part in parts}


def _difference(before: State, now: State) -> Iterator[Change]:
    for key in reversed(before):
        if key not in now:
            yield Change("removed", *before[key])
    for key, value in now.items():
        if key not in before:
            yield Change("added", *value)
        elif value != before[key]:
            yield Change("changed", *value)


class _Events:
    """The events of devices that matter."""

    def __init__(self) -> None:
        try:
            import pyudev  # noqa: PLC0415 - it loads libudev, which only this needs
        except ImportError as e:
            raise EngramdaxError(f"--watch needs pyudev and libudev: {e}", remedy="install libudev1") from None
        try:
            source = "udev" if UDEVD.exists() else "kernel"
            self._monitor = pyudev.Monitor.from_netlink(pyudev.Context(), source)
            for subsystem in SUBSYSTEMS:
                self._monitor.filter_by(subsystem)
            self._monitor.start()
        except OSError as e:
            raise EngramdaxError(f"cannot listen to the kernel's events: {e.strerror or e}") from None

    def wait(self) -> set[str]:
        """Wait for an event, and until they are over; give the names of the devices concerned."""
        named: set[str] = set()
        device, end = self._monitor.poll(), time.monotonic() + 10 * SETTLE_SECONDS
        while device is not None:
            named.add(device.sys_name)
            device = self._monitor.poll(SETTLE_SECONDS) if time.monotonic() < end else None
        return named
