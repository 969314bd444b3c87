# SPDX-License-Identifier: Apache-2.0
"""All schedules of small cases: one writer, one other process on another host, and one change of turns each way.

The writer takes its first i steps, the other its first j, then the writer goes on, or dies, or its host dies, and then
both run to their ends. Stores reach the memory at once, or only when they are fenced. With ENGRAMDAX_ALL set (`make
model` does) that is done for all i and j, else for every fourth i and every ninth j.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from itertools import count
from unittest import mock

import pytest
from rack import Process
from world import GEOMETRY, World

from engramdax.pool import loader, volume

STRIDES = (1, 1) if os.environ.get("ENGRAMDAX_ALL") else (4, 9)
FATES = ("goes on", "dies", "its host dies")


class Policy(random.Random):
    """A chance that says the same each time."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self.value = value

    def random(self) -> float:
        return self.value

    def choice(self, seq):
        return seq[0]

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start - 1 if stop is None else stop - 1


EAGER, LAZY = 0.35, 0.9
"""Stores arrive at once; stores arrive when they are fenced."""


@pytest.fixture(autouse=True)
def _inline() -> Iterator[None]:
    with (
        mock.patch.object(loader, "MAX_WORKERS", 1),
        mock.patch.object(volume, "superblock_places", return_value=GEOMETRY.superblocks),
        mock.patch.object(volume, "SETTLE_SECONDS", 0.0),
        mock.patch.object(volume, "RETRY_SECONDS", 0.05),
    ):
        yield


def prepared() -> World:
    """Give a pool of two hosts with one table in it, which nobody uses."""
    world = World(0)
    rack = world.rack
    del rack.hosts[2:]
    rack.deaths = False
    world.alone(rack.hosts[0], world.provision)
    world.alone(rack.hosts[0], world.admit_all)
    world.chance = Policy(0.3)
    while not any(d.published() for d in world.whole()):
        world.alone(rack.hosts[0], world.load)
    return world


def steps(process: Process, number: int) -> None:
    """Let a process take steps, and time pass where it waits."""
    for _ in range(number):
        if process.ended:
            return
        process.rack.now = max(process.rack.now + 0.001, process.wake)
        process.resume()


OPERATIONS: dict[str, Callable[[World], Callable[[Process], None]]] = {
    "a load that replaces": lambda world: world.load,
    "a removal": lambda world: world.remove,
    "a release": lambda world: world.release,
    "a reclaim": lambda world: world.reclaim,
}
OTHERS: dict[str, Callable[[World], Callable[[Process], None]]] = {
    "a reader": lambda world: world.read,
    "a take-over": lambda world: world.take_over,
}


@pytest.mark.unsanitized
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("stores", [EAGER, LAZY], ids=["eager", "lazy"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_schedule_of_a_small_case_keeps_the_rules(operation: str, other: str, stores: float) -> None:
    schedules = 0
    image = bytes(prepared().rack.memory.content)
    versions = {name: set(possible) for name, possible in prepared().possible.items()}
    for first in count(0, STRIDES[0]):
        writer_ended = False
        for second in count(0, STRIDES[1]):
            other_ended = False
            for fate in FATES:
                world = World(0)
                del world.rack.hosts[2:]
                world.rack.deaths = False
                world.rack.memory.content[:] = image
                world.possible = {name: set(possible) for name, possible in versions.items()}
                world.chance = world.rack.chance = world.rack.memory.chance = Policy(stores)
                writer_host, other_host = world.rack.hosts
                writer = world.rack.start(writer_host, world.attempt(OPERATIONS[operation](world)), operation)
                steps(writer, first)
                writer_ended = writer.ended
                one = world.rack.start(other_host, world.attempt(OTHERS[other](world)), other)
                steps(one, second)
                other_ended = one.ended
                if fate == "dies":
                    writer.kill(host_too=False)
                elif fate == "its host dies":
                    world.rack.kill_host(writer_host)
                steps(writer, 1 << 20)
                steps(one, 1 << 20)
                world.rack.processes.clear()
                world.chance = random.Random(first * 1000 + second)
                world.check_memory()
                world.recover()
                schedules += 1
            if other_ended:
                break
        if writer_ended:
            break
    assert schedules > 50
