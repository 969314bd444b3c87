# SPDX-License-Identifier: Apache-2.0
"""What one probe found of one object, and how bad that is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


class State(StrEnum):
    """How something is. What could not be asked is unknown, never ok."""

    OK = "ok"
    UNKNOWN = "unknown"
    WARNING = "warning"
    CRITICAL = "critical"


EXIT_CODES: Final = {State.OK: 0, State.WARNING: 1, State.CRITICAL: 2, State.UNKNOWN: 3}
"""What `engramdax health` ends with, as monitoring systems expect of a check."""

_BY_SEVERITY: Final = tuple(State)


def is_figure(value: Any) -> bool:
    """Tell whether a value of JSON is a number that can be reckoned with: finite, and no longer than 64 bits."""
    return type(value) in (int, float) and -(1 << 64) < value < 1 << 64


def worst(states: Iterable[State]) -> State:
    """Give the worst: critical, warning, unknown, ok; of nothing at all it is unknown."""
    return max(states, key=_BY_SEVERITY.index, default=State.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report.

    `probe` and `object` together name it, the same on every host and in every run: "memdev.temperature" of
    "0xfedcba9876543210". An object is what the operator can find again: a table's name, a memdev's serial, a slot.
    """

    probe: str
    state: State
    found: str
    """One line without a full stop: what there is, and what was expected where that differs."""
    object: str = ""
    figure: float | None = None
    unit: str = ""
    """Of the figure, a base unit: bytes, seconds, celsius, ratio, ..."""
    remedy: str = ""
    """What to do; "" where nothing has to be done."""

    def to_json(self) -> dict[str, Any]:
        """Give the form that `--json` prints."""
        return {
            "probe": self.probe,
            "object": self.object,
            "state": str(self.state),
            "found": self.found,
            "figure": self.figure,
            "unit": self.unit,
            "remedy": self.remedy,
        }

    @classmethod
    def from_json(cls, value: Any) -> Finding:
        """Read what `to_json` gave; ValueError, KeyError or TypeError for anything else."""
        figure = value["figure"]
        if figure is not None and not is_figure(figure):
            raise TypeError(f"the figure {str(figure)[:40]} is no number")
        texts = {name: value[name] for name in ("probe", "object", "found", "unit", "remedy")}
        if not all(type(text) is str for text in texts.values()):
            raise TypeError("a text is none")
        return cls(state=State(value["state"]), figure=figure, **texts)


def ok(probe: str, found: str, **more: Any) -> Finding:
    """Give a finding that is as it should be."""
    return Finding(probe, State.OK, found, **more)


def warning(probe: str, found: str, **more: Any) -> Finding:
    """Give a finding that should be looked at."""
    return Finding(probe, State.WARNING, found, **more)


def critical(probe: str, found: str, **more: Any) -> Finding:
    """Give a finding that readers suffer from, or will."""
    return Finding(probe, State.CRITICAL, found, **more)


def unknown(probe: str, found: str, **more: Any) -> Finding:
    """Give a finding that says why nothing could be found out."""
    return Finding(probe, State.UNKNOWN, found, **more)
