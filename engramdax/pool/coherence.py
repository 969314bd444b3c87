# SPDX-License-Identifier: Apache-2.0
"""What a host's caches may still hold of memory that another host wrote, and forgetting it once.

CXL 2.0 memory shared by hosts has no back-invalidation: a line that some process of this host read (or the CPU
fetched ahead) before a table was there may be served stale ever after. So every extent of a table is invalidated
once on a host after the directory that publishes it was read. A marker says that it was done; it counts for one
boot of the kernel, one pool and one load.
"""

from __future__ import annotations

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from engramdax.errors import BackingError
from engramdax.format.geometry import MIB
from engramdax.host import make_dir, run_dir

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from engramdax.format.geometry import Extent
    from engramdax.media import Media

PIECE_BYTES: Final = 64 * MIB
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Marks(Protocol):
    """The loads of a pool that this host has invalidated since it booted."""

    def __contains__(self, load: UUID) -> bool:
        """Tell whether this one is marked."""

    def add(self, load: UUID) -> None:
        """Mark it, for all processes of the host."""


class FileMarks:
    """Marks in a file: the boot's id, then a load's id per line. Used under its exclusive lock alone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._boot = BOOT_ID.read_text().strip()
        # What a process that died wrote of a line has no end, and no load's name.
        lines = os.pread(fd, os.fstat(fd).st_size, 0).decode("ascii", "replace").split("\n")[:-1]
        self._loads = set(lines[1:]) if lines[:1] == [self._boot] else set()

    def __contains__(self, load: UUID) -> bool:
        """Tell whether a process marked it in this boot."""
        return load.hex in self._loads

    def add(self, load: UUID) -> None:
        """Write all marks anew, so that a torn line of before stays no mark."""
        self._loads.add(load.hex)
        text = "".join(f"{line}\n" for line in (self._boot, *sorted(self._loads)))
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, text.encode(), 0)


class NoMarks:
    """No place to keep marks: nothing is marked."""

    def __contains__(self, load: UUID) -> bool:
        """Tell that it is not."""
        return False

    def add(self, load: UUID) -> None:
        """Forget it."""


@contextmanager
def marks_of(pool: UUID) -> Iterator[Marks]:
    """Hold this host's marks of a pool alone. Where it has no place for them, there are none."""
    try:
        path = make_dir(run_dir()) / f"{pool}.invalidated"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o660)
    except (OSError, BackingError):
        yield NoMarks()
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield FileMarks(fd)
    finally:
        os.close(fd)


def invalidate_once(media: Media, marks: Marks, load: UUID, extents: Iterable[Extent], *, workers: int) -> bool:
    """Invalidate the extents unless that was done for this load; tell whether it was done now.

    The caller holds the marks alone: a process that finds the mark relies on the lines of every thread here being
    gone, each behind its own mfence.
    """
    if load in marks:
        return False
    pieces = [
        (offset, min(PIECE_BYTES, extent.end - offset))
        for extent in extents
        for offset in range(extent.offset, extent.end, PIECE_BYTES)
    ]
    if workers == 1 or len(pieces) == 1:
        for offset, length in pieces:
            media.invalidate(offset, length)
    else:
        with ThreadPoolExecutor(workers) as executor:
            # A list, so that an error of a thread is raised here.
            list(executor.map(lambda piece: media.invalidate(*piece), pieces))
    marks.add(load)
    return True
