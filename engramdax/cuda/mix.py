# SPDX-License-Identifier: Apache-2.0
"""How much of a gather goes which way: measured on this machine, for this table, and kept on disk.

Rows read by the GPU itself cost an address translation each; rows by way of the CPU start some ten microseconds later
and then come several times as fast. So of each call the first rows of the pool, and a share of those that follow, are
read directly, such that both ways end together.
"""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from engramdax.cuda.kernels import source
from engramdax.errors import BackingError
from engramdax.files import replace_file
from engramdax.host import cache_dir

if TYPE_CHECKING:
    from pathlib import Path

NEVER: Final = (1 << 32) - 1
"""As `from_rows`: no call has so many."""

MOST_DEADLINE_US: Final = 1_000_000
MOST_DEADLINE_ROW_NS: Final = 20_000
"""Some 20 s for the largest call: no machine that can be calibrated takes so long, but a damaged file may say so."""


@dataclass(frozen=True, slots=True)
class Mix:
    """The shares of a table on a machine, and what was measured when they were chosen.

    Calls of `from_rows` rows and more are mixed: of the rows that no hot copy serves, `first_local` and then
    `local_of_64` of each 64 are read by the GPU itself, the others come by way of the CPU. A chunk that does not come
    within deadline_us and deadline_row_ns for each row of the call is read directly, too.
    seconds: what measuring took. measured: medians in microseconds, by way and number of rows.
    """

    from_rows: int = 384
    first_local: int = 384
    local_of_64: int = 12
    deadline_us: int = 500
    deadline_row_ns: int = 100
    seconds: float = 0.0
    measured: dict[str, float] | None = None

    def apply(self, core: Any) -> None:
        """Let a lane's next launches go by it."""
        core.from_rows = self.from_rows
        core.mix.first_local, core.mix.local_of_64 = self.first_local, self.local_of_64
        core.deadline_us, core.deadline_row = self.deadline_us, self.deadline_row_ns


def cache_path(*key: Any) -> Path:
    """Where the mix of this machine for a key is kept: for a GPU, a table, and what a lane has of both.

    One that was measured with other kernels is elsewhere.
    """
    digest = hashlib.sha256(repr((socket.gethostname(), source(), *key)).encode()).hexdigest()[:24]
    return cache_dir() / "mix" / f"{digest}.json"


def read(path: Path) -> Mix | None:
    """Give the mix that is kept there, None where there is none that makes sense."""
    try:
        found = json.loads(path.read_text())
        numbers = {f.name: int(found[f.name]) for f in fields(Mix) if f.type == "int"}
        most = {"local_of_64": 64, "deadline_us": MOST_DEADLINE_US, "deadline_row_ns": MOST_DEADLINE_ROW_NS}
        if any(not 0 <= n <= most.get(name, NEVER) for name, n in numbers.items()):
            return None
        return Mix(**numbers, seconds=float(found["seconds"]), measured=dict(found["measured"] or {}))
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def keep(path: Path, mix: Mix) -> None:
    """Keep a mix; a cache that cannot be written costs a second at the next start."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(mix), indent=1)
        replace_file(path, lambda file: file.write(text.encode()))
    except (OSError, BackingError):
        pass
