# SPDX-License-Identifier: Apache-2.0
"""One host writes a pool without pause while the other reads it without pause, and hands change.

Ten minutes with ENGRAMDAX_ALL=1, one without.
"""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
from pool_of_two import PoolOfTwo
from selection import ALL
from soak import MORE_SECONDS

SECONDS, TURN = (600.0, 60.0) if ALL else (60.0, 15.0)
SEED = int(os.environ.get("ENGRAMDAX_SEED", "5"))

pytestmark = [pytest.mark.rack, pytest.mark.timeout(1800)]


def test_no_reader_fails_while_tables_come_and_go_and_hands_change(pool: PoolOfTwo) -> None:
    hosts = pool.rack.hosts
    first = hosts[0]
    before = pool.look(first)
    parts = [
        pool.start(host, "take_part", seed=SEED + number, seconds=SECONDS, turn=TURN)
        for number, host in enumerate(hosts)
    ]
    counts = Counter[str]()
    for host, part in zip(hosts, parts, strict=True):
        done = part.wait(SECONDS + 2 * MORE_SECONDS)
        assert done.code == 0, (host.name, done.stdout, done.stderr, [p.poll() for p in parts])
        counted = json.loads(done.stdout)
        print(f"{host.name}: {counted}")
        counts += Counter(counted)
    print(f"ENGRAMDAX_SEED={SEED}, {SECONDS:g} s: {dict(counts)}")

    pool.take_over(first)
    full = [pool.look(host) for host in hosts]
    assert full[0] == full[1]
    for name in full[0]["tables"]:
        pool.run(first, f"rm {name}").succeeded()
    assert pool.reclaim(first) == 0
    after = pool.look(first)
    assert (after["tables"], after["retired"], after["unfinished"]) == ({}, 0, [])
    assert after["free"] == before["free"]

    for what in ("loads", "replaces", "removals", "reclaims", "tables verified", "refreshes"):
        assert counts[what], what
    assert counts["rows gathered of versions replaced or removed"]
    assert counts["releases"]
    assert counts["take-overs"]
