# SPDX-License-Identifier: Apache-2.0
"""A process that runs schedules under one mutation until it is caught. Arguments: its number, first seed, schedules."""

from __future__ import annotations

import sys

from mutations import MUTATIONS


def main() -> None:
    number, first, count = map(int, sys.argv[1:])
    mutation = MUTATIONS[number]
    mutation.install()
    from rack import Violation
    from world import KINDS, run_schedule

    seeds = range(first, first + len(KINDS) * count)
    for tried, seed in enumerate((s for s in seeds if mutation.kind in (None, s % len(KINDS))), 1):
        if tried > count:
            break
        try:
            run_schedule(seed)
        except Violation as e:  # any other error would say that the mutation is none, but breaks the code
            print(f"caught\t{tried}\tseed {seed}: {' '.join(str(e).split())[:160]}")
            return
    print(f"missed\t{count}\t")


main()
