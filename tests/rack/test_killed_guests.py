# SPDX-License-Identifier: Apache-2.0
"""Whole hosts that are killed at a step of a load or of a take-over, and what the other one then finds.

The step is reached when the guest says so; then its QEMU gets SIGKILL. Emulated stores are in the memory at once, so
nothing is lost here of what a real host has in its caches: that part is the simulated rack's (tests/model).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from pool_of_two import PoolOfTwo
from selection import ALL

from tools.rack.guest import Guest

# Each kill is a boot, so a plain run has two; the others are `make rack`'s.
BEHIND_THE_CLAIMS = (6, False)
"""Of a take-over: both claims stand, and the payload of the first slot."""

pytestmark = [pytest.mark.rack, pytest.mark.timeout(3600 if ALL else 600)]

KEPT_ROWS, NEW_ROWS = 2_000, 10_000
UNFINISHED_AT = 13
"""A step of a load behind the publication that says `loading`, and in front of its last row."""

TAKE = "own --take-over --fenced"


@dataclass
class Duel:
    """Two hosts of which one is killed in turn; `kept` is a table that is there all the time."""

    pool: PoolOfTwo
    owner: Guest
    empty: Any
    """What is there with `kept` alone."""
    booting: Future[None] | None = None

    def load(self, host: Guest) -> str:
        """Give the command that loads the table `new`, which is not there."""
        return f"load {self.pool.write_table(host, 'new', 7, NEW_ROWS)} --name new"

    def kill(self, host: Guest) -> None:
        """Pull the plug, and have the host back in a while."""
        host.crash()
        self.booting = self.pool.boot(host)

    def both_are_up(self) -> None:
        if self.booting is not None:
            self.booting.result()
            self.booting = None

    def nothing_is_lost(self, host: Guest) -> Any:
        """Look with a new reader: the pool opens and every table in it is right, byte for byte."""
        found = self.pool.look(host)
        assert found["tables"] in ({"kept": 1}, {"kept": 1, "new": 7})
        assert found["unfinished"] in ([], ["new"])
        assert found["generation"] >= self.empty["generation"]
        return found

    def finish(self, host: Guest, found: Any) -> None:
        """Load what is missing of `new` on a host that owns the pool now, and look at all of it."""
        if "new" not in found["tables"]:
            done = self.pool.run(host, f"{self.load(host)} --resume").succeeded()
            assert ("the load goes on" in done.out) == bool(found["unfinished"])
        after = self.pool.look(host)
        # Of a publication that the death cut in two, the second slot is written by the next writer, whoever it is.
        assert (after["tables"], after["unfinished"]) == ({"kept": 1, "new": 7}, [])

    def space_is_back(self, host: Guest) -> None:
        """Remove `new` where both hosts answer: as much is free as before it was there."""
        self.both_are_up()
        self.pool.run(host, "rm new").succeeded()
        assert self.pool.reclaim(host) == 0
        after = self.pool.look(host)
        assert (after["tables"], after["free"], after["retired"]) == ({"kept": 1}, self.empty["free"], 0)
        assert after["slots_agree"]
        self.empty = after
        self.owner = host


@pytest.fixture(scope="module")
def duel(pool: PoolOfTwo) -> Iterator[Duel]:
    owner = pool.rack.hosts[0]
    pool.run(owner, f"load {pool.write_table(owner, 'kept', 1, KEPT_ROWS)} --name kept").succeeded()
    duel = Duel(pool, owner, pool.look(owner))
    yield duel
    duel.both_are_up()


def points(steps: list[bool]) -> list[tuple[int, bool]]:
    """Give each moment to die at: in front of a step and, of a store of several lines, within it."""
    return [(n, torn) for n, tears in enumerate(steps, 1) for torn in ((False, True) if tears else (False,))]


def test_load_whose_host_is_killed_goes_on_on_the_other(duel: Duel) -> None:
    steps: list[bool] = duel.pool.call(duel.owner, "steps", words=duel.load(duel.owner).split())
    duel.space_is_back(duel.owner)
    chosen = points(steps)
    if not ALL:
        chosen = [chosen[len(chosen) // 2]]
    published = []
    for number, (step, torn) in enumerate(chosen):
        dies, lives = duel.owner, duel.pool.other(duel.owner)
        assert duel.pool.stop_at(dies, duel.load(dies), step, torn=torn) is not None
        duel.kill(dies)
        found = duel.nothing_is_lost(lives)
        published.append("new" in found["tables"])
        if number % 4 == 3:  # it comes back and goes on itself
            duel.both_are_up()
            lives = dies
        else:
            duel.pool.run(lives, TAKE).succeeded()
        duel.finish(lives, found)
        duel.space_is_back(lives)
    print(f"{len(chosen)} hosts killed in a load of {len(steps)} steps, {sum(published)} when it was published")
    assert published == sorted(published)
    assert set(published) == ({False, True} if ALL else {False})


def leave_unfinished(duel: Duel) -> None:
    """Let a process of the owner die in the middle of a load; the host lives."""
    loading = duel.pool.stop_at(duel.owner, duel.load(duel.owner), UNFINISHED_AT)
    assert loading is not None
    loading.kill()
    loading.wait()
    assert duel.nothing_is_lost(duel.owner)["unfinished"] == ["new"]


def test_take_over_whose_host_is_killed_leaves_a_pool_that_both_can_take(duel: Duel) -> None:
    pool = duel.pool
    chosen = [BEHIND_THE_CLAIMS]
    if ALL:
        leave_unfinished(duel)
        taker = pool.other(duel.owner)
        chosen = points(pool.call(taker, "steps", words=TAKE.split()))
        duel.finish(taker, duel.nothing_is_lost(taker))
        duel.space_is_back(taker)
    claims = 0
    for number, (step, torn) in enumerate(chosen):
        leave_unfinished(duel)
        owner, taker = duel.owner, pool.other(duel.owner)
        assert pool.stop_at(taker, TAKE, step, torn=torn) is not None
        duel.kill(taker)
        found = duel.nothing_is_lost(owner)
        assert found["unfinished"] == ["new"]
        standing = pool.run(owner, "own --json").json()
        claims += standing["claim"] is not None
        if not standing["may_write"]:
            pool.run(owner, "rm absent").failed(3)
        heir = owner
        if number % 2:  # the one that died takes it when it is back
            duel.both_are_up()
            heir = taker
        pool.run(heir, TAKE).succeeded()
        duel.finish(heir, found)
        duel.space_is_back(heir)
    print(f"{len(chosen)} hosts killed in a take-over, {claims} of them with a claim that stood")
    assert claims
