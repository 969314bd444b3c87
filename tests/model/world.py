# SPDX-License-Identifier: Apache-2.0
"""What hosts do with a pool in the simulation, what must hold whatever happens, and one schedule of it all.

The operations are the pool's own code: provisioning, writer, loader, repair, ownership and reader, over the simulated
memory. The oracle knows what each load wrote, and watches every line that reaches the memory.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from unittest import mock
from uuid import UUID

import numpy as np
from crc32c import crc32c
from memory import LINE, SharedMedia
from rack import PATH, Process, Rack, SimulatedAccess, SimulatedHost, Violation

from engramdax.errors import (
    BusyError,
    DeposedError,
    EngramdaxError,
    FormatError,
    RefusedError,
    SourceError,
    SpaceError,
    TableExistsError,
    TableNotFoundError,
)
from engramdax.format.directory import Claim, Directory, Header, TableEntry
from engramdax.format.geometry import Extent, Geometry
from engramdax.format.layout import RowLayout
from engramdax.format.superblock import Superblock
from engramdax.pool import loader, repair, volume
from engramdax.pool import writer as writer_module
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.ownership import release, take_over
from engramdax.pool.provision import initialise
from engramdax.pool.reader import Reader
from engramdax.pool.repair import repair_table
from engramdax.pool.volume import read_slot
from engramdax.pool.writer import Writer

GEOMETRY = Geometry((0, 4096), (8192, 16384), slot_bytes=8192, unit=1024, block=256)
SIZE = 40 << 10
POOL = UUID(int=1)
LAYOUT = RowLayout.packed(("row", "uint8", 64))
NAMES = ("a", "b")
ROWS_CHECKED = 300
"""A writer of the simulation checks who owns the pool after so many bytes of rows."""

SAID = (
    BusyError,
    DeposedError,
    FormatError,
    RefusedError,
    SourceError,
    SpaceError,
    TableExistsError,
    TableNotFoundError,
)
"""What operations may end with."""


@cache
def content(name: str, version: int) -> bytes:
    """Give the bytes of a table's version; neighbouring versions share half of their blocks."""
    rows = 8 + (version + ord(name)) % 3 * 4
    parts = []
    for block in range(rows * LINE // GEOMETRY.block):
        seed = version // 2 if block % 2 else version
        digest = hashlib.sha256(f"{name} {seed} {block}".encode()).digest()
        parts.append(digest * (GEOMETRY.block // 32))
    return b"".join(parts)


class Source:
    """A source of the loader: one version of a table."""

    def __init__(self, name: str, version: int) -> None:
        self.name = name
        self.version = version
        self.changes = False
        self.layout = LAYOUT
        self.nbytes = len(content(name, version))
        self.rows = self.nbytes // LINE

    def read_into(self, offset: int, out: memoryview | np.ndarray) -> None:
        out[:] = np.frombuffer(content(self.name, self.version), np.uint8)[offset : offset + len(out)]

    def describe(self) -> dict[str, int]:
        return {"version": self.version}

    def drop_behind(self, offset: int, length: int) -> None:
        pass

    def check_unchanged(self) -> None:
        if self.changes:
            raise SourceError("the source changed")


@dataclass(frozen=True)
class Kind:
    """What is done in a schedule: the weight of each operation on the owner and elsewhere, and how often things die."""

    owner: dict[str, float]
    others: dict[str, float]
    hosts: tuple[int, ...]
    deaths: tuple[float, float]
    """Chance of a death at a step of a writer, and at one of another process."""
    rot: float
    operations: int


KINDS = (
    Kind(  # everything
        {
            "load": 8,
            "remove": 2,
            "reclaim": 1,
            "repair": 1,
            "release": 1,
            "take_over": 0.2,
            "take_over_fenced": 0.2,
            "read": 3,
            "verify": 0.3,
        },
        {"load": 0.3, "release": 0.1, "take_over": 0.8, "take_over_fenced": 0.4, "read": 4, "verify": 0.4},
        (2, 3, 4),
        (0.002, 0.0004),
        0.15,
        5,
    ),
    Kind(  # writers that die
        {"load": 8, "remove": 2, "reclaim": 1, "read": 1},
        {"read": 3, "take_over_fenced": 0.3},
        (2,),
        (0.008, 0.0),
        0.0,
        7,
    ),
    Kind(  # hands that change
        {"load": 3, "release": 3, "remove": 1, "read": 1},
        {"load": 1, "take_over": 4, "take_over_fenced": 1, "read": 1},
        (2, 3),
        (0.002, 0.0),
        0.1,
        5,
    ),
    Kind(  # space that readers hold
        {"load": 6, "remove": 4, "reclaim": 2, "read": 1},
        {"read": 8, "verify": 0.2},
        (2,),
        (0.0003, 0.002),
        0.0,
        9,
    ),
    Kind(  # bits that flip
        {"load": 4, "repair": 5, "read": 2, "remove": 1, "take_over": 0.5},
        {"read": 4, "take_over": 1, "take_over_fenced": 0.5, "verify": 0.3},
        (2,),
        (0.0007, 0.0),
        0.7,
        5,
    ),
)


@dataclass
class Held:
    """A table that a reader holds."""

    entry: TableEntry
    generation: int
    rotten: set[int]
    """Blocks that were rotten when it was taken, or rotted since."""


class World:
    """One pool in one rack."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(~seed)
        self.kind = KINDS[seed % len(KINDS)]
        self.rack = Rack(seed, self.chance.choice(self.kind.hosts), SIZE)
        self.rack.death_of_a_writer, self.rack.death_of_another = self.kind.deaths
        self.events = self.rack.events
        self.versions = 0
        self.possible: dict[str, set[int | None]] = {name: {None} for name in NAMES}
        self.rotten: dict[UUID, set[int]] = {}
        """Blocks of loads whose bits were flipped and not repaired."""
        self.repaired: dict[UUID, tuple[int, set[int]]] = {}
        """Which generation repaired a load, and what was rotten in it for who took it from an earlier one."""
        self.seen_rotten: dict[Extent, list[set[int]]] = {}
        """These, and those that readers go by who took a table before its repair: what rots later is in all of them."""
        self.named: dict[tuple[int, int, int], tuple[int, int]] = {}
        """What payload each epoch, owner and generation stood for."""
        self.after_claim: Counter[tuple[int, tuple[int, int]]] = Counter()
        """Stores to the directory by a process behind a claim of another host, which it may not have seen once."""
        self.rows_after_claim: Counter[tuple[int, tuple[int, int]]] = Counter()
        self.floor: tuple[int, int] = (0, 0)
        """The highest owner that was in both slots."""
        self.set_back = False
        """Whether a slot rotted that alone held the current directory."""
        self.fencing: SimulatedHost | None = None
        self.rack.memory.on_line = self.on_line
        self.rack.on_store = self.on_store
        self.rack.barred = lambda host: host.off or self.fencing not in (None, host)
        self.superblock = Superblock(POOL, UUID(int=2), "simulated", SIZE, GEOMETRY, shared=True, created=1)
        self.quiet = SharedMedia(_Truth(self.rack.memory), lambda: None)  # type: ignore[arg-type]

    # What the oracle watches

    def on_line(self, line: int) -> None:
        """Look at a line that reached the memory: no owner of before comes back, no published byte changes."""
        if line * LINE not in GEOMETRY.slots:
            return
        headers = [self.header(place) for place in GEOMETRY.slots]
        for header in headers:
            if header and self.named.setdefault(header.age, header[-2:]) != header[-2:]:
                raise Violation(f"epoch, owner and generation {header.age} stand for two directories")
        if all(headers):
            self.floor = max(self.floor, min(h.reign for h in headers if h))

    def on_store(self, process: Process, offset: int, length: int) -> None:
        """Look at what a process begins to store: behind another host's claim it stops at its next step."""
        g = GEOMETRY
        claims = [place + g.slot_bytes - LINE for place in g.slots]
        if offset in claims or offset < g.slots[0]:
            return
        lines = [bytes(self.rack.memory.content[place : place + LINE]) for place in claims]
        found: list[Header | Claim] = [h for place in g.slots if (h := self.header(place))]
        found += [claim for line in lines if (claim := Claim.from_bytes(line, pool=POOL))]
        top = max(found, key=lambda one: one.reign, default=None)
        if top is None or top.owner == process.host.id:
            return
        key = id(process), top.reign
        if any(place <= offset < place + g.slot_bytes for place in g.slots):
            self.after_claim[key] += 1
            self.events["step of a deposed writer"] += 1
            if self.after_claim[key] > 1:
                raise Violation("a deposed writer goes on publishing")
        else:
            self.rows_after_claim[key] += length
            self.events["row stores of a deposed writer"] += 1
            if self.rows_after_claim[key] > ROWS_CHECKED + g.block:
                raise Violation("a deposed writer goes on storing rows")

    def header(self, place: int) -> Header | None:
        try:
            return Header.from_bytes(bytes(self.rack.memory.content[place : place + LINE]), pool=POOL)
        except FormatError:
            return None

    def whole(self) -> list[Directory]:
        """Give the directories of the slots that are whole, as they stand in the memory."""
        found = []
        for index in (0, 1):
            with suppress(FormatError):
                found.append(read_slot(self.quiet, self.superblock, index))
        return found

    def state(self) -> tuple[object, ...]:
        """Give everything that what happens next may depend on, where no process lives."""
        return (
            bytes(self.rack.memory.content),
            tuple((h.cache.state(), frozenset(h.marks), h.off) for h in self.rack.hosts),
            tuple((name, frozenset(possible)) for name, possible in self.possible.items()),
            self.floor,
        )

    def check_memory(self, *, settled: bool = False) -> Directory | None:
        """Check what any host would find now, read past all caches."""
        slots = self.whole()
        if not slots:
            raise Violation("no slot holds a directory")
        if len(slots) == 1:
            self.events["one slot alone was whole"] += 1
        current = max(slots, key=lambda d: d.age)
        if current.reign < self.floor and not self.set_back:
            raise Violation(f"owner {current.reign} is current again after {self.floor}")
        for entry in current.published():
            self.compare(entry, bytes(self.rack.memory.content[entry.extent.offset :][: entry.bytes]), 0, "in memory")
        if settled and len(slots) == 2 and slots[0] != slots[1]:
            raise Violation("the slots differ though nobody writes")
        return current

    def compare(self, entry: TableEntry, data: bytes, offset: int, where: str, rotten: set[int] | None = None) -> None:
        expected = content(entry.name, entry.source["version"])[offset : offset + len(data)]
        if data == expected:
            return
        block = GEOMETRY.block
        rotten = self.rotten.get(entry.load, set()) if rotten is None else rotten
        for at in range(0, len(data), LINE):
            if data[at : at + LINE] != expected[at : at + LINE] and (offset + at) // block not in rotten:
                raise Violation(f"byte {offset + at} of {entry.name} ({entry.load}) is not what was published, {where}")
        self.events["rotten row read"] += 1

    # What hosts do

    def writer(self, process: Process, **options: object) -> Writer:
        return Writer(PATH, access=SimulatedAccess(process), **options)  # type: ignore[arg-type]

    def provision(self, process: Process) -> None:
        initialise(process.media, self.superblock, process.host.entry)

    def admit_all(self, process: Process) -> None:
        with self.writer(process) as writer:
            writer.publish(hosts=tuple(host.entry for host in self.rack.hosts))

    @contextmanager
    def changing(self, name: str, after: int | None) -> Iterator[None]:
        """Note that a table may be either version, until the operation got through."""
        self.possible[name] = {*self.possible[name], after}
        yield
        self.possible[name] = {after}

    def load(self, process: Process) -> None:
        chance = self.chance
        resume = chance.random() < 0.5
        left = [t.name for d in self.whole()[:1] for t in d.unfinished()]
        name = chance.choice(left if resume and left else NAMES)
        swap = not resume and chance.random() < 0.8
        self.versions += 1
        version = self.versions
        with self.writer(process, keep=lambda entry: resume and entry.name == name) as writer:
            unfinished = next((t for t in writer.directory.unfinished() if t.name == name), None)
            if unfinished is not None and chance.random() < 0.5:
                # The operator gives the source that was being loaded.
                version = unfinished.source["version"]
            old = writer.directory.table(name)
            if old is not None and not swap and not (resume and unfinished is not None):
                raise TableExistsError("there")
            source = Source(name, version)
            source.changes = chance.random() < 0.05
            with self.changing(name, version):
                load_tables(writer, [Load(source, name)], resume=resume, replace_old=swap)  # type: ignore[arg-type]
            self.events["load published"] += 1
            if unfinished is not None:
                self.events["load resumed"] += 1
            if old is not None:
                self.events["table replaced"] += 1

    def remove(self, process: Process) -> None:
        with self.writer(process) as writer:
            name = self.chance.choice([t.name for t in writer.directory.published()] or NAMES)
            writer.published(name)
            with self.changing(name, None):
                freed = writer.remove(name)
        self.events["space freed at once" if freed else "space waited for a reader"] += 1

    def reclaim(self, process: Process) -> None:
        with self.writer(process) as writer:
            if writer.directory.retired:
                self.events["reclaim in vain"] += 1

    def repair(self, process: Process) -> None:
        with self.writer(process) as writer:
            tables = writer.directory.published()
            if not tables:
                return
            rotten = [t for t in tables if self.rotten.get(t.load)]
            entry = self.chance.choice(rotten or tables)
            before = self.rotten.get(entry.load, set()) and self.rotten_now(entry)
            found = repair_table(writer, entry.name, Source(entry.name, entry.source["version"]))  # type: ignore[arg-type]
            if before and not found:
                raise Violation("repair overlooked a rotten block")
            if found:
                self.events["block repaired"] += 1
                self.repaired[entry.load] = writer.directory.generation, self.rotten.pop(entry.load, set())

    def release(self, process: Process) -> None:
        with self.writer(process, keep=lambda _: True) as writer:
            others = [host.id for host in writer.directory.hosts if host.id != process.host.id]
            if others:
                release(writer, self.chance.choice(others) if self.chance.random() < 0.7 else None)
                self.events["pool released"] += 1

    def take_over(self, process: Process) -> None:
        self.note_take_over(take_over(SimulatedAccess(process), fenced=False).proven)

    def note_take_over(self, proven: bool) -> None:
        self.events["take-over proven" if proven else "take-over without proof"] += 1

    def take_over_fenced(self, process: Process) -> None:
        """Take over on an operator's word, who keeps it: hosts with a writer lose power and stay off meanwhile."""
        if self.fencing is not None:
            return
        self.fencing = process.host
        try:
            for host in self.rack.hosts:
                if host is process.host:
                    continue
                if host.writer is not None:
                    self.rack.kill_host(host)
                    host.off = True
                else:
                    host.cache.settle()
            if take_over(SimulatedAccess(process), fenced=True).before.is_owner:
                return
            self.events["fenced take-over"] += 1
        finally:
            if self.fencing is process.host:
                self.fencing = None
                for host in self.rack.hosts:
                    host.off = False

    def read(self, process: Process) -> None:
        """Be a reader: attach, hold tables, gather, refresh, let go."""
        chance = self.chance
        reader = Reader(SimulatedAccess(process))
        found = reader.read_directory()
        directory = found.value
        self.see(found.problems)
        held: list[Held] = []
        for _ in range(chance.randrange(2, 8)):
            act = chance.random()
            if act < 0.3 and directory.published():
                held.append(self.take(reader, directory, chance.choice(directory.published())))
            elif act < 0.75 and held:
                self.gather_some(process, chance.choice(held))
            elif act < 0.9:
                before = directory
                found = reader.read_directory()
                directory = found.value
                self.see(found.problems)
                reader.pins.unpin(before.generation)
                if directory.age < before.age and self.set_back:
                    self.events["reader saw the directory go back"] += 1
                elif directory.age < before.age:
                    raise Violation(f"a reader saw {before.age}, then {directory.age}")
            elif held:
                gone = held.pop(chance.randrange(len(held)))
                reader.pins.unpin(gone.generation)
            process.step()
            if chance.random() < 0.4:
                process.sleep(chance.choice((0.05, 0.2, 1.0)))
        for one in held:
            self.gather_some(process, one)

    def see(self, problems: tuple[str, ...]) -> None:
        if problems:
            self.events["reader found a bad copy"] += 1

    def read_all(self, process: Process) -> None:
        """Attach, take all tables and read all their rows, then do so again."""
        reader = Reader(SimulatedAccess(process))
        held: list[Held] = []
        for _ in range(2):
            directory = reader.read_directory().value
            held += [self.take(reader, directory, entry) for entry in directory.published()]
            for one in held:
                self.gather(process, one, 0, one.entry.rows)

    def take(self, reader: Reader, directory: Directory, entry: TableEntry) -> Held:
        """Take a table in hand."""
        reader.pins.pin(directory.generation)
        rotten = self.rotten_in(directory, entry)
        reader.prepare(entry)
        return Held(entry, directory.generation, rotten)

    def gather_some(self, process: Process, one: Held) -> None:
        row = self.chance.randrange(one.entry.rows)
        count = min(self.chance.choice((1, 2, 4, one.entry.rows)), one.entry.rows - row)
        self.gather(process, one, row, count)

    def gather(self, process: Process, one: Held, row: int, count: int) -> None:
        """Read rows, as gathers do: with no invalidation of their own."""
        entry = one.entry
        data = process.media.load(entry.extent.offset + row * LINE, count * LINE)
        self.compare(entry, data, row * LINE, f"on {process.host.entry.name}", one.rotten)
        self.events["rows gathered"] += count

    def verify(self, process: Process) -> None:
        """Compare a table with its checksums, past the caches: a bad block is one that rotted."""
        reader = Reader(SimulatedAccess(process))
        directory = reader.read_directory().value
        for entry in directory.published():
            process.media.invalidate(*entry.checksums)
            stored = process.media.load(entry.checksums.offset, entry.bytes // GEOMETRY.block * 4)
            if crc32c(stored) != entry.checksums_crc:
                raise Violation(f"the checksums of {entry.name} are not those that were published")
            process.media.invalidate(*entry.extent)
            for index, expected in enumerate(np.frombuffer(stored, "<u4")):
                data = process.media.load(entry.extent.offset + index * GEOMETRY.block, GEOMETRY.block)
                if crc32c(data) != int(expected) and index not in self.rotten_in(directory, entry):
                    raise Violation(f"block {index} of {entry.name} is bad though nothing rotted")
        self.events["table verified"] += 1

    def rotten_of(self, entry: TableEntry) -> set[int]:
        """Give the blocks of a load that may be rotten; the set grows with what rots later."""
        if entry.load not in self.rotten:
            self.rotten[entry.load] = set()
            self.seen_rotten.setdefault(entry.extent, []).append(self.rotten[entry.load])
        return self.rotten[entry.load]

    def rotten_in(self, directory: Directory, entry: TableEntry) -> set[int]:
        """Give the blocks that may be rotten for a reader of this directory, whose caches hold what was before it."""
        generation, before = self.repaired.get(entry.load, (0, set()))
        return before if directory.generation < generation else self.rotten_of(entry)

    def rotten_now(self, entry: TableEntry) -> bool:
        """Tell whether a rotten block is still so: a repair that died may have written it."""
        return bytes(self.rack.memory.content[entry.extent.offset :][: entry.bytes]) != content(
            entry.name, entry.source["version"]
        )

    def owner(self) -> UUID | None:
        return max(self.whole(), key=lambda d: d.age).owner if self.whole() else None

    def rot(self) -> None:
        """Flip bits of a table, or spoil one slot or one superblock copy, at a moment when nobody writes."""
        if any(host.writer for host in self.rack.hosts) or any(host.cache.orphans for host in self.rack.hosts):
            return
        slots = self.whole()
        if len(slots) != 2:
            return
        memory = self.rack.memory
        kind = self.chance.random()
        if kind < 0.2 or slots[0] != slots[1]:
            index = self.chance.choice((0, 1))
            if slots[0] != slots[1] and (self.set_back or abs(slots[0].generation - slots[1].generation) > 1):
                return  # of a second such loss in a row a number that is skipped once cannot tell
            memory.content[GEOMETRY.slots[index] + self.chance.choice((0, LINE)) + 9] ^= 4
            # What a writer that died left in one slot alone is gone with it; its readers are told.
            self.set_back = self.set_back or slots[index].age > slots[1 - index].age
            self.events["slot rotted"] += 1
        elif kind < 0.3:
            memory.content[self.chance.choice(GEOMETRY.superblocks) + 100] ^= 4
            if len(self.good_superblocks()) == 0:
                memory.content[: len(self.superblock.to_bytes())] = self.superblock.to_bytes()
            self.events["superblock rotted"] += 1
        elif slots[0].published():
            entry = self.chance.choice(slots[0].published())
            block = self.chance.randrange(entry.bytes // GEOMETRY.block)
            memory.content[entry.extent.offset + block * GEOMETRY.block] ^= 1
            self.rotten_of(entry)
            for rotten in self.seen_rotten[entry.extent]:
                rotten.add(block)
            self.events["block rotted"] += 1

    def good_superblocks(self) -> list[int]:
        good = self.superblock.to_bytes()
        return [p for p in GEOMETRY.superblocks if self.rack.memory.content[p : p + len(good)] == good]

    # One schedule

    def attempt(self, act: Callable[[Process], None]) -> Callable[[Process], None]:
        """Let a process do something that may be refused."""

        def run(process: Process) -> None:
            try:
                act(process)
            except DeposedError:
                self.events["writer found itself deposed"] += 1
            except SAID as e:
                self.events[f"ended with {type(e).__name__}"] += 1
            except EngramdaxError as e:
                raise Violation(f"an operation ended with {e!r}") from e

        return run

    def client(self, host: SimulatedHost, count: int) -> Callable[[Process], None]:
        """Give an operator who starts one operation after the other on a host."""
        kind = self.kind

        def run(process: Process) -> None:
            for _ in range(count):
                weights = kind.owner if self.owner() == host.id else kind.others
                act = getattr(self, self.chance.choices(list(weights), list(weights.values()))[0])
                child = self.rack.start(host, self.attempt(act), act.__name__)
                if self.chance.random() < 0.8:
                    process.wait_until(lambda child=child: child.ended)  # type: ignore[misc]
                if self.chance.random() < kind.rot:
                    self.rot()

        return run

    def alone(self, host: SimulatedHost, act: Callable[[Process], None]) -> None:
        self.rack.start(host, act, act.__name__)
        self.rack.run()

    def go(self) -> None:
        """Run the schedule; raises Violation."""
        rack, first = self.rack, self.rack.hosts[0]
        # Provisioning may die anywhere, then it is done again; nobody may take half of it for a pool.
        rack.start(first, self.attempt(self.read), "read")
        self.alone(first, self.provision)
        if len(self.good_superblocks()) < len(GEOMETRY.superblocks):
            first.cache.settle()
            rack.deaths = False
            self.alone(first, self.provision)
        rack.deaths = False
        first.cache.settle()
        self.check_memory(settled=True)
        self.alone(first, self.admit_all)
        rack.deaths = True
        clients = [rack.start(host, self.client(host, self.kind.operations), "operator") for host in rack.hosts]
        for client in clients:
            client.immortal = True
        rack.run()
        self.check_memory()
        self.recover()

    def recover(self) -> None:
        """Let one host take over and clear up: nothing is lost, and no space is leaked."""
        rack = self.rack
        rack.deaths = False
        self.check_memory()
        for host in rack.hosts:
            host.cache.settle()
        self.check_memory()
        host = self.chance.choice(rack.hosts)
        self.alone(host, self.attempt_sure(lambda p: take_over(SimulatedAccess(p), fenced=True)))
        chance, self.rack.chance = self.rack.chance, _Answering()  # type: ignore[assignment]
        try:
            self.alone(host, self.attempt_sure(self.reclaim))
        finally:
            self.rack.chance = chance
        current = self.check_memory(settled=True)
        assert current is not None
        if current.retired or current.unfinished():
            raise Violation(f"space is leaked: {current.retired}, {current.unfinished()}")
        for name in NAMES:
            entry = current.table(name)
            version = entry.source["version"] if entry else None
            if version not in self.possible[name]:
                raise Violation(f"table {name} is {version}, it should be one of {self.possible[name]}")
        if len(self.good_superblocks()) < len(GEOMETRY.superblocks):
            raise Violation("a superblock copy was not repaired")
        if current.owner != host.id:
            raise Violation("the one who took over is not the owner")
        for reader in rack.hosts:
            # With what its cache holds; verifying forgets all of that.
            self.alone(reader, self.attempt_sure(self.read))
            self.alone(reader, self.attempt_sure(self.verify))

    @staticmethod
    def attempt_sure(act: Callable[[Process], object]) -> Callable[[Process], None]:
        def run(process: Process) -> None:
            try:
                act(process)
            except EngramdaxError as e:
                raise Violation(f"with nobody in the way: {e!r}") from e

        return run


class _Answering(random.Random):
    """A chance at which every host answers and nobody is in the way."""

    def random(self) -> float:
        return 0.5


class _Truth:
    """A cache that is none: what the oracle reads with."""

    def __init__(self, memory: object) -> None:
        self.memory = memory
        self._content = memory.content  # type: ignore[attr-defined]

    def load(self, first: int, last: int) -> bytes:
        return bytes(self._content[first * LINE : last * LINE])

    def forget(self, first: int, last: int) -> None:
        pass


@contextmanager
def small_scale(seed: int, *, settle_seconds: float, retry_seconds: float = volume.RETRY_SECONDS) -> Iterator[None]:
    """Have the pool's code run in the simulation: one thread, small pieces, short waits, load ids that repeat."""
    ids = random.Random(seed)

    def uuid4() -> UUID:
        return UUID(int=ids.getrandbits(128), version=4)

    with warnings.catch_warnings(), ExitStack() as stack:
        warnings.simplefilter("ignore")
        for module, name, value in (
            (loader, "MAX_WORKERS", 1),
            (loader, "uuid4", uuid4),
            (repair, "uuid4", uuid4),
            (writer_module, "CHECK_BYTES", ROWS_CHECKED),
            (volume, "superblock_places", lambda _size: GEOMETRY.superblocks),
            # A slot that stays bad is read again for so long by each reader.
            (volume, "SETTLE_SECONDS", settle_seconds),
            (volume, "RETRY_SECONDS", retry_seconds),
        ):
            stack.enter_context(mock.patch.object(module, name, value))
        yield


def run_schedule(seed: int) -> World:
    """Run one schedule; the seed gives everything."""
    with small_scale(seed, settle_seconds=0.02):
        world = World(seed)
        world.go()
    return world
