# SPDX-License-Identifier: Apache-2.0
"""Repair: the blocks of a table that rotted are written again from the source that it was loaded from."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Lock, local
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
from crc32c import crc32c

from engramdax.checksums import BadBlock, block_crc
from engramdax.errors import BackingError, SourceError, UnreadableError
from engramdax.format.geometry import LINE

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from engramdax.format.directory import TableEntry
    from engramdax.ingest.source import TableSource
    from engramdax.pool.writer import Writer


def repair_table(
    writer: Writer, name: str, source: TableSource, *, progress: Callable[[int], None] | None = None
) -> list[BadBlock]:
    """Write the blocks of a published table that are not what was loaded again; give them.

    The source must be what was loaded: the checksum of all its checksums is compared with the one in the directory,
    which also covers the bad blocks and a bad checksum extent. Nothing is written before that. The table gets a new
    load id, so that every host forgets what its caches hold of it; tables that readers hold stay what they are.

    Raises SourceError where the source is another, BackingError where a block cannot be written. `progress` is called
    with the bytes compared, from several threads.
    """
    entry = writer.published(name)
    if source.nbytes != entry.bytes:
        raise SourceError(
            f"{source.name} has {source.nbytes} bytes, table {name} has {entry.bytes}",
            remedy="give the source that the table was loaded from",
        )
    block = writer.superblock.geometry.block
    crcs, bad = _compare(writer, entry, source, block, progress)
    stored = _stored_checksums(writer, entry, len(crcs))
    if crc32c(crcs.tobytes()) != entry.checksums_crc:
        raise _another(entry, crcs, stored, block)
    source.check_unchanged()
    damaged_checksums = stored is None or stored.tobytes() != crcs.tobytes()
    if not bad and not damaged_checksums:
        return []
    for index in bad:
        _rewrite(writer, source, entry.extent.offset, _bad_block(entry, index, block), int(crcs[index]))
    if damaged_checksums:
        data = crcs.tobytes()
        writer.store(entry.checksums.offset, data.ljust(-(-len(data) // LINE) * LINE, b"\0"))
    writer.media.fence()
    fresh = replace(entry, load=uuid4())
    writer.publish(tables=tuple(fresh if t.load == entry.load else t for t in writer.directory.tables))
    return [_bad_block(entry, index, block) for index in bad]


def _compare(
    writer: Writer,
    entry: TableEntry,
    source: TableSource,
    block: int,
    progress: Callable[[int], None] | None,
) -> tuple[npt.NDArray[np.uint32], list[int]]:
    """Give the checksums of the source's blocks, and which blocks of the table differ from it or cannot be read."""
    count = -(-entry.bytes // block)
    crcs: npt.NDArray[np.uint32] = np.zeros(count, "<u4")
    buffers = local()
    mutex = Lock()
    done = 0

    def differs(index: int) -> bool:
        nonlocal done
        offset, length = index * block, min(block, entry.bytes - index * block)
        if not hasattr(buffers, "block"):
            buffers.block = np.zeros(block, np.uint8)
        data = buffers.block[:length].data
        source.read_into(offset, data)
        source.drop_behind(offset, length)
        crcs[index] = block_crc(data)
        result = not _holds(writer, entry.extent.offset + offset, length, int(crcs[index]))
        with mutex:
            done += length
            if progress:
                progress(done)
        return result

    if writer.access.workers == 1:
        return crcs, [index for index in range(count) if differs(index)]
    with ThreadPoolExecutor(writer.access.workers) as executor:
        found = list(executor.map(differs, range(count)))
    return crcs, [index for index, is_bad in enumerate(found) if is_bad]


def _holds(writer: Writer, offset: int, length: int, crc: int) -> bool:
    """Tell whether the media, not a cache, hold bytes of this checksum. Memory that cannot be read holds nothing."""
    writer.media.invalidate(offset, length)
    try:
        return block_crc(memoryview(writer.media.load(offset, length))) == crc
    except UnreadableError:
        return False


def _stored_checksums(writer: Writer, entry: TableEntry, count: int) -> npt.NDArray[np.uint32] | None:
    writer.media.invalidate(entry.checksums.offset, count * 4)
    try:
        return np.frombuffer(writer.media.load(entry.checksums.offset, count * 4), "<u4")
    except UnreadableError:
        return None


def _another(
    entry: TableEntry,
    crcs: npt.NDArray[np.uint32],
    stored: npt.NDArray[np.uint32] | None,
    block: int,
) -> SourceError:
    where = ""
    if stored is not None and crc32c(stored.tobytes()) == entry.checksums_crc:
        other = np.flatnonzero(crcs != stored)
        first = _bad_block(entry, int(other[0]), block)
        where = f": {len(other)} of its {len(crcs)} blocks are not what was loaded, the first at byte {first.offset}"
    return SourceError(
        f"the source is not the one that table {entry.name} was loaded from{where}",
        remedy="give that one, or remove the table and load it again",
    )


def _rewrite(writer: Writer, source: TableSource, start: int, bad: BadBlock, crc: int) -> None:
    """Write one block in whole lines, whatever can be read there now, and look whether it took."""
    length = bad.length
    lines = np.zeros(-(-length // LINE) * LINE, np.uint8)
    source.read_into(bad.offset, lines[:length].data)
    if block_crc(lines[:length].data) != crc:
        raise SourceError(f"{source.name} changed while it was read", remedy="repair again when nobody writes it")
    place = start + bad.offset
    writer.store(place, lines.data)
    writer.media.fence()
    if not _holds(writer, place, length, crc):
        raise BackingError(
            f"bytes {place} to {place + length} of {writer.path} do not keep what is written",
            remedy="clear the device's poison (`ndctl clear-errors`), or retire the memory",
        )


def _bad_block(entry: TableEntry, index: int, block: int) -> BadBlock:
    offset, length = index * block, min(block, entry.bytes - index * block)
    return BadBlock(offset, length, *entry.layout.rows_within(entry.rows, offset, length))
