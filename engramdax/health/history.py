# SPDX-License-Identifier: Apache-2.0
"""What this host remembers of a pool from one look at its health to the next, in the state directory.

Without it health is still told, only not compared: a damaged or missing file costs the comparison and nothing else.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from engramdax.errors import EngramdaxError
from engramdax.files import replace_file
from engramdax.health.finding import is_figure
from engramdax.host import make_dir, state_dir

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

SPEEDS: Final = 32
"""How many measurements are kept: two days of one in an hour and a half say what a pool usually gives."""


@dataclass(frozen=True, slots=True)
class Verified:
    """The last comparison of a load's bytes with its checksums."""

    time: float
    """Seconds since 1970."""
    share: float
    """Of the blocks that were compared."""
    bad_blocks: int
    problem: str = ""
    """Why nothing could be compared."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement."""

    time: float
    """Seconds since 1970."""
    bandwidth: float
    """Bytes per second of a gather of some thousand rows."""
    latency: float
    """Seconds of a gather of one row."""


@dataclass
class History:
    """Of one pool. Changes are kept by `save`; of two processes that save at once one wins."""

    verified: dict[str, Verified] = field(default_factory=dict)
    """By load id."""
    speeds: list[Speed] = field(default_factory=list)
    age: tuple[int, int] | None = None
    """Highest (epoch, generation) seen."""

    @classmethod
    def of(cls, pool: UUID) -> History:
        """Read it; an empty one where there is none, or none that can be read."""
        try:
            value = json.loads(_path(pool).read_text())
            history = cls(
                {str(load): Verified(**one) for load, one in value["verified"].items()},
                [Speed(**one) for one in value["speeds"]],
                None if value["age"] is None else (value["age"][0], value["age"][1]),
            )
            counts = all(type(number) is int for number in history.age or ())
            if not counts or not all(_sound(one) for one in (*history.verified.values(), *history.speeds)):
                raise TypeError("a number is none")
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, EngramdaxError):
            return cls()
        return history

    def save(self, pool: UUID, loads: set[str]) -> str:
        """Keep it, of `loads` alone; gives "", or why it could not be kept."""
        self.verified = {load: one for load, one in self.verified.items() if load in loads}
        self.speeds = self.speeds[-SPEEDS:]
        text = json.dumps(asdict(self)) + "\n"
        try:
            make_dir(state_dir())
            make_dir(_path(pool).parent)
            replace_file(_path(pool), lambda file: file.write(text.encode()), mode=0o664)
        except EngramdaxError as e:
            return e.problem
        return ""


def remember_verified(pool: UUID, load: str, verified: Verified, *, loads: set[str]) -> None:
    """Keep the outcome of a verify; nothing is said where that cannot be kept."""
    history = History.of(pool)
    history.verified[load] = verified
    with suppress(EngramdaxError):
        history.save(pool, loads)


def _path(pool: UUID) -> Path:
    return state_dir() / "health" / f"{pool}.json"


def _sound(one: Any) -> bool:
    numbers = [value for name, value in asdict(one).items() if name != "problem"]
    return all(is_figure(n) and n >= 0 for n in numbers)
