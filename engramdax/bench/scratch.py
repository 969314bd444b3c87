# SPDX-License-Identifier: Apache-2.0
"""Pools for a measurement: provisioned and loaded as any pool is, and gone when it ends, however it ends."""

from __future__ import annotations

import math
import os
import re
import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from engramdax.bench.pattern import PatternSource
from engramdax.errors import BackingError, ParameterError
from engramdax.host import SHARED_MEMORY
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.pool import Pool
from engramdax.pool.provision import Consent, Plan, plan_file, plan_hugepages, plan_removal
from engramdax.pool.steps import carry_out
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.format.layout import RowLayout

TABLE: Final = "bench"
PAGE_BYTES: Final = {"4k": 4 << 10, "2m": 2 << 20}
MOST_BYTES: Final = 8 << 30
SPARE: Final = 32 << 20
"""Metadata, checksums, and rounding to whole units."""

LARGEST_FILLER: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Scratch:
    """A pool at `path` whose one table, TABLE, begins at byte `offset` of the file."""

    path: Path
    offset: int
    rows: int


def available_bytes() -> int:
    """Memory that the kernel says can be had without swapping."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    if found is None:
        raise BackingError("/proc/meminfo does not tell MemAvailable", remedy="give --size")
    return int(found[1]) << 10


def default_bytes() -> int:
    """Give the size of table that is measured unless told otherwise.

    A third of the memory leaves as much for a peer's own copy of the table and for everybody else.
    """
    return min(MOST_BYTES, available_bytes() // 3)


@contextmanager
def scratch_pool(
    pages: str, table_bytes: int, row_bytes: int, *, layout: RowLayout | None = None, spare: int = SPARE
) -> Iterator[Scratch]:
    """Have a pool on `pages` ("4k" or "2m") with a table of at most `table_bytes`; removed at the end.

    `layout` says what the rows are, by default bytes; `spare` is room beside the table. Raises BackingError or
    RefusedError where such memory is not to be had.
    """
    rows = table_bytes // row_bytes
    if rows < 1:
        raise ParameterError(f"a table of {table_bytes} bytes has no row of {row_bytes}", remedy="give a larger --size")
    size = table_bytes + spare + _filler_limit(row_bytes)
    name = f"bench-{os.getpid()}"
    plan = (
        plan_hugepages("2M", size, name=name)
        if pages == "2m"
        else plan_file(SHARED_MEMORY / f"engramdax-{name}", size, name=name, consent=Consent())
    )
    with _terminable():
        carry_out(plan.steps)
        try:
            offset = _load(plan, rows, row_bytes, layout)
            with Pool(plan.path) as pool:
                found = pool.page_bytes()
            if found != PAGE_BYTES[pages]:
                raise BackingError(
                    f"{plan.path.parent} gives pages of {found} bytes", remedy="see shmem_enabled of the kernel"
                )
            yield Scratch(plan.path, offset, rows)
        finally:
            with _undisturbed():
                carry_out(plan_removal(plan.path, force=True).steps)


def _filler_limit(row_bytes: int) -> int:
    """Bytes that the filler may take, 0 where rows never line up with the file within reason."""
    together = math.lcm(2 << 20, row_bytes)
    return together + (4 << 20) if together <= LARGEST_FILLER else 0


def _load(plan: Plan, rows: int, row_bytes: int, layout: RowLayout | None) -> int:
    """Load the table where its offset in the file is a whole number of rows, if that can be; give the offset.

    EngramDB counts rows from the start of a file. A filler in front lets it read the very memory that
    everybody else does.
    """
    with Writer(plan.path) as writer:
        unit = writer.superblock.geometry.unit
        first = writer.free()[0].offset
        together = math.lcm(unit, row_bytes)
        if first % together and _filler_limit(row_bytes):
            # One unit more goes to the filler's checksums.
            filler = unit + -(first + 2 * unit) % together
            load_tables(writer, [Load(PatternSource(filler, 1), "filler")])
        (entry,) = load_tables(writer, [Load(PatternSource(rows, row_bytes, layout=layout), TABLE)])
    return entry.extent.offset


@contextmanager
def _terminable() -> Iterator[None]:
    """Make a polite SIGTERM unwind like Ctrl-C does, so that the memory is given back."""

    def stop(*_: Any) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep a second Ctrl-C from leaving gigabytes behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [(s, signal.signal(s, signal.SIG_IGN)) for s in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)
