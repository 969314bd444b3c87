# SPDX-License-Identifier: Apache-2.0
"""A process that runs schedules and prints what happened. Arguments: first seed, number."""

from __future__ import annotations

import sys
from collections import Counter

from rack import Violation
from world import run_schedule


def main() -> None:
    first, count = map(int, sys.argv[1:])
    events: Counter[str] = Counter()
    for seed in range(first, first + count):
        events["schedules"] += 1
        try:
            world = run_schedule(seed)
        except Violation as e:
            print(f"violation\tseed {seed}: {' '.join(str(e).split())}")
            continue
        events += world.events
        events["steps"] += world.rack.steps
    for name, number in events.items():
        print(f"{name}\t{number}")


main()
