# SPDX-License-Identifier: Apache-2.0
"""Random schedules of hosts that share memory and no caches.

ENGRAMDAX_SCHEDULES sets how many (2,000 if unset; `make test` runs 10,000), ENGRAMDAX_SEED the seed of the first one
(another each time if unset). One that failed is run again by `ENGRAMDAX_SEED=... ENGRAMDAX_SCHEDULES=1`.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SCHEDULES = int(os.environ.get("ENGRAMDAX_SCHEDULES", "2000"))
SEED = int(os.environ.get("ENGRAMDAX_SEED") or random.SystemRandom().randrange(1 << 40))
ENOUGH = 10_000
"""From so many schedules on each rare event has happened."""

RARE = (
    "block repaired",
    "death with unfenced stores",
    "fenced take-over",
    "host did not answer",
    "host died",
    "late store of a dead process",
    "load published",
    "load resumed",
    "load was marked",
    "load was not marked",
    "one slot alone was whole",
    "pool released",
    "reader found a bad copy",
    "reclaim in vain",
    "rotten row read",
    "row stores of a deposed writer",
    "rows gathered",
    "slot rotted",
    "space freed at once",
    "space waited for a reader",
    "stale line served",
    "step of a deposed writer",
    "superblock rotted",
    "table replaced",
    "table verified",
    "take-over proven",
    "take-over without proof",
    "unfenced lines lost with a host",
    "writer died",
    "writer found itself deposed",
)


@pytest.mark.unsanitized
@pytest.mark.timeout(120 + SCHEDULES)
def test_no_schedule_breaks_a_rule(figure: Callable[[str], None]) -> None:
    workers = min(8, len(os.sched_getaffinity(0)))
    shares = [SCHEDULES // workers + (n < SCHEDULES % workers) for n in range(workers)]
    first = SEED
    running = []
    for share in shares:
        command = [sys.executable, HERE / "run_schedules.py", str(first), str(share)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        first += share
    events: Counter[str] = Counter()
    failed = []
    for process in running:
        output, _ = process.communicate()
        for line in output.splitlines():
            name, value = line.split("\t")
            if name == "violation":
                failed.append(value)
            else:
                events[name] += int(value)
        assert process.returncode == 0
    counters = "; ".join(f"{name} {events[name]}" for name in RARE)
    figure(f"{events['schedules']} schedules, seed {SEED}, {events['steps']} steps: {counters}")
    assert failed == []
    assert events["schedules"] == SCHEDULES
    if SCHEDULES >= ENOUGH:
        assert [name for name in RARE if not events[name]] == []
