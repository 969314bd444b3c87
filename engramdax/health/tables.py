# SPDX-License-Identifier: Apache-2.0
"""Tables: whether their bytes are those that were published, as this host sees them.

Each look compares a few blocks of each table, the same ones on every host, so that also hosts can be compared which
see different bytes of one memory. All of them, or a random share, are compared on request.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from crc32c import crc32c

from engramdax.checksums import block_crc
from engramdax.errors import DamagedTableError, EngramdaxError, UnreadableError
from engramdax.format.directory import CHECKSUM_BYTES
from engramdax.health.finding import Finding, critical, ok, unknown
from engramdax.health.history import Verified

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.format.directory import TableEntry
    from engramdax.health.subject import Subject
    from engramdax.media import Media
    from engramdax.table import Table

LOOKED_AT: Final = 4
"""Blocks of each table that every look compares: 4 MiB, so that a hundred tables take less than a second."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What this host sees of a table's bytes."""

    digest: str
    """crc32c, in hexadecimal, of the checksums of the blocks looked at: the same on every host that sees the same."""
    blocks: int
    bad: tuple[int, ...]
    """Numbers of those of them that differ from what was published."""


def probe(subject: Subject, seen: dict[str, Seen], *, share: float | None = None) -> Iterator[Finding]:
    """Compare the bytes of all tables; `share` of all their blocks are compared, too, and remembered.

    What was seen is left in `seen`, by load id.
    """
    if subject.opened is None or subject.superblock is None:
        return
    if subject.directory is None:
        yield unknown("table.bytes", "no directory tells of tables")
        return
    if subject.pool is None:
        # Its space could be given to another table meanwhile: nobody would ask this host.
        yield unknown("table.bytes", "this host may not read the pool", remedy=_remedy(subject.problem))
        return
    block, media = subject.superblock.value.geometry.block, subject.opened.media
    for name in subject.pool.tables:
        # Of the pool and not of the slot read before: what it names is pinned.
        entry = subject.pool.directory.require(name, subject.pool.backing.path)
        load = str(entry.load)
        if share is not None:
            subject.history.verified[load] = _verify(subject.pool[name], share)
        try:
            seen[load] = look(media, entry, block)
        except EngramdaxError as e:
            remedy = f"`engramdax repair {name} SOURCE`, with what it was loaded from"
            yield critical("table.bytes", f"its checksums are damaged: {e.problem}", object=name, remedy=remedy)
            continue
        yield _finding(entry, seen[load], block, subject.history.verified.get(load))


def _remedy(problem: EngramdaxError | None) -> str:
    return problem.remedy if problem is not None else ""


def _verify(table: Table, share: float) -> Verified:
    try:
        bad = table.verify(sample=share)
    except DamagedTableError as e:
        return Verified(time.time(), share, 0, e.problem)
    return Verified(time.time(), share, len(bad))


def look(media: Media, entry: TableEntry, block: int) -> Seen:
    """Compare the first, the last and some blocks between with their checksums, past all caches.

    DamagedTableError or UnreadableError where the checksums are none.
    """
    count = -(-entry.bytes // block)
    chosen = sorted({i * (count - 1) // (LOOKED_AT - 1) for i in range(LOOKED_AT)}) if count else []
    media.invalidate(*entry.checksums)
    stored = media.load(entry.checksums.offset, count * CHECKSUM_BYTES)
    if crc32c(stored) != entry.checksums_crc:
        raise DamagedTableError("they are not those that were published")
    expected = np.frombuffer(stored, "<u4")
    found: list[int] = []
    bad: list[int] = []
    for index in chosen:
        offset, length = index * block, min(block, entry.bytes - index * block)
        media.invalidate(entry.extent.offset + offset, length)
        try:
            crc = block_crc(memoryview(media.load(entry.extent.offset + offset, length)))
        except UnreadableError:
            crc = -1
        found.append(crc)
        if crc != int(expected[index]):
            bad.append(index)
    digest = crc32c(np.array(found, "<i8").tobytes())
    return Seen(f"{digest:08x}", len(chosen), tuple(bad))


def _finding(entry: TableEntry, seen: Seen, block: int, verified: Verified | None) -> Finding:
    remedy = f"`engramdax verify {entry.name}` names them all; `engramdax repair {entry.name} SOURCE` restores them"
    if seen.bad:
        extents = [(i * block, min(block, entry.bytes - i * block)) for i in seen.bad]
        places = [entry.layout.rows_within(entry.rows, *extent) for extent in extents]
        rows = ", ".join(f"rows {first} to {last}" for first, last in places)
        text = f"{len(seen.bad)} of {seen.blocks} blocks looked at are not what was published: {rows}"
        return critical("table.bytes", text, object=entry.name, figure=len(seen.bad), unit="blocks", remedy=remedy)
    if verified is not None and (verified.bad_blocks or verified.problem):
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(verified.time))
        text = f"verify at {when} found {verified.problem or f'{verified.bad_blocks} blocks damaged'}"
        figure = verified.bad_blocks
        return critical("table.bytes", text, object=entry.name, figure=figure, unit="blocks", remedy=remedy)
    text = f"{seen.blocks} blocks looked at are as published; {_last(verified)}"
    return ok("table.bytes", text, object=entry.name, figure=0, unit="blocks")


def _last(verified: Verified | None) -> str:
    if verified is None:
        return "never verified as a whole on this host"
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(verified.time))
    share = "" if verified.share == 1 else f"{100 * verified.share:.3g}% of it "
    return f"{share}verified at {when}"
