# SPDX-License-Identifier: Apache-2.0
"""A crc32c for each block of a table: made while it is loaded, compared by verify."""

from __future__ import annotations

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event, Lock
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from engramdax.errors import DamagedTableError, UnreadableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.format.geometry import Extent
    from engramdax.format.layout import RowLayout
    from engramdax.media import Media


@dataclass(frozen=True, slots=True)
class BadBlock:
    """Bytes [offset, offset + length) of a table that differ from their checksum.

    Rows first_row to last_row, both included, have bytes in it.
    """

    offset: int
    length: int
    first_row: int
    last_row: int


def block_crc(data: memoryview) -> int:
    """Give the crc32c of a block, without the GIL."""
    return int(crc32c(data, gil_release_mode=1))


def workers() -> int:
    """How many threads a pass over a whole table takes: the CPUs that this process may use."""
    return len(os.sched_getaffinity(0))


def verify_blocks(
    media: Media,
    rows: Extent,
    checksums: Extent,
    checksums_crc: int,
    *,
    table: str,
    block: int,
    layout: RowLayout,
    row_count: int,
    sample: float = 1.0,
    rate: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[BadBlock]:
    """Compare each block of `rows` with its entry in `checksums`, on all CPUs. A block that cannot be read is bad.

    Each block is invalidated first, so that the media are compared and not a cache. `sample` is the share of the
    blocks to compare, chosen at random, at least one; `rate` the bytes per second to keep below.
    `rows` holds `row_count` rows of `layout`, which tells what rows have bytes in a bad block; `table` is its name.
    Raises DamagedTableError where the checksums themselves are not those that were published.
    """
    count = -(-rows.length // block)
    media.invalidate(*checksums)
    try:
        stored: bytes | None = media.load(checksums.offset, count * 4)
    except UnreadableError:
        stored = None
    if stored is None or crc32c(stored) != checksums_crc:
        raise DamagedTableError(
            f"the checksums of table {table} are damaged themselves, so nothing can be said of its rows",
            remedy=f"`engramdax repair {table} SOURCE`, with what it was loaded from, or remove it and load it again",
        )
    expected = np.frombuffer(stored, "<u4")
    chosen = range(count) if sample >= 1 else sorted(random.sample(range(count), max(1, round(count * sample))))
    started = time.monotonic()
    done = begun = 0
    mutex, stop = Lock(), Event()

    def bad(index: int) -> BadBlock | None:
        nonlocal done, begun
        offset = index * block
        length = min(block, rows.length - offset)
        if rate is not None:
            with mutex:
                due = started + begun / rate
                begun += length
            stop.wait(max(0.0, due - time.monotonic()))
        if stop.is_set():
            return None
        media.invalidate(rows.offset + offset, length)
        try:
            matches = block_crc(memoryview(media.load(rows.offset + offset, length))) == int(expected[index])
        except UnreadableError:
            matches = False
        with mutex:
            done += length
            if progress:
                progress(done)
        if matches:
            return None
        return BadBlock(offset, length, *layout.rows_within(row_count, offset, length))

    with ThreadPoolExecutor(workers()) as executor:
        try:
            return [found for found in executor.map(bad, chosen) if found]
        except BaseException:
            # Ctrl-C above all: its end waits for the workers, and a low rate may have them wait for hours.
            stop.set()
            executor.shutdown(wait=False, cancel_futures=True)
            raise
