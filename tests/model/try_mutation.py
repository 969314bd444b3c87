# SPDX-License-Identifier: Apache-2.0
"""A process that runs schedules under one mutation until it is caught. Arguments: its number, first seed, schedules."""

from __future__ import annotations

import sys

from mutations import MUTATIONS


def main() -> None:
    number, first, count = map(int, sys.argv[1:])
    mutation = MUTATIONS[number]
    mutation.install()
    from world import KINDS, run_schedule

    seeds = range(first, first + len(KINDS) * count)
    for tried, seed in enumerate((s for s in seeds if mutation.kind in (None, s % len(KINDS))), 1):
        if tried > count:
            break
        try:
            run_schedule(seed)
        except BaseException as e:  # noqa: BLE001 - a mutation may break the code in any way
            print(f"caught\t{tried}\tseed {seed}: {type(e).__name__}: {' '.join(str(e).split())[:160]}")
            return
    print(f"missed\t{count}\t")


main()
