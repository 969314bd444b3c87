# SPDX-License-Identifier: Apache-2.0
"""A pool as one process of this host reaches it: its memory, and what this host knows and locks.

The rules of the protocol run over this interface alone; the tests put a simulated rack under it, in which hosts
share no caches and die at any step.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, Protocol

from engramdax.backing import Kind, inspect_fd, open_fd
from engramdax.checksums import workers
from engramdax.errors import FormatError
from engramdax.host import host_id
from engramdax.locks import Pins, WriterLock, is_written, pinned_generations, unknown_mappers
from engramdax.media import MappedMedia
from engramdax.pool.coherence import marks_of
from engramdax.pool.peers import Answer, configured_peers
from engramdax.pool.space import reserve

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path
    from uuid import UUID

    from engramdax.backing import Backing
    from engramdax.format.geometry import Extent
    from engramdax.media import Media
    from engramdax.pool.coherence import Marks
    from engramdax.pool.peers import Peers
    from engramdax.pool.volume import Clock


ATTACH_SECONDS: Final = 0.5
"""How long an answer waits for somebody who reads a directory, and holds all generations until it is read."""


class Lock(Protocol):
    """The right to write, until it is given back or the process ends."""

    def release(self) -> None:
        """Let others write. May be called twice."""


class Pinning(Protocol):
    """The generations that this process may touch; see `engramdax.locks.Pins`."""

    def pin(self, generation: int) -> None:
        """Hold a generation; counted."""

    def unpin(self, generation: int) -> None:
        """Give one hold of it back."""

    def close(self) -> None:
        """Give everything back."""


class Access(Protocol):
    """The memory of a pool, and its host."""

    path: Path
    clock: Clock
    workers: int
    """How many threads a pass over a whole table takes."""

    @property
    def media(self) -> Media:
        """The memory."""

    @property
    def peers(self) -> Peers:
        """The channel to other hosts."""

    @property
    def host(self) -> UUID:
        """The id of this host."""

    def lock(self, pool: UUID) -> Lock:
        """Take the right to write on this host; BusyError if another process has it."""

    def pins(self, pool: UUID) -> Pinning:
        """Give an object that pins for this process."""

    def here(self, pool: UUID) -> Answer | None:
        """Give what this host would answer; None where it cannot prove anything."""

    def marks(self, pool: UUID) -> AbstractContextManager[Marks]:
        """Hold this host's marks of invalidated loads alone."""

    def reserve(self, extents: Sequence[Extent]) -> None:
        """Have the file system really hold this space."""

    def prefault(self, offset: int, length: int) -> None:
        """Have the pages there, which saves a fault for each."""

    def close(self) -> None:
        """Close what was opened; a mapping outlives that."""


class LocalAccess:
    """A pool at a path of this host, opened and mapped, before anything of it is believed."""

    def __init__(self, path: Path, *, writable: bool, peers: Peers | None = None) -> None:
        self.path = path
        self.clock: Clock = time
        self.workers = workers()
        self._peers = peers
        self.fd = open_fd(path, writable=writable)
        try:
            self.backing: Backing = inspect_fd(self.fd, path)
            if self.backing.size == 0:
                raise FormatError(f"{path} is empty", remedy="`engramdax provision` makes a pool")
            self.mapping = self.backing.map(self.fd, writable=writable)
            self.media = MappedMedia(self.mapping, sync_fd=self.backing.sync_fd(self.fd))
        except BaseException:
            self.close()
            raise

    @property
    def peers(self) -> Peers:
        """The channel that was given, or the configured one."""
        if self._peers is None:
            self._peers = configured_peers()
        return self._peers

    @property
    def host(self) -> UUID:
        """The id of this host."""
        return host_id()

    def lock(self, pool: UUID) -> WriterLock:
        """Take the right to write on this host."""
        return WriterLock(self.backing, pool, of=self.fd)

    def pins(self, pool: UUID) -> Pins:
        """Give an object that pins for this process."""
        return Pins(self.backing, pool, of=self.fd)

    def here(self, pool: UUID) -> Answer | None:
        """Say what this host's processes do with the pool."""
        return local_answer(self.backing, pool)

    def marks(self, pool: UUID) -> AbstractContextManager[Marks]:
        """Hold this host's marks of invalidated loads alone."""
        return marks_of(pool)

    def reserve(self, extents: Sequence[Extent]) -> None:
        """Have the file system really hold this space."""
        reserve(self.backing, self.fd, extents)

    def prefault(self, offset: int, length: int) -> None:
        """Fault the pages in at once."""
        self.mapping.populate(offset, length)

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def local_answer(backing: Backing, pool: UUID) -> Answer | None:
    """Say what this host's processes do with a pool; None where some could not be looked at.

    On a device that takes root: a container has a /run of its own, so the processes that map the device are looked
    at, too, and one whose pins are not here may hold any generation.
    """
    pinned = pinned_generations(backing, pool)
    end = time.monotonic() + ATTACH_SECONDS
    while pinned[:1] == (0,) and time.monotonic() < end:
        # `info` for another who asked, say; a later look proves as much.
        time.sleep(0.01)
        pinned = pinned_generations(backing, pool)
    if backing.kind is Kind.DEVDAX:
        mappers = unknown_mappers(backing, pool)
        if mappers is None:
            return None
        if mappers:
            pinned = (0, *pinned)
    return Answer(pinned, is_written(backing, pool))
