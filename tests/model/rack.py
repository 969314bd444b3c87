# SPDX-License-Identifier: Apache-2.0
"""Hosts and processes over that memory: the pool's own code, one step of one process at a time.

A process is a greenlet. Each operation on the memory, each question to another host and each wait is a step, in front
of which another process may go on; a process may also stand still for long, or die, or its host may die under it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from greenlet import getcurrent, greenlet
from memory import Cache, Memory, SharedMedia

from engramdax.errors import BusyError
from engramdax.format.directory import Host as HostEntry
from engramdax.format.geometry import Extent
from engramdax.pool.peers import Answer

TICK = 0.001
"""Seconds that a step takes."""

PATH = Path("/simulated/pool")


class Violation(AssertionError):  # noqa: N818 - what it is called
    """A rule did not hold."""


class Killed(BaseException):
    """The process is dead: nothing that it still does has an effect."""


class Rack:
    """Memory, hosts, and the scheduler."""

    def __init__(self, seed: int, hosts: int, size: int) -> None:
        self.chance = random.Random(seed)
        self.memory = Memory(size, self.chance)
        self.events: Counter[str] = self.memory.events
        self.now = 0.0
        self.hosts = [SimulatedHost(self, number) for number in range(hosts)]
        self.processes: list[Process] = []
        self.steps = 0
        self.deaths = True
        """Whether processes and hosts may die."""
        self.death_of_a_writer = self.death_of_another = 0.0
        self.limit = 60_000
        self.on_store: Callable[[Process, int, int], None] = lambda process, offset, length: None
        self.barred: Callable[[SimulatedHost], bool] = lambda host: False
        """Whether an operator lets nobody write on a host, because another one takes over on his word."""

    def start(self, host: SimulatedHost, act: Callable[[Process], None], name: str) -> Process:
        process = Process(self, host, act, name)
        self.processes.append(process)
        return process

    def run(self) -> None:
        """Run until every process has ended; raises what one of them raised."""
        chance = self.chance
        current: Process | None = None
        while True:
            alive = [p for p in self.processes if not p.ended]
            self.processes = alive
            if not alive:
                return
            ready = [p for p in alive if p.wake <= self.now]
            if not ready:
                self.now = min(p.wake for p in alive)
                continue
            if current is None or current.ended or current.wake > self.now or chance.random() < 0.25:
                current = chance.choice(ready)
            if chance.random() < 0.01:
                # Descheduled for long.
                current.wake = self.now + chance.choice((0.02, 0.3, 3.0))
                current = None
                continue
            if chance.random() < 0.05:
                chance.choice(self.hosts).cache.wander()
            if self.deaths and chance.random() < self._death_of(current):
                self._kill(current)
                current = None
                continue
            self.now += TICK
            self.steps += 1
            if self.steps == self.limit:
                raise Violation(f"the schedule does not end in {self.limit} steps")
            current.resume()

    def _death_of(self, process: Process) -> float:
        if process.host.marking is process:
            return 10 * self.death_of_another
        if process.media.pending:  # when it matters most
            return 4 * self.death_of_a_writer
        return self.death_of_a_writer if process.host.writer is process else self.death_of_another

    def _kill(self, process: Process) -> None:
        if process.immortal:
            return
        if self.chance.random() < 0.4:
            self.kill_host(process.host)
        else:
            process.kill(host_too=False)

    def kill_host(self, host: SimulatedHost) -> None:
        """Let a host lose its power and boot again."""
        self.events["host died"] += 1
        for process in [p for p in self.processes if p.host is host and not p.ended and not p.immortal]:
            process.kill(host_too=True)
        host.cache.lose()
        host.marks.clear()

    def peers_of(self, host: SimulatedHost) -> SimulatedPeers:
        return SimulatedPeers(self, host)


class Process:
    """One process of a host."""

    def __init__(self, rack: Rack, host: SimulatedHost, act: Callable[[Process], None], name: str) -> None:
        self.rack = rack
        self.host = host
        self.name = name
        self.wake = 0.0
        self.dead = False
        self.immortal = False
        """An operator, who is no process."""
        self.media = SharedMedia(host.cache, self.step, self.stores)
        self.held: Counter[int] = Counter()
        self._greenlet = greenlet(lambda: act(self), parent=getcurrent())

    @property
    def ended(self) -> bool:
        return self.dead or self._greenlet.dead

    def resume(self) -> None:
        self._greenlet.switch()
        if self._greenlet.dead:
            self._leave(host_too=False)

    def step(self) -> None:
        """Let others go first, perhaps for ever."""
        if self.dead:
            raise Killed
        if getcurrent() is self._greenlet:
            self.rack_greenlet.switch()
        if self.dead:
            raise Killed

    @property
    def rack_greenlet(self) -> greenlet:
        parent = self._greenlet.parent
        assert parent is not None
        return parent

    def stores(self, offset: int, length: int) -> None:
        self.rack.on_store(self, offset, length)

    def sleep(self, seconds: float) -> None:
        self.wake = self.rack.now + seconds
        self.step()

    def wait_until(self, free: Callable[[], bool]) -> None:
        while not free():
            self.sleep(20 * TICK)

    def kill(self, *, host_too: bool) -> None:
        """Die here and now: whatever the code wants to clean up has no effect."""
        self.rack.events["process died"] += 1
        self.dead = True
        self.media.die(host_too=host_too)
        if self.host.writer is self and not self._greenlet.dead:
            self.rack.events["writer died"] += 1
        self._leave(host_too=host_too)
        if self._greenlet:  # begun and not ended
            # The rest of its stack runs, dead, and comes back here.
            self._greenlet.parent = getcurrent()
            with_suppressed(lambda: self._greenlet.throw(Killed))

    def _leave(self, *, host_too: bool) -> None:
        """Let the kernel take back what the process held."""
        if self.media.pending:
            self.media.die(host_too=host_too)
        if self.host.writer is self:
            self.host.writer = None
        if self.host.marking is self:
            self.host.marking = None
        self.held.clear()
        self.dead = True


def with_suppressed(act: Callable[[], object]) -> None:
    try:
        act()
    except Killed:
        return


class SimulatedHost:
    """One host: its cache, and what its kernel keeps for its processes."""

    def __init__(self, rack: Rack, number: int) -> None:
        self.rack = rack
        self.number = number
        # In no order, so that the higher host id is not always the later host.
        self.id = UUID(int=(7 * number + 3) % 10 + 1)
        self.entry = HostEntry(self.id, f"host{number}")
        self.cache = Cache(rack.memory)
        self.writer: Process | None = None
        self.marking: Process | None = None
        self.marks: set[UUID] = set()
        self.off = False

    def pinned(self) -> tuple[int, ...]:
        held = {g for p in self.rack.processes if p.host is self and not p.ended for g, n in p.held.items() if n}
        return tuple(sorted(held))

    def answer(self) -> Answer:
        # Whoever answers was scheduled, and with that what dead processes stored is on its way no more.
        self.cache.settle()
        return Answer(self.pinned(), self.writer is not None)


class SimulatedPeers:
    """Questions to other hosts, which some of them do not answer."""

    def __init__(self, rack: Rack, host: SimulatedHost) -> None:
        self.rack = rack
        self.host = host
        self.process: Process | None = None

    def ask(self, hosts: Sequence[HostEntry], pool: UUID) -> dict[HostEntry, Answer | None]:
        return {host: self._ask(host) for host in hosts}

    def _ask(self, host: HostEntry) -> Answer | None:
        assert self.process is not None
        self.process.step()
        other = next(h for h in self.rack.hosts if h.id == host.id)
        if other.off or self.rack.chance.random() < 0.1:
            self.rack.events["host did not answer"] += 1
            return None
        answer = other.answer()
        self.process.step()
        return answer


class SimulatedLock:
    def __init__(self, process: Process) -> None:
        self._process = process

    def release(self) -> None:
        if self._process.host.writer is self._process:
            self._process.host.writer = None


class SimulatedPins:
    def __init__(self, process: Process) -> None:
        self._process = process

    def pin(self, generation: int) -> None:
        self._process.step()
        self._process.held[generation] += 1

    def unpin(self, generation: int) -> None:
        self._process.held[generation] -= 1

    def close(self) -> None:
        self._process.held.clear()


@dataclass
class SimulatedMarks:
    process: Process
    host: SimulatedHost = field(init=False)

    def __post_init__(self) -> None:
        self.host = self.process.host

    def __contains__(self, load: UUID) -> bool:
        found = load in self.host.marks
        self.host.rack.events["load was marked" if found else "load was not marked"] += 1
        return found

    def add(self, load: UUID) -> None:
        if not self.process.dead:
            self.host.marks.add(load)


class SimulatedAccess:
    """The Access interface for one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.path = PATH
        self.clock = self
        self.peers = process.rack.peers_of(process.host)
        self.peers.process = process
        self.workers = 1
        self.media = process.media

    @property
    def host(self) -> UUID:
        return self.process.host.id

    def monotonic(self) -> float:
        return self.process.rack.now

    def sleep(self, seconds: float) -> None:
        self.process.sleep(seconds)

    def lock(self, pool: UUID) -> SimulatedLock:
        self.process.step()
        self.process.wait_until(lambda: not self.process.rack.barred(self.process.host))
        if self.process.host.writer is not None:
            raise BusyError("another process of this host writes")
        self.process.host.writer = self.process
        # The kernel let go of the lock behind the death of who had it: what that one stored has left the CPU.
        self.process.host.cache.settle()
        return SimulatedLock(self.process)

    def pins(self, pool: UUID) -> SimulatedPins:
        return SimulatedPins(self.process)

    def here(self, pool: UUID) -> Answer:
        return self.process.host.answer()

    @contextmanager
    def marks(self, pool: UUID) -> Iterator[SimulatedMarks]:
        host = self.process.host
        self.process.wait_until(lambda: host.marking is None)
        host.marking = self.process
        try:
            yield SimulatedMarks(self.process)
        finally:
            if host.marking is self.process:
                host.marking = None

    def reserve(self, extents: Sequence[Extent]) -> None:
        pass

    def prefault(self, offset: int, length: int) -> None:
        pass

    def close(self) -> None:
        pass
