# SPDX-License-Identifier: Apache-2.0
"""Small cases: one writer, one other process on another host, and one change of turns each way.

The writer takes its first i steps, the other its first j, then the writer goes on, or dies, or its host dies, and then
both run to their ends. Stores reach the memory at once, or only when they are fenced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import count

from rack import Process
from world import World, small_scale

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


EAGER, LAZY, SILENT = 0.35, 0.9, 0.05
"""Stores arrive at once; stores arrive when they are fenced; they arrive at once, and no host answers another."""


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


def short(ids: int) -> AbstractContextManager[None]:
    return small_scale(ids, settle_seconds=0.0, retry_seconds=0.05)


def copy_of(start: World, chance: Policy) -> World:
    """Give a world with the memory of another, and nothing in its caches."""
    world = World(0)
    del world.rack.hosts[2:]
    world.rack.deaths = False
    world.rack.memory.content[:] = start.rack.memory.content
    world.versions = start.versions
    world.possible = {name: set(possible) for name, possible in start.possible.items()}
    world.chance = world.rack.chance = world.rack.memory.chance = chance
    return world


def steps(process: Process, number: int) -> None:
    """Let a process take steps, and time pass where it waits."""
    for _ in range(number):
        if process.ended:
            return
        process.rack.now = max(process.rack.now + 0.001, process.wake)
        process.resume()


def in_turn(first: Callable[[Process], None], second: Callable[[Process], None], process: Process) -> None:
    first(process)
    second(process)


OPERATIONS: dict[str, Callable[[World], Callable[[Process], None]]] = {
    "a load that replaces": lambda world: world.load,
    "a removal": lambda world: world.remove,
    "a release": lambda world: world.release,
    "a reclaim": lambda world: world.reclaim,
    "a release and a take-over back": lambda world: partial(in_turn, world.release, world.take_over),
    "a removal and a load in its place": lambda world: partial(in_turn, world.remove, world.load),
}
OTHERS: dict[str, Callable[[World], Callable[[Process], None]]] = {
    "a reader": lambda world: world.read_all,
    "a take-over": lambda world: world.take_over,
}


def run_case(operation: str, other: str, stores: float, strides: tuple[int, int]) -> tuple[int, int]:
    """Run a case for every so many i and j; give the number of schedules and of states in which they ended."""
    schedules = 0
    ends: set[tuple[object, ...]] = set()
    with short(0):
        start = prepared()
    for first in count(0, strides[0]):
        writer_ended = False
        for second in count(0, strides[1]):
            other_ended = False
            for fate in FATES:
                with short(1):  # no load has the id of the one that is there
                    world = copy_of(start, Policy(stores))
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
                    schedules += 1
                    # What is found and recovered depends on nothing else.
                    if (end := world.state()) in ends:
                        continue
                    ends.add(end)
                    world.chance = random.Random(first * 1000 + second)
                    world.check_memory()
                    world.recover()
            if other_ended:
                break
        if writer_ended:
            break
    return schedules, len(ends)
