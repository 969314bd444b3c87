# SPDX-License-Identifier: Apache-2.0
"""Who may write a pool on devdax, how that changes hands, and whose readers keep the space of a removed table."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from pool_of_two import PoolOfTwo, result_of
from selection import LONG
from zygotes import SECONDS, wait_for

from tools.rack.guest import Guest, Process

pytestmark = [pytest.mark.rack, pytest.mark.timeout(900)]

ROWS = 12_000
ROW_STORE = 13
"""A step of a load of so many rows at which some are stored and some are not."""


@pytest.fixture(scope="module", autouse=True)
def _kept(pool: PoolOfTwo) -> None:
    """Load a table that is to stay."""
    owner = pool.rack.hosts[0]
    pool.run(owner, f"load {pool.write_table(owner, 'kept', 1, ROWS)} --name kept").succeeded()


@pytest.fixture(autouse=True)
def _nothing_left(pool: PoolOfTwo) -> Iterator[None]:
    """Let no reader of a test that failed hold what the next one removes."""
    yield
    pool.end_tasks()


def owner_of(pool: PoolOfTwo) -> tuple[Guest, Guest]:
    """Give the host that may write, and the other one."""
    for host in pool.rack.hosts:
        if pool.run(host, "own --json").json()["may_write"]:
            return host, pool.other(host)
    raise AssertionError("nobody may write")


def load(pool: PoolOfTwo, host: Guest, name: str, version: int = 1) -> str:
    return f"load {pool.write_table(host, name, version, ROWS)} --name {name}"


def test_released_pool_is_its_heirs_with_the_next_write(pool: PoolOfTwo) -> None:
    owner, heir = owner_of(pool)
    command = load(pool, heir, "inherited")
    pool.run(heir, command).failed(3, f"is written by host {owner.name}", "own --release")
    # Nobody has to be asked, and nobody could be.
    assert f"is released to host {heir.name}" in pool.run(owner, "own --release", ask=False).succeeded().out
    pool.run(owner, "rm kept").failed(3, f"this host released pool ram to host {heir.name}")
    pool.run(heir, command, ask=False).succeeded()
    pool.run(owner, "rm kept").failed(3, f"is written by host {heir.name}")
    assert pool.look(owner)["tables"] == {"kept": 1, "inherited": 1}
    pool.run(heir, "rm inherited").succeeded()
    assert pool.reclaim(heir) == 0


def test_take_over_without_an_answer_stops_the_owner_and_waits_for_proof(pool: PoolOfTwo) -> None:
    owner, taker = owner_of(pool)
    claimed = pool.run(taker, "own --take-over", ask=False)
    assert (claimed.code, claimed.err) == (1, "")
    assert f"{owner.name} (" in claimed.out
    assert "did not answer" in claimed.out
    for host, problem in ((owner, "is taking pool ram over"), (taker, "is taking pool ram over")):
        pool.run(host, "rm kept").failed(3, problem)
    assert pool.look(owner)["tables"] == {"kept": 1}
    # Asked again, with a way to ask.
    pool.take_over(taker)
    pool.run(owner, "rm kept").failed(3, f"is written by host {taker.name}")


@pytest.mark.parametrize("fenced", [pytest.param(False, id="proven", marks=LONG), pytest.param(True, id="fenced")])
def test_writer_that_is_deposed_stops_and_costs_no_table(pool: PoolOfTwo, fenced: bool) -> None:
    owner, taker = owner_of(pool)
    go = f"/run/go-{fenced}"
    writing = pool.stop_at(owner, load(pool, owner, "late", 2), ROW_STORE, go=go)
    assert writing is not None
    if fenced:
        pool.run(taker, "own --take-over --fenced").succeeded()
    else:
        refused = pool.answered(taker, "own --take-over")
        assert refused.code == 1
        assert f"{owner.name} (" in refused.out
        assert "has a writer: repeat this when it has ended" in refused.out
    assert pool.look(taker)["unfinished"] == ["late"]
    owner.run(["touch", go])
    ended = result_of(owner, "load", writing.wait(SECONDS))
    ended.failed(1, f"host {taker.name} (", "took pool ram over", "nothing that was published is lost")
    if not fenced:
        pool.take_over(taker)
    for host in (owner, taker):
        found = pool.look(host)
        assert (found["tables"], found["unfinished"], found["slots_agree"]) == ({"kept": 1}, ["late"], True)
    assert "the load goes on" in pool.run(taker, f"{load(pool, taker, 'late', 2)} --resume").succeeded().out
    assert pool.look(owner)["tables"] == {"kept": 1, "late": 2}
    pool.run(taker, "rm late").succeeded()
    assert pool.reclaim(taker) == 0


# Space comes back with proof.


def removed(pool: PoolOfTwo, owner: Guest, name: str) -> None:
    out = pool.run(owner, f"rm {name}").succeeded().out
    assert "its space waits until no reader holds the table" in out


def kill(host: Guest, process: Process, pid: int) -> None:
    host.run(["kill", "-KILL", str(pid)])
    assert process.wait(SECONDS).code == 128 + signal.SIGKILL


def pid_of(process: Process, word: str) -> int:
    wait_for(process, word)
    return int(process.output().split(word)[1].split()[0])


def test_space_of_a_removed_table_waits_for_the_last_reader_on_the_other_host(pool: PoolOfTwo) -> None:
    owner, other = owner_of(pool)
    free = pool.look(owner)["free"]
    pool.run(owner, load(pool, owner, "held")).succeeded()
    refreshed, killed = (pool.start(other, "hold", table="held", go=f"/run/go-{n}") for n in range(2))
    pids = [pid_of(reader, "holding") for reader in (refreshed, killed)]
    removed(pool, owner, "held")
    # What is loaded now goes elsewhere: the readers compare what they gather all the time.
    pool.run(owner, load(pool, owner, "next")).succeeded()
    assert pool.reclaim(owner) > 0
    other.run(["touch", "/run/go-0"])
    wait_for(refreshed, "refreshed")
    assert pool.reclaim(owner) > 0
    assert killed.poll() is None
    kill(other, killed, pids[1])
    told = pool.run(owner, "reclaim", ask=False)
    assert (told.code, told.err) == (3, "")
    assert f"host {other.name} (" in told.out
    assert "did not answer" in told.out
    assert pool.reclaim(owner) == 0
    # The one that refreshed has since seen a directory with this table in it.
    removed(pool, owner, "next")
    kill(other, refreshed, pids[0])
    assert pool.reclaim(owner) == 0
    assert pool.look(owner)["free"] == free


def test_space_waits_for_whoever_maps_the_device(pool: PoolOfTwo) -> None:
    owner, other = owner_of(pool)
    pool.run(owner, load(pool, owner, "mapped")).succeeded()
    mappers: list[tuple[Guest, Process]] = []
    for host in (owner, other):
        node = pool.devices[host.name]
        # A program that is not engramdax's, the same by another node, and a container, whose pins are its own.
        host.run(f"mknod /run/twin c $(stat -c '0x%t 0x%T' {node})")
        mappers += [(host, pool.start(host, "map_device", node=path)) for path in (node, "/run/twin")]
        mappers.append((host, pool.start(host, "hold", table="mapped", contained=True)))
    pids = [
        pid_of(mapper, word) for (_, mapper), word in zip(mappers, 2 * ["mapping", "mapping", "holding"], strict=True)
    ]
    removed(pool, owner, "mapped")
    for (host, mapper), pid in zip(mappers, pids, strict=True):
        assert pool.reclaim(owner) > 0
        kill(host, mapper, pid)
    assert pool.reclaim(owner) == 0
