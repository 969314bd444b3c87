# SPDX-License-Identifier: Apache-2.0
"""Memory that hosts share without sharing caches, each cache as unhelpful as the hardware may be.

A host's cache serves a line that it holds, however stale; it may fetch any line at any time and drop any at any time.
A store past the caches waits in the storing process until it is fenced, and may reach the memory earlier, line by
line in any order. What a process left unfenced when it died reaches the memory at any later time, until its host is
asked something; what a host left when it died is lost. A plain store, which only a mutation makes, stays a dirty
line of the host's cache and is written back at any time.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINE = 64


class Memory:
    """The media, and the chance that decides what caches do. `events` counts what happened."""

    def __init__(self, size: int, chance: random.Random) -> None:
        self.content = bytearray(size)
        self.chance = chance
        self.events: Counter[str] = Counter()
        self.on_line: Callable[[int], None] = lambda line: None

    def read(self, line: int) -> bytes:
        return bytes(self.content[line * LINE : line * LINE + LINE])

    def write(self, line: int, data: bytes) -> None:
        self.content[line * LINE : line * LINE + LINE] = data
        self.on_line(line)


class Cache:
    """What one host holds of the memory: a copy, and which of its lines count."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.copy = bytearray(len(memory.content))
        self.held = bytearray(len(memory.content) // LINE)
        self.dirty: dict[int, bytes] = {}
        self.orphans: list[tuple[int, bytes]] = []
        """Stores of dead processes that are still on their way."""

    def load(self, first: int, last: int) -> bytes:
        """Load the lines [first, last) as a program does."""
        held = self.held[first:last]
        begin, end = first * LINE, last * LINE
        if 0 in held:
            for line in range(first, last) if 1 in held else ():
                if not self.held[line]:
                    self.copy[line * LINE : line * LINE + LINE] = self.memory.content[line * LINE : line * LINE + LINE]
            if 1 not in held:
                self.copy[begin:end] = self.memory.content[begin:end]
            self.held[first:last] = b"\1" * (last - first)
        data = bytes(self.copy[begin:end])
        if self.dirty:
            lines = [self.dirty.get(line, data[(line - first) * LINE :][:LINE]) for line in range(first, last)]
            data = b"".join(lines)
        if 1 in held and data != self.memory.content[begin:end]:
            self.memory.events["stale line served"] += 1
        return data

    def forget(self, first: int, last: int) -> None:
        """Invalidate the lines [first, last)."""
        self.held[first:last] = bytes(last - first)
        for line in [line for line in self.dirty if first <= line < last]:
            self.memory.write(line, self.dirty.pop(line))

    def arrive(self, line: int, data: bytes) -> None:
        """Let a store past the caches reach the memory; within a host caches are coherent."""
        self.held[line] = 0
        self.dirty.pop(line, None)
        self.memory.write(line, data)

    def settle(self) -> None:
        """Let everything arrive that is on its way."""
        for line, data in self.orphans:
            self.arrive(line, data)
        self.orphans.clear()

    def lose(self) -> None:
        """Lose power."""
        self.held = bytearray(len(self.held))
        self.dirty.clear()
        self.orphans.clear()

    def state(self) -> tuple[object, ...]:
        """Give everything that loads of this host may depend on."""
        lines = tuple(bytes(self.copy[n * LINE : n * LINE + LINE]) for n, held in enumerate(self.held) if held)
        return bytes(self.held), lines, tuple(self.dirty.items()), tuple(self.orphans)

    def wander(self) -> None:
        """Do something that nobody asked for."""
        chance = self.memory.chance
        kind = chance.random()
        if self.orphans and kind < 0.5:
            line, data = self.orphans.pop(chance.randrange(len(self.orphans)))
            self.arrive(line, data)
            self.memory.events["late store of a dead process"] += 1
        elif self.dirty and kind < 0.7:
            line = chance.choice(list(self.dirty))
            self.memory.write(line, self.dirty.pop(line))
        elif kind < 0.9:
            first = chance.randrange(len(self.held) - 16)
            self.load(first, first + 16)
        else:
            self.held[chance.randrange(len(self.held))] = 0


class SharedMedia:
    """The Media interface for one process of a host. `step` is called in front of each operation and may not return."""

    def __init__(
        self, cache: Cache, step: Callable[[], None], stores: Callable[[int, int], None] = lambda offset, length: None
    ) -> None:
        self.cache = cache
        self.stores = stores
        self.step = step
        self.pending: list[tuple[int, bytes]] = []
        self.plain = False

    @property
    def size(self) -> int:
        return len(self.cache.memory.content)

    def store(self, offset: int, data: ReadableBuffer) -> None:
        stored = bytes(data)
        assert offset % LINE == 0
        assert len(stored) % LINE == 0
        assert 0 <= offset <= offset + len(stored) <= self.size
        self.step()
        self.stores(offset, len(stored))
        chance = self.cache.memory.chance
        lines = [(offset // LINE + i, stored[i * LINE : i * LINE + LINE]) for i in range(len(stored) // LINE)]
        if self.plain:
            for line, piece in lines:
                self.cache.dirty[line] = piece
            return
        self.pending += lines
        if chance.random() < 0.5:
            self._drain(chance.randrange(len(self.pending) + 1))
        if len(lines) > 1 and chance.random() < 0.3:
            self.step()
            self._drain(chance.randrange(len(self.pending) + 1))

    def _drain(self, count: int) -> None:
        """Let some lines arrive, in any order; of two stores to one line the later one stays."""
        chosen = self.cache.memory.chance.sample(range(len(self.pending)), count)
        lines = {self.pending[i][0] for i in chosen}
        for line, data in self.pending:
            if line in lines:
                self.cache.arrive(line, data)
        self.pending = [entry for entry in self.pending if entry[0] not in lines]

    def fence(self) -> None:
        self.step()
        for line, data in self.pending:
            self.cache.arrive(line, data)
        self.pending.clear()

    def invalidate(self, offset: int, length: int) -> None:
        assert 0 <= offset <= offset + length <= self.size
        self.step()
        self.cache.forget(offset // LINE, -(-(offset + length) // LINE))

    def load(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size
        self.step()
        first, last = offset // LINE, -(-(offset + length) // LINE)
        cut = last
        if last - first > 4 and self.cache.memory.chance.random() < 0.2:
            cut = self.cache.memory.chance.randrange(first + 1, last)
        data = self.cache.load(first, cut)
        if cut < last:
            self.step()
            data += self.cache.load(cut, last)
        for line, piece in self.pending:  # a processor sees its own stores
            if first <= line < last:
                data = data[: (line - first) * LINE] + piece + data[(line - first + 1) * LINE :]
        begin = offset - first * LINE
        return data[begin : begin + length]

    def die(self, *, host_too: bool) -> None:
        """Leave what is not fenced on its way, or lose it with the host."""
        if self.pending:
            self.cache.memory.events["death with unfenced stores"] += 1
            if host_too:
                self.cache.memory.events["unfenced lines lost with a host"] += 1
            else:
                self.cache.orphans += self.pending
        self.pending = []
