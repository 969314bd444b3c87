# SPDX-License-Identifier: Apache-2.0
"""What changes on a host, as it changes: the kernel's events say when to look, sysfs says what there is."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.reading import read_tree
from engramdax.errors import EngramdaxError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.fitness import Part
    from engramdax.devices.tree import Tree

SUBSYSTEMS: Final = ("dax", "nd", "cxl", "memory", "block")
SOURCES: Final = ("kernel", "udev")
"""Both: whether a udevd runs cannot be told from what it leaves behind, and it may start or end meanwhile."""

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

    Events come from the kernel, and again from udevd where one runs, when its rules have been applied.
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
        self._ready = select.poll()
        self._monitors: dict[int, Any] = {}
        try:
            context = pyudev.Context()
            for source in SOURCES:
                monitor = pyudev.Monitor.from_netlink(context, source)
                for subsystem in SUBSYSTEMS:
                    monitor.filter_by(subsystem)
                monitor.start()
                self._monitors[monitor.fileno()] = monitor
                self._ready.register(monitor.fileno(), select.POLLIN)
        except OSError as e:
            raise EngramdaxError(f"cannot listen to the kernel's events: {e.strerror or e}") from None

    def wait(self) -> set[str]:
        """Wait for an event, and until they are over; give the names of the devices concerned."""
        named = self._next(None)
        end = time.monotonic() + 10 * SETTLE_SECONDS
        while time.monotonic() < end and (more := self._next(SETTLE_SECONDS)):
            named |= more
        return named

    def _next(self, seconds: float | None) -> set[str]:
        ready = self._ready.poll(None if seconds is None else seconds * 1000)
        devices = [self._monitors[fd].poll(0) for fd, _ in ready]
        return {device.sys_name for device in devices if device is not None}
