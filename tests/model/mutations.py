# SPDX-License-Identifier: Apache-2.0
"""Single changes to the rules, each of which the simulation must catch.

A mutation replaces one piece of one module's text, in a process of its own, before the module is imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType


@dataclass(frozen=True)
class Mutation:
    """What it leaves out or swaps, and where."""

    what: str
    module: str
    old: str
    new: str
    kind: int | None = None
    """The kind of schedule that has the situation in which it matters, where the others hardly do."""
    seed: int = 0
    """Where it was caught before, which is where the search begins; a change of the code moves it."""

    case: tuple[str, str, float] | None = None
    """The small case that catches it, where it takes one pause in a place that is hardly ever hit by chance."""

    def install(self) -> None:
        """Have the module imported so; it must not have been imported before."""
        assert self.module not in sys.modules
        sys.meta_path.insert(0, _Finder(self))

    def source(self, text: str) -> str:
        """Give the mutated text; what is replaced stands there once."""
        assert text.count(self.old) == 1, f"{self.what}: found {text.count(self.old)} times in {self.module}"
        return text.replace(self.old, self.new)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._mutation.module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(self._mutation, name, spec.origin)
        return importlib.util.spec_from_file_location(name, spec.origin, loader=loader)


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, mutation: Mutation, name: str, path: str) -> None:
        super().__init__(name, path)
        self._mutation = mutation

    def get_code(self, fullname: str) -> object:  # type: ignore[override]
        text = self._mutation.source(self.get_data(self.path).decode())
        return compile(text, self.path, "exec", dont_inherit=True)


VOLUME = "engramdax.pool.volume"
WRITER = "engramdax.pool.writer"
LOADER = "engramdax.pool.loader"
READER = "engramdax.pool.reader"
OWNERSHIP = "engramdax.pool.ownership"
COHERENCE = "engramdax.pool.coherence"
PROOF = "engramdax.pool.proof"
REPAIR = "engramdax.pool.repair"
DIRECTORY = "engramdax.format.directory"

REUSE = "a removal and a load in its place", "a reader", 0.35
PAYLOAD = """        check()
        media.store(place + LINE, payload)
        media.fence()
"""
HEADER = """        check()
        media.store(place, header)
        media.fence()
