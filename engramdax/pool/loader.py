# SPDX-License-Identifier: Apache-2.0
"""Loading: tables from their sources into the pool, published together when every byte is in place.

Several workers each take the next block (1 MiB) of a table and read, pack, checksum and store it while it
is in their core's cache; so reading of one block overlaps storing of another, and memory stays at a
buffer per worker whatever the size of the table.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import numpy as np
from crc32c import crc32c

from engramdax.checksums import block_crc
from engramdax.errors import EngramdaxError, ParameterError, SourceError, TableExistsError, UnreadableError
from engramdax.format.directory import (
    CHECKSUM_BYTES,
    LOADING,
    TableEntry,
    check_table_name,
    publish_state,
)
from engramdax.format.geometry import LINE
from engramdax.pool.space import allocate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engramdax.format.geometry import Extent
    from engramdax.ingest.source import TableSource
    from engramdax.pool.writer import Writer

    Progress = Callable[[str, int], None]

WORKERS_PER_CPU: Final = 2
"""A worker that waits for a cold source leaves its core to another."""

MAX_WORKERS: Final = 32


@dataclass(frozen=True)
class Load:
    """One table to load: where it comes from, what it is to be called, and how it is addressed, if known."""

    source: TableSource
    name: str
    heads: tuple[int, ...] | None = None
    addressing: dict[str, Any] | None = None


@dataclass
class _Work:
    """One table while its blocks are copied; `next` and `error` are guarded by `mutex`."""

    load: Load
    entry: TableEntry
    crcs: np.ndarray[tuple[int], np.dtype[np.uint32]]
    resumed: bool = False
    mutex: threading.Lock = field(default_factory=threading.Lock)
    next: int = 0
    done: int = 0
    error: BaseException | None = None


def load_tables(
    writer: Writer,
    loads: Sequence[Load],
    *,
    resume: bool = False,
    replace_old: bool = False,
    progress: Progress | None = None,
) -> list[TableEntry]:
    """Load all of `loads` and publish them in one step; give their entries.

    With `resume` an unfinished load of the same name goes on, if the writer was told to keep it: a block that is in
    place is not written again, and is in place only if it equals the source. With `replace_old` a published table of
    the same name is retired by the very publication that shows the new one; until then both take space.

    Before a byte is written, names and space are checked for all of them (TableExistsError, SpaceError
    with the bytes needed and free, SourceError for a load to resume that was of another shape). On any error,
    KeyboardInterrupt included, none is published and their space is free again. `progress` is called with a table's
    name and its bytes done, from this thread.
    """
    names = [check_table_name(load.name) for load in loads]
    for name in names:
        # A replacing load that died is resumed as one.
        goes_on = resume and any(t.name == name for t in writer.directory.unfinished())
        if writer.directory.table(name) is not None and not (replace_old or goes_on):
            raise TableExistsError(
                f"{writer.path} holds a table {name} already",
                remedy="say --replace, remove it first (`engramdax rm`), or give another --name",
            )
        if names.count(name) > 1:
            raise ParameterError(f"two of the tables to load are named {name}", remedy="load them one by one")
    works = _plan(writer, loads, resume=resume)
    begun = seen = False
    try:
        for work in works:
            writer.access.reserve(work.entry.extents())
            _clear(writer, work.entry.checksums)
        writer.media.fence()
        extents = {work.entry.extent for work in works}
        others = tuple(t for t in writer.directory.tables if t.extent not in extents)
        begun = True
        writer.publish(tables=(*others, *(w.entry for w in works)))
        for work in works:
            _copy(writer, work, progress)
            work.load.source.check_unchanged()
        for work in works:
            data = work.crcs.tobytes()
            writer.store(work.entry.checksums.offset, data.ljust(-(-len(data) // LINE) * LINE, b"\0"))
        writer.media.fence()
        crcs = {w.entry.load: int(crc32c(w.crcs.tobytes())) for w in works}
        ready = publish_state(writer.directory, set(crcs), crcs)
        seen = True
        writer.replace(ready.tables, names, set(crcs))
    except BaseException:
        if begun:
            _forget(writer, works, seen=seen)
        raise
    writer.reclaim()
    return [entry for entry in writer.directory.tables if entry.load in crcs]


def space_needed(writer: Writer, loads: Sequence[Load]) -> int:
    """Bytes of free space that loading takes, in whole units."""
    unit = writer.superblock.geometry.unit
    return sum(max(1, -(-length // unit)) * unit for length in _lengths(writer, loads))


def _lengths(writer: Writer, loads: Sequence[Load]) -> list[int]:
    """Give the bytes of rows and of checksums of each table in turn."""
    block = writer.superblock.geometry.block
    return [n for load in loads for n in (load.source.nbytes, -(-load.source.nbytes // block) * CHECKSUM_BYTES)]


def _plan(writer: Writer, loads: Sequence[Load], *, resume: bool) -> list[_Work]:
    unfinished = {t.name: t for t in writer.directory.unfinished()} if resume else {}
    fresh = [load for load in loads if load.name not in unfinished]
    extents = iter(allocate(writer.free(), _lengths(writer, fresh), writer.superblock.geometry.unit))
    works = []
    for load in loads:
        old = unfinished.get(load.name)
        if old is not None and (old.rows, old.layout) != (load.source.rows, load.source.layout):
            raise SourceError(
                f"the unfinished load of {load.name} was of {old.rows} rows of {old.layout.row_bytes} bytes, "
                f"the source has {load.source.rows} of {load.source.layout.row_bytes}",
                remedy="give the source that was being loaded, or leave --resume out",
            )
        entry = TableEntry(
            name=load.name,
            load=uuid4(),
            state=LOADING,
            rows=load.source.rows,
            layout=load.source.layout,
            extent=next(extents) if old is None else old.extent,
            checksums=next(extents) if old is None else old.checksums,
            checksums_crc=0,
            heads=load.heads,
            addressing=load.addressing,
            source=load.source.describe(),
        )
        blocks = -(-load.source.nbytes // writer.superblock.geometry.block)
        works.append(_Work(load, entry, np.zeros(blocks, "<u4"), resumed=old is not None))
    return works


def _clear(writer: Writer, extent: Extent) -> None:
    zeros = bytes(min(extent.length, writer.superblock.geometry.block))
    for offset in range(extent.offset, extent.end, len(zeros)):
        writer.store(offset, memoryview(zeros)[: extent.end - offset])


def _copy(writer: Writer, work: _Work, progress: Progress | None) -> None:
    count = min(MAX_WORKERS, WORKERS_PER_CPU * writer.access.workers, len(work.crcs))
    if count <= 1:
        _copy_blocks(writer, work)
        if work.error is not None:
            raise work.error
        if progress:
            progress(work.entry.name, work.done)
        return
    threads = [threading.Thread(target=_copy_blocks, args=(writer, work), name=f"load-{i}") for i in range(count)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.1)
                if progress:
                    progress(work.entry.name, work.done)
    except BaseException as e:
        # A worker that still stored after its space was given up would write into another table.
        with work.mutex:
            work.error = work.error or e
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    if work.error is not None:
        raise work.error


def _copy_blocks(writer: Writer, work: _Work) -> None:
    """Be one worker: take blocks until none is left or somebody failed."""
    block = writer.superblock.geometry.block
    total, extent = work.load.source.nbytes, work.entry.extent
    buffer = np.zeros(-(-min(block, total) // LINE) * LINE, np.uint8)
    try:
        while True:
            with work.mutex:
                index = work.next
                if index == len(work.crcs) or work.error is not None:
                    break
                work.next += 1
            offset = index * block
            length = min(block, total - offset)
            data = buffer[:length]
            work.load.source.read_into(offset, data)
            work.crcs[index] = block_crc(data.data)
            lines = -(-length // LINE) * LINE
            buffer[length:lines] = 0
            if not (work.resumed and _in_place(writer, extent.offset + offset, buffer[:lines].data)):
                writer.access.prefault(extent.offset + offset, lines)
                writer.store(extent.offset + offset, buffer[:lines].data)
            work.load.source.drop_behind(offset, length)
            with work.mutex:
                work.done += length
        # Non-temporal stores are ordered by the fence of the thread that made them.
        writer.media.fence()
    except BaseException as e:  # noqa: BLE001 - it is raised again in the thread that asked
        with work.mutex:
            work.error = work.error or e


def _in_place(writer: Writer, offset: int, data: memoryview) -> bool:
    """Tell whether the media hold these lines; a cache of this host may hold what another host wrote over since."""
    writer.media.invalidate(offset, len(data))
    try:
        return writer.media.load(offset, len(data)) == data
    except UnreadableError:
        return False


def _forget(writer: Writer, works: Sequence[_Work], *, seen: bool) -> None:
    """Give the space of a load that failed back; should that fail too, the next writer does it.

    `seen`: its publication failed half-way, so that a reader may have the tables already.
    """
    loads = {work.entry.load for work in works}
    entries = [t for t in writer.directory.tables if t.load in loads]
    try:
        if seen:
            writer.retire(entries)
        else:
            writer.publish(tables=tuple(t for t in writer.directory.tables if t.load not in loads))
    except (EngramdaxError, OSError):
        return
