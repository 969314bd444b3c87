# SPDX-License-Identifier: Apache-2.0
"""A process that runs schedules under one mutation until it is caught. Arguments: its number, first seed, schedules."""

from __future__ import annotations

import sys
from functools import partial
from itertools import islice

from mutations import MUTATIONS


def main() -> None:
    number, first, count = map(int, sys.argv[1:])
    mutation = MUTATIONS[number]
    mutation.install()
    from rack import Violation
    from small_cases import run_case
    from world import KINDS, run_schedule

    if mutation.case:
        tries = [(f"beside {mutation.case[1]}", lambda: run_case(*mutation.case, strides=(1 << 20, 1)))]
    else:
        seeds = (s for s in range(first, first + len(KINDS) * count) if mutation.kind in (None, s % len(KINDS)))
        tries = [(f"seed {seed}", partial(run_schedule, seed)) for seed in islice(seeds, count)]
    for tried, (what, run) in enumerate(tries, 1):
        try:
            run()
        except Violation as e:  # any other error would say that the mutation is none, but breaks the code
            print(f"caught\t{tried}\t{what}: {' '.join(str(e).split())[:160]}")
            return
    print(f"missed\t{len(tries)}\t")


main()
