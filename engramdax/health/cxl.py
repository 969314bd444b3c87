# SPDX-License-Identifier: Apache-2.0
"""What `cxl list` says of the memdevs of this host, read with suspicion: keys are missing, never null."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from engramdax.devices import tools
from engramdax.errors import EngramdaxError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.devices.tree import Memdev

SECONDS: Final = 10.0
"""Longer than a mailbox command takes (2 s), and shorter than another host waits for this one's answer."""

POISON_SINCE: Final = 80
"""Older versions of cxl know no --media-errors."""

HEALTH: Final = ("cxl", "list", "-M", "-i", "-H", "-A", "-F")
MEDIA_ERRORS: Final = ("cxl", "list", "-M", "-i", "-L")


EXCERPT: Final = 80
"""Characters of a finding that are a program's own words."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Objects of memdevs by name; `problem` says why there are none, `said` what else the program complained of."""

    memdevs: dict[str, dict[str, Any]] = field(default_factory=dict)
    problem: str = ""
    remedy: str = ""
    said: str = ""

    def of(self, memdev: Memdev) -> dict[str, Any] | None:
        """Give what was said of this one; of a serial that is another's, nothing."""
        found = self.memdevs.get(memdev.name)
        if found is not None and memdev.serial is not None and "serial" in found:
            return found if number(found["serial"]) == memdev.serial else None
        return found


def listing(command: tuple[str, ...], memdevs: Sequence[Memdev]) -> Listing:
    """Run one of the commands above for these memdevs; others may take their time."""
    try:
        done = tools.run([*command, "-m", " ".join(memdev.name for memdev in memdevs)], seconds=SECONDS)
        if done.code:
            return Listing(problem=f"`{done.command}`: {done.problem}", remedy="install a newer cxl")
        return Listing({one["memdev"]: one for one in _memdevs(done.values())}, said=done.stderr.strip())
    except EngramdaxError as e:
        return Listing(problem=e.problem, remedy=e.remedy)


def _memdevs(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Give objects of memdevs, also where a version groups them."""
    groups = [one.get("memdevs") for one in values if "memdev" not in one]
    found = [*values, *(one for group in groups if isinstance(group, list) for one in group)]
    return [one for one in found if isinstance(one, dict) and isinstance(one.get("memdev"), str)]


def excerpt(value: Any) -> str:
    """Give what a program said as a part of a line, whatever it said."""
    text = str(value)
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}..."


def number(value: Any) -> int | None:
    """Give a 64-bit number however it is written: 0x..., decimal, or printed as if it had a sign."""
    if isinstance(value, str):
        try:
            value = int(value, 0)
        except ValueError:
            return None
    if type(value) is not int or not -(1 << 63) <= value < 1 << 64:
        return None
    return value & (1 << 64) - 1


def plain_number(value: Any) -> int | None:
    """Give a number that may be negative, such as a temperature; None for what is none, and no device can tell."""
    return value if type(value) is int and -(1 << 63) <= value < 1 << 64 else None
