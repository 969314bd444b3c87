# SPDX-License-Identifier: Apache-2.0
"""The PCIe links of the memdevs behind a pool: speed and width against what both ends can do, and AER counters."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from engramdax.health.finding import Finding, State, critical, ok, unknown, warning
from engramdax.health.memdevs import object_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engramdax.health.subject import Subject

ADDRESS: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
COUNT: Final = re.compile(r"[0-9]{1,19}")
KINDS: Final = ("correctable", "nonfatal", "fatal")
RESEAT: Final = "reseat card and cable, and look at the slot"

LANE_BITS: Final = 128 / 130
"""What is left of a transfer, from 8 GT/s on."""


class Link(NamedTuple):
    """A link as one end tells it: gigatransfers per second and lanes; None where it does not."""

    speed: float | None
    width: int | None


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at the link of each memdev, and at the errors counted on the way to it."""
    for memdev in subject.device.memdevs if subject.device else ():
        name, place = object_name(memdev), memdev.path.parent
        if not ADDRESS.fullmatch(place.name):
            yield unknown("pcie.link", f"{memdev.name} is not a function of a PCI device", object=name)
            continue
        yield _link(name, place)
        yield from _errors(name, place)


def _link(name: str, place: Path) -> Finding:
    now, most = read_link(place, "current"), read_link(place, "max")
    # A link is no faster than the slower of its ends.
    other = read_link(place.parent, "max") if ADDRESS.fullmatch(place.parent.name) else Link(None, None)
    if now.speed is None or now.width is None:
        return unknown("pcie.link", f"{place.name} does not tell its link's speed and width", object=name)
    text = f"{now.speed:g} GT/s on {now.width} lanes"
    figure = now.speed * 1e9 * now.width * LANE_BITS / 8
    if most.speed is None or most.width is None:
        text = f"{text}, {place.name} does not tell what it could do"
        return unknown("pcie.link", text, object=name, figure=figure, unit="bytes")
    speed, width = min(most.speed, other.speed or most.speed), min(most.width, other.width or most.width)
    if now.speed < speed or now.width < width:
        text = f"{text}, both ends can do {speed:g} GT/s on {width}"
        return warning("pcie.link", text, object=name, figure=figure, unit="bytes", remedy=RESEAT)
    return ok("pcie.link", text, object=name, figure=figure, unit="bytes")


def read_link(place: Path, which: str) -> Link:
    """Read the current or max link attributes of a PCI device."""
    speed = re.match(r"[0-9]{1,4}(?:\.[0-9]{1,4})?(?= GT/s)", _text(place / f"{which}_link_speed"))
    width = re.fullmatch(r"[0-9]{1,2}", _text(place / f"{which}_link_width"))
    lanes = int(width[0]) if width and 0 < int(width[0]) <= 32 else None
    return Link(float(speed[0]) if speed else None, lanes)


def _errors(name: str, place: Path) -> Iterator[Finding]:
    """Add up what the device and the ports above it counted since they came up."""
    counts: dict[str, int] = {}
    told = False
    at = place
    while ADDRESS.fullmatch(at.name):
        for kind in KINDS:
            if (count := _total(at / f"aer_dev_{kind}", kind)) is not None:
                told = True
                counts[kind] = counts.get(kind, 0) + count
        at = at.parent
    if not told:
        yield unknown("pcie.errors", "neither the device nor a port above it counts errors (AER)", object=name)
        return
    states = {"correctable": State.WARNING, "nonfatal": State.CRITICAL, "fatal": State.CRITICAL}
    for kind, count in counts.items():
        text = f"{count} {kind} errors since the devices came up"
        what = f"{name} {kind}"
        if count:
            make = critical if states[kind] is State.CRITICAL else warning
            yield make("pcie.errors", text, object=what, figure=count, remedy=f"dmesg tells where; {RESEAT}")
        else:
            yield ok("pcie.errors", text, object=what, figure=0)


def _total(path: Path, kind: str) -> int | None:
    """Read one list of counters, which ends with its sum: TOTAL_ERR_COR, TOTAL_ERR_NONFATAL, TOTAL_ERR_FATAL."""
    name = {"correctable": "TOTAL_ERR_COR", "nonfatal": "TOTAL_ERR_NONFATAL", "fatal": "TOTAL_ERR_FATAL"}[kind]
    words = _text(path).split()
    count = COUNT.fullmatch(words[words.index(name) + 1]) if name in words[:-1] else None
    return int(count[0]) if count else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
