# SPDX-License-Identifier: Apache-2.0
"""How much of the CPUs others had during a measurement: what is timed beside a neighbour is no limit of anything."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final

IDLE: Final = (3, 4)
"""Fields of a line of /proc/stat: idle, and idle while a disk works."""

GUEST: Final = 8
"""Fields from here on are parts of earlier ones."""


class Neighbours:
    """CPU time of everybody but this process and its children, from when it was made."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._others = _others_seconds()

    def share(self) -> float:
        """Give their share of all CPUs' time, 0 to 1; children count as ours once they have been waited for.

        Time that a hypervisor gave to other machines is theirs.
        """
        elapsed = (time.monotonic() - self._begin) * (os.cpu_count() or 1)
        return min(1.0, max(0.0, (_others_seconds() - self._others) / elapsed))


def _others_seconds() -> float:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]][:GUEST]
    busy = sum(value for place, value in enumerate(fields) if place not in IDLE) / os.sysconf("SC_CLK_TCK")
    ours = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in ours)
