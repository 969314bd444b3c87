# SPDX-License-Identifier: Apache-2.0
"""The rules of a reader: what is invalidated and pinned before what is read, whatever the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.errors import FormatError, RefusedError
from engramdax.host import host_name
from engramdax.pool.coherence import invalidate_once
from engramdax.pool.volume import Found, read_directory, read_header, read_superblock

if TYPE_CHECKING:
    from uuid import UUID

    from engramdax.format.directory import Directory, Header, TableEntry
    from engramdax.format.superblock import Superblock
    from engramdax.pool.access import Access


class Reader:
    """A pool that this process reads: its superblock, and pins. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self.access = access
        found = self._read_superblock()
        self.superblock: Superblock = found.value
        self.superblock_problems = found.problems
        self.pins = access.pins(self.superblock.pool)

    def _read_superblock(self) -> Found[Superblock]:
        try:
            return read_superblock(self.access.media, patient=True, clock=self.access.clock)
        except FormatError as e:
            raise e.at(self.access.path) from None

    def read_directory(self) -> Found[Directory]:
        """Read superblock and current directory, and pin its generation; the caller unpins it.

        All generations are pinned while it is read: what it names must not be freed before it is pinned.
        """
        self.pins.pin(0)
        try:
            again = self._read_superblock()
            if again.value.pool != self.superblock.pool:
                raise FormatError(
                    f"{self.access.path}: pool {self.superblock.name} is gone, {again.value.name} "
                    f"({again.value.pool}) is there now",
                    remedy="open it again",
                )
            self.superblock_problems = again.problems
            try:
                found = read_directory(self.access.media, self.superblock, clock=self.access.clock)
            except FormatError as e:
                raise e.at(self.access.path) from None
            check_admitted(self.access, self.superblock, found.value)
            self.pins.pin(found.value.generation)
        finally:
            self.pins.unpin(0)
        return found

    def header(self, index: int) -> Header | None:
        """Read one header line; None where it is damaged or of no such pool."""
        return read_header(self.access.media, self.superblock, index)

    def prepare(self, entry: TableEntry) -> bool:
        """Make sure that no cache of this host holds what was in a table's space before; tell whether it was done now.

        Of a pool that is not shared no other host ever wrote, and the caches of one host are coherent. A hot list may
        be newer than the load, so it is invalidated whenever it is read.
        """
        if not self.superblock.shared:
            return False
        with self.access.marks(self.superblock.pool) as marks:
            return invalidate_once(
                self.access.media,
                marks,
                entry.load,
                (entry.extent, entry.checksums),
                workers=self.access.workers,
            )


def check_admitted(access: Access, superblock: Superblock, directory: Directory) -> None:
    """Refuse a shared pool whose owner has not admitted this host: nobody asks for its pins."""
    if superblock.shared and access.host not in {one.id for one in directory.hosts}:
        raise RefusedError(
            f"{access.path}: this host ({access.host}) is not admitted to the shared pool {superblock.name}",
            remedy=f"on {directory.host_name(directory.owner)}, its owner, run `{admission(superblock, access.host)}`",
        )


def admission(superblock: Superblock, host: UUID) -> str:
    """Give the command by which the owner of a pool admits this host."""
    return f"engramdax hosts admit {host} --name {host_name()} --pool {superblock.name}"