"""

MUTATIONS = (
    Mutation(
        "no owner check before the payload", VOLUME, PAYLOAD, PAYLOAD.replace("        check()\n", ""), kind=2, seed=187
    ),
    Mutation(
        "no owner check before the header line",
        VOLUME,
        HEADER,
        HEADER.replace("        check()\n", ""),
        kind=2,
        seed=477,
    ),
    Mutation("plain stores, which stay in the cache", "memory", "self.plain = False", "self.plain = True", seed=0),
    Mutation(
        "the slot that alone is current written first",
        VOLUME,
        "g.slots if ages[0] <= ages[1] else reversed(g.slots)",
        "g.slots",
        kind=1,
        seed=1151,
    ),
    Mutation(
        "one slot written, not both",
        VOLUME,
        "in g.slots if ages[0] <= ages[1] else reversed(g.slots):",
        "in g.slots[:1]:",
        seed=1,
    ),
    Mutation(
        "the header line of a slot read without invalidation",
        VOLUME,
        "    place = g.slots[index]\n    media.invalidate(place, LINE)\n",
        "    place = g.slots[index]\n",
        seed=0,
    ),
    Mutation(
        "the payload of a slot read without invalidation",
        VOLUME,
        "    media.invalidate(place + LINE, length)\n",
        "",
        seed=1,
    ),
    Mutation(
        "the superblock read without invalidation",
        VOLUME,
        "    media.invalidate(place, SUPERBLOCK_BYTES)\n",
        "",
        seed=4,
    ),
    Mutation(
        "claims read without invalidation",
        VOLUME,
        "    for place in _claim_places(superblock):\n        media.invalidate(place, LINE)\n",
        "    for place in _claim_places(superblock):\n",
        seed=7,
    ),
    Mutation(
        "rows not invalidated",
        COHERENCE,
        "            media.invalidate(offset, length)\n",
        "            pass\n",
        seed=2,
    ),
    Mutation(
        "the mark set before the rows are invalidated",
        COHERENCE,
        "        return False\n    pieces = [",
        "        return False\n    marks.add(load)\n    pieces = [",
        kind=3,
        seed=1333,
    ),
    Mutation(
        "marks that count for every load",
        COHERENCE,
        "    if load in marks:\n",
        "    if load in marks or True:\n",
        seed=2,
    ),
    Mutation(
        "shared pools taken for ones of a single host", READER, "if not self.superblock.shared:", "if True:", seed=2
    ),
    Mutation(
        "no pin of the generation",
        READER,
        "            self.pins.pin(found.value.generation)\n",
        "            self.pins.pin(1 << 61)\n",
        kind=3,
        seed=1018,
    ),
    Mutation(
        "the pin of all generations given back before one is pinned",
        READER,
        "            self.pins.pin(found.value.generation)\n        finally:\n            self.pins.unpin(0)\n",
        "        finally:\n            self.pins.unpin(0)\n        self.pins.pin(found.value.generation)\n",
        case=REUSE,
    ),
    Mutation(
        "space free one generation early",
        WRITER,
        "if not proof.none_before(r.generation)",
        "if not proof.none_before(r.generation - 1)",
        case=REUSE,
    ),
    Mutation(
        "a bad slot's generation used again",
        WRITER,
        "self._generation = last_generation(self.media, self.superblock, directory) + 1",
        "self._generation = directory.generation",
        kind=4,
        seed=794,
    ),
    Mutation("a repair that keeps the load id", REPAIR, "replace(entry, load=uuid4())", "entry", kind=4, seed=814),
    Mutation(
        "a writer passed over by a take-over",
        OWNERSHIP,
        "                writing.append(host)\n",
        "                pass\n",
        kind=2,
        seed=962,
    ),
    Mutation(
        "silence taken for an answer",
        PROOF,
        "if any(answer is None for answer in answers):",
        "if False:",
        kind=3,
        seed=1443,
    ),
    Mutation(
        "only this host asked for its readers",
        PROOF,
        "answers = [self.here, *self.others.values()]",
        "answers = [self.here]",
        kind=3,
        seed=728,
    ),
    Mutation(
        "a removed table's space free at once",
        WRITER,
        "            retired=(*self.directory.retired, *retired),\n        )\n        self.reclaim()",
        "            retired=self.directory.retired,\n        )\n        self.reclaim()",
        kind=3,
        seed=613,
    ),
    Mutation(
        "a replaced table's space free at once",
        WRITER,
        "if t not in old), retired=(*self.directory.retired, *retired))",
        "if t not in old))",
        kind=3,
        seed=308,
    ),
    Mutation(
        "slots left different by a writer that died",
        WRITER,
        "agree = not repair and slots_agree(self.media, self.superblock, directory)",
        "agree = not repair",
        kind=1,
        seed=126,
    ),
    Mutation(
        "unfinished loads kept for ever",
        WRITER,
        "*directory.published(), *kept)",
        "*directory.tables,)",
        kind=1,
        seed=1,
    ),
    Mutation(
        "superblock copies not repaired",
        WRITER,
        "                repair_superblocks(self.media, self.superblock)\n",
        "                pass\n",
        kind=4,
        seed=4,
    ),
    Mutation(
        "a writer starts on any host", WRITER, "if directory.owner != self.access.host:", "if False:", kind=2, seed=7
    ),
    Mutation(
        "no owner check while rows are stored",
        WRITER,
        "                self.check()\n                self._unchecked",
        "                self._unchecked",
        kind=2,
        seed=47,
    ),
    Mutation("a table published before its rows are stored", LOADER, "state=LOADING,", 'state="published",', seed=1),
    Mutation(
        "a resumed block trusted unseen",
        LOADER,
        "        return writer.media.load(offset, len(data)) == data\n",
        "        return True\n",
        kind=1,
        seed=116,
    ),
    Mutation(
        "a take-over without asking",
        OWNERSHIP,
        "    if not released and not fenced:\n",
        "    if False:\n",
        kind=2,
        seed=472,
    ),
    Mutation(
        "a release believed as it was before the claim",
        OWNERSHIP,
        "        directory = read_directory(access.media, superblock, clock=access.clock).value\n"
        "        released = _is_given_up(access, superblock, directory)\n    if not",
        "    if not",
        seed=608777226817,
    ),
    Mutation(
        "a take-over that does not raise the epoch",
        OWNERSHIP,
        "claim.epoch if claim else 0) + 1",
        "claim.epoch if claim else 0)",
        kind=2,
        seed=2,
    ),
    Mutation(
        "a repair that trusts the cache",
        REPAIR,
        "    writer.media.invalidate(offset, length)\n    try:\n        return block_crc",
        "    try:\n        return block_crc",
        kind=4,
        seed=144,
    ),
    Mutation(
        "the header line's checksum not compared",
        DIRECTORY,
        "if magic != MAGIC or crc != crc32c(line[:_CHECKED]):",
        "if magic != MAGIC:",
        kind=4,
        seed=8644,
    ),
)
