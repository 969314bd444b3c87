# SPDX-License-Identifier: Apache-2.0
"""The one process that may change a pool: it holds the lock, knows the directory, and publishes."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from crc32c import crc32c

from engramdax.errors import FormatError, ParameterError, RefusedError
from engramdax.format.directory import MAX_GENERATION, PUBLISHED, Host, HotList, Retired, TableEntry
from engramdax.format.geometry import LINE
from engramdax.host import host_id
from engramdax.locks import WriterLock, pinned_before
from engramdax.pool.attachment import check_admitted, open_media
from engramdax.pool.space import allocate, free_extents, reserve
from engramdax.pool.volume import publish, read_directory, read_superblock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    import numpy as np
    import numpy.typing as npt

    from engramdax.format.geometry import Extent


class Writer:
    """The right and the means to change the pool at `path`, held as a context manager.

    Entering takes the lock (BusyError if another process has it), checks that this host owns the pool
    (RefusedError), repairs a bad directory slot, forgets loads that died, and frees the space of removed
    tables that no reader can hold any more. Not thread-safe but for `media`.
    """

    def __init__(self, path: Path) -> None:
        opened = open_media(path, writable=True)
        self.path = path
        self.backing, self.fd, self.mapping, self.media = (
            opened.backing,
            opened.fd,
            opened.mapping,
            opened.media,
        )
        self._lock: WriterLock | None = None
        try:
            self.superblock = read_superblock(self.media).value
            self._lock = WriterLock(self.backing, self.superblock.pool, of=self.fd)
            self._check_writable()
            # A hole in a file would be a SIGBUS on a full disk, in the middle of a publication.
            reserve(self.backing, self.fd, self.superblock.geometry.metadata())
            # Nobody publishes while the lock is held, so what is bad now stays bad.
            found = read_directory(self.media, self.superblock, patient=False)
            self.directory = found.value
            self._generation = found.value.generation
            self._check_owner()
            self._recover(repair=bool(found.problems))
        except FormatError as e:
            self.close()
            raise e.at(path) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        if self._lock:
            self._lock.release()
            self._lock = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def publish(self, **changes: Any) -> None:
        """Make the directory with `changes` to its fields the current one.

        A publication that fails has used its generation up: a reader may have seen it in one of the slots.
        """
        if self._generation + 1 >= MAX_GENERATION:
            raise FormatError(
                f"{self.path}: generation {self._generation} is the last one there is",
                remedy="the directory is damaged: copy the tables out and provision anew",
            )
        self._generation += 1
        directory = replace(self.directory, generation=self._generation, **changes)
        publish(self.media, self.superblock, directory)
        self.directory = directory

    def retire(self, entries: Sequence[TableEntry]) -> None:
        """Publish that these tables are gone; their space waits for the readers that may have seen them."""
        loads = {entry.load for entry in entries}
        retired = tuple(Retired(e.name, e.load, self._generation + 1, tuple(e.extents())) for e in entries)
        self.publish(
            tables=tuple(t for t in self.directory.tables if t.load not in loads),
            retired=(*self.directory.retired, *retired),
        )
        self.reclaim()

    def free(self) -> list[Extent]:
        """Give the free extents."""
        return free_extents(self.superblock.geometry, self.superblock.size, self.directory.taken())

    def published(self, name: str) -> TableEntry:
        """Give the published table `name`, or TableNotFoundError."""
        return self.directory.require(name, self.path)

    def remove(self, name: str) -> bool:
        """Unpublish a table; tell whether its space is free already or waits for its readers."""
        entry = self.published(name)
        self.retire([entry])
        return all(r.load != entry.load for r in self.directory.retired)

    def set_hot(self, name: str, ids: npt.NDArray[np.int64], served: Sequence[tuple[int, float]]) -> None:
        """Publish a hot list with a table; the space of an earlier one is free once no reader holds it.

        ids: int64 [n], rows of the table by falling frequency, at least one. SpaceError where they do not fit.
        """
        entry = self.published(name)
        data = ids.astype("<u4" if entry.rows <= 1 << 32 else "<u8").tobytes()
        (extent,) = allocate(self.free(), [len(data)], self.superblock.geometry.unit)
        reserve(self.backing, self.fd, [extent])
        self.media.store(extent.offset, data.ljust(-(-len(data) // LINE) * LINE, b"\0"))
        self.media.fence()
        hot = HotList(extent, ids.size, len(data) // ids.size, crc32c(data), tuple(served))
        retired = self.directory.retired
        if entry.hot:
            retired += (Retired(name, entry.load, self._generation + 1, (entry.hot.extent,)),)
        tables = tuple(replace(t, hot=hot) if t is entry else t for t in self.directory.tables)
        self.publish(tables=tables, retired=retired)
        self.reclaim()

    def admit(self, host: UUID, name: str) -> bool:
        """Publish that a further host may read; tell whether it might not before, or was called otherwise."""
        if not self.superblock.shared:
            raise RefusedError(
                f"{self.path}: pool {self.superblock.name} is not shared, but this host's alone",
                remedy="provision it without --single-host",
            )
        if (known := next((h for h in self.directory.hosts if h.id == host), None)) and name in ("", known.name):
            return False
        others = tuple(h for h in self.directory.hosts if h.id != host)
        self.publish(hosts=(*others, Host(host, name or str(host))))
        return True

    def forget(self, host: UUID) -> str:
        """Publish that a host may read no more, and give its name. It must have left: nobody asks its readers again."""
        names = {h.id: h.name for h in self.directory.hosts}
        if host == self.directory.owner:
            raise RefusedError(
                f"{self.path}: {names.get(host, 'this host')} ({host}) owns pool {self.superblock.name}",
                remedy="an owner cannot be forgotten; `engramdax deprovision` ends the pool",
            )
        if host not in names:
            raise ParameterError(
                f"{self.path}: no host {host} is admitted to pool {self.superblock.name}",
                remedy="`engramdax hosts` lists those that are",
            )
        self.publish(hosts=tuple(h for h in self.directory.hosts if h.id != host))
        self.reclaim()
        return names[host]

    def reclaim(self) -> None:
        """Free the space of removed tables that no reader can hold any more."""
        kept = tuple(r for r in self.directory.retired if not self._provably_unused(r))
        if len(kept) < len(self.directory.retired):
            self.publish(retired=kept)

    def _provably_unused(self, retired: Retired) -> bool:
        others = {host.id for host in self.directory.hosts} - {host_id()}
        # Asking other hosts takes a channel to them; without one the answer is no.
        if self.superblock.shared and others:
            return False
        return not pinned_before(self.backing, self.superblock.pool, retired.generation)

    def _check_writable(self) -> None:
        if self.superblock.ro_compat:
            raise FormatError(
                f"the pool has features {self.superblock.ro_compat:#x} that this engramdax can only read",
                remedy="use a newer engramdax",
            )

    def _check_owner(self) -> None:
        if not self.superblock.shared:
            return  # every process that can write it is on this host, and the lock excludes them
        check_admitted(self.superblock, self.directory, self.path)
        if self.directory.owner != host_id():
            owner = next((h.name for h in self.directory.hosts if h.id == self.directory.owner), "unknown")
            raise RefusedError(
                f"{self.path}: pool {self.superblock.name} is written by host {owner} "
                f"({self.directory.owner}), not by this one",
                remedy=f"run this on {owner}",
            )

    def _recover(self, *, repair: bool) -> None:
        loading = [t for t in self.directory.tables if t.state != PUBLISHED]
        if repair:
            # The bad slot may have held a newer generation that a reader saw: never use its number again.
            self._generation += 1
        if repair or loading or self._slots_differ():
            self.publish(tables=tuple(self.directory.published()))
        self.reclaim()

    def _slots_differ(self) -> bool:
        """Tell whether a writer died between the two slots, so that one still names other space."""
        g = self.superblock.geometry
        header, payload = self.directory.to_slot(g.slot_bytes)
        length = len(header) + len(payload)
        return any(self.media.load(place, length) != header + payload for place in g.slots)
