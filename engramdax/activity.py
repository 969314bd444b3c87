# SPDX-License-Identifier: Apache-2.0
"""What the processes of this host gather, as their pages of counters say (engramdax/counters.py)."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from engramdax.counters import (
    CALLS_BITS,
    CALLS_SHIFT,
    COUNTS,
    FOLDER,
    HEADER,
    MAGIC,
    PAGE_BYTES,
    SLOT_BYTES,
    SLOTS,
    TABLE,
    TABLE_AT,
    VERSION,
    counters_dir,
    open_page,
    own_page,
)
from engramdax.errors import EngramdaxError
from engramdax.host import SYSTEM_RUN

if TYPE_CHECKING:
    from collections.abc import Iterator

USERS: Final = Path("/run/user")
"""Where users who may not write to the system's run directory have theirs."""

_WRAP: Final = 1 << 64
_MOST_CALLS: Final = 1 << (CALLS_BITS - 1)


@dataclass(frozen=True, slots=True)
class Count:
    """Of one table in one process, since that process has it."""

    pool: UUID
    load: UUID
    name: str
    row_bytes: int
    counted: int
    """Calls and rows, as they stand in the page."""
    unreadable: int


@dataclass(frozen=True, slots=True)
class Activity:
    """One process's page at one moment."""

    page: Path
    pid: int
    """As the process itself knows it: in a container it may have another one on the host."""
    command: str
    counts: dict[int, Count]
    """By slot."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What one process gathers from one table."""

    pid: int
    command: str
    pool: UUID
    load: UUID
    table: str
    row_bytes: int
    rows: float
    """Per second."""
    calls: float
    """Per second."""
    unreadable: int
    """Rows that could not be read, since the process has the table."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All processes at one moment."""

    time: float
    """Of the monotonic clock."""
    activities: tuple[Activity, ...]

    @classmethod
    def take(cls) -> Snapshot:
        """Read all pages but this process's own; those of dead processes are removed, but for other users'."""
        found = []
        for folder in _folders():
            try:
                paths = sorted(folder.iterdir())
            except OSError:
                continue
            found += [
                a
                for path in paths
                if path != own_page() and (a := _read(path, remove=USERS not in path.parents)) is not None
            ]
        return cls(time.monotonic(), tuple(found))

    def rates(self, before: Snapshot) -> list[Rate]:
        """Give what each process gathered from each table since an earlier snapshot."""
        seconds = max(self.time - before.time, 1e-9)
        earlier = {(a.page, slot, c.load): c for a in before.activities for slot, c in a.counts.items()}
        rates = []
        for activity in self.activities:
            for slot, count in activity.counts.items():
                then = earlier.get((activity.page, slot, count.load))
                delta = (count.counted - (then.counted if then else 0)) % _WRAP
                if delta >> CALLS_SHIFT >= _MOST_CALLS:  # the slot was given back and taken again
                    delta = count.counted
                rates.append(
                    Rate(
                        activity.pid,
                        activity.command,
                        count.pool,
                        count.load,
                        count.name,
                        count.row_bytes,
                        (delta & ((1 << CALLS_SHIFT) - 1)) / seconds,
                        (delta >> CALLS_SHIFT) / seconds,
                        count.unreadable,
                    )
                )
        return rates


def _folders() -> Iterator[Path]:
    folders = []
    with suppress(EngramdaxError):  # a user without a home
        folders.append(counters_dir())
    folders.append(SYSTEM_RUN / FOLDER)
    if os.geteuid() == 0:
        with suppress(OSError):
            folders += [user / "engramdax" / FOLDER for user in USERS.iterdir()]
    yield from dict.fromkeys(folders)


def _read(path: Path, *, remove: bool) -> Activity | None:
    """Read a page with suspicion; None for what is none."""
    fd = open_page(path, remove=remove)
    if fd is None:
        return None
    try:
        # Not mapped: whoever owns the file could cut it off under a mapping.
        page = os.pread(fd, PAGE_BYTES, 0)
    except OSError:
        return None
    finally:
        os.close(fd)
    if len(page) != PAGE_BYTES:
        return None
    magic, version, slots, pid, _, command = HEADER.unpack_from(page, 0)
    if (magic, version, slots) != (MAGIC, VERSION, SLOTS):
        return None
    counts = {}
    for slot in range(SLOTS):
        at = SLOT_BYTES * (1 + slot)
        pool, load, row_bytes, name = TABLE.unpack_from(page, at + TABLE_AT)
        if row_bytes:
            counted, unreadable = COUNTS.unpack_from(page, at)
            counts[slot] = Count(UUID(bytes=pool), UUID(bytes=load), _text(name), row_bytes, counted, unreadable)
    return Activity(path, pid, _text(command), counts)


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="backslashreplace")
