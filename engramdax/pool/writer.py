# SPDX-License-Identifier: Apache-2.0
"""The one process that may change a pool: it holds the lock, knows the directory, and publishes."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from crc32c import crc32c

from engramdax.errors import DeposedError, EngramdaxError, FormatError, ParameterError, RefusedError
from engramdax.format.directory import (
    MAX_GENERATION,
    Header,
    Host,
    HotList,
    Retired,
    TableEntry,
)
from engramdax.format.geometry import LINE, MIB
from engramdax.pool.access import LocalAccess
from engramdax.pool.ownership import become_owner, is_released
from engramdax.pool.proof import Proof, ask_all
from engramdax.pool.reader import check_admitted
from engramdax.pool.space import allocate, free_extents
from engramdax.pool.volume import (
    last_generation,
    may_have_lost,
    newest,
    publish,
    read_directory,
    read_superblock,
    repair_superblocks,
    slots_agree,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    import numpy as np
    import numpy.typing as npt
    from _typeshed import ReadableBuffer

    from engramdax.format.directory import Directory
    from engramdax.format.geometry import Extent
    from engramdax.pool.access import Access, Lock
    from engramdax.pool.volume import Found

MAX_HOST_NAME: Final = 64
"""As long as Linux lets one be (HOST_NAME_MAX)."""

CHECK_BYTES: Final = 64 * MIB
CHECK_SECONDS: Final = 0.1
"""A writer looks whether it still is the owner at least after so many bytes and so much time of row stores."""


def keep_none(entry: TableEntry) -> bool:
    """Say that no unfinished load is to go on."""
    del entry
    return False


class Writer:
    """The right and the means to change the pool at `path`, held as a context manager.

    Entering takes the lock (BusyError if another process has it), checks that this host owns the pool
    (RefusedError), repairs a bad directory slot or superblock copy, forgets loads that died, but for those that
    `keep` chooses, and frees the space of removed tables that no reader can hold any more.

    Once another host has taken the pool over, every method that writes raises DeposedError.
    Not thread-safe but for `store`, `fence` and `media`.
    """

    def __init__(
        self, path: Path, *, keep: Callable[[TableEntry], bool] = keep_none, access: Access | None = None
    ) -> None:
        self.path = path
        self.access: Access = access or LocalAccess(path, writable=True)
        self.media = self.access.media
        self._lock: Lock | None = None
        self._deposed: DeposedError | None = None
        self._checking = threading.Lock()
        self._unchecked_bytes = 0
        self.proof: Proof | None = None
        """What the hosts said when their readers were last asked for."""
        try:
            found = read_superblock(self.media, clock=self.access.clock)
            self.superblock = found.value
            self._lock = self.access.lock(self.superblock.pool)
            self._check_writable()
            # A hole in a file would be a SIGBUS on a full disk, in the middle of a publication.
            self.access.reserve(self.superblock.geometry.metadata())
            directory = self._read_directory()
            self._checked_at = self.access.clock.monotonic()
            if found.problems:
                repair_superblocks(self.media, self.superblock)
            self._recover(directory.value, keep, repair=bool(directory.problems))
        except FormatError as e:
            self.close()
            raise e.at(path) from None
        except BaseException:
            self.close()
            raise

    def _read_directory(self) -> Found[Directory]:
        """Read the directory, and make sure that this host may write: as its owner, or as the heir of one."""
        # On this host nobody publishes while the lock is held, so what is bad now stays bad. Another host may.
        found = read_directory(self.media, self.superblock, patient=self.superblock.shared, clock=self.access.clock)
        self.directory = found.value
        self._generation = found.value.generation
        if not self.superblock.shared:
            return found  # every process that can write it is on this host, and the lock excludes them
        check_admitted(self.access, self.superblock, self.directory)
        if self.directory.heir == self.access.host and is_released(self.media, self.superblock, self.directory):
            become_owner(self.access, self.superblock)
            return self._read_directory()
        self._check_owner()
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the lock back. May be called twice."""
        if self._lock:
            if self.superblock.shared:
                # Whoever hears that nobody writes here takes it that every store has left this host, unfenced ones of
                # an operation that failed, too.
                with suppress(EngramdaxError, OSError):
                    self.media.fence()
            self._lock.release()
            self._lock = None
        self.access.close()

    def check(self) -> None:
        """Raise DeposedError if this host owns the pool no more."""
        if not self.superblock.shared:
            return
        if self._deposed is None:
            found = newest(self.media, self.superblock)
            mine = self.directory.reign
            if found is not None and (
                found.reign > mine
                or (found.reign == mine and isinstance(found, Header) and found.generation > self._generation)
            ):
                self._deposed = DeposedError(
                    f"{self.path}: host {self.directory.host_name(found.owner)} took pool {self.superblock.name} over "
                    f"(epoch {found.epoch})",
                    remedy="nothing that was published is lost; go on there, or take it over again when that host ends",
                )
        if self._deposed is not None:
            raise self._deposed

    def store(self, offset: int, data: ReadableBuffer) -> None:
        """Store whole lines to space of this writer; DeposedError if that was found to be another's meanwhile.

        Ordered by `media.fence` alone. Thread-safe.
        """
        length = len(memoryview(data).cast("B"))
        with self._checking:
            now = self.access.clock.monotonic()
            self._unchecked_bytes += length
            if self._unchecked_bytes > CHECK_BYTES or now - self._checked_at >= CHECK_SECONDS or self._deposed:
                self.check()
                self._unchecked_bytes, self._checked_at = length, now
        self.media.store(offset, data)

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
        publish(self.media, self.superblock, directory, check=self.check)
        self.directory = directory

    def retire(self, entries: Sequence[TableEntry]) -> None:
        """Publish that these tables are gone; their space waits for the readers that may have seen them."""
        loads = {entry.load for entry in entries}
        retired = tuple(entry.retirement(self._generation + 1) for entry in entries)
        self.publish(
            tables=tuple(t for t in self.directory.tables if t.load not in loads),
            retired=(*self.directory.retired, *retired),
        )
        self.reclaim()

    def replace(self, tables: tuple[TableEntry, ...], names: Sequence[str], loads: set[UUID]) -> None:
        """Publish `tables`, without those published under one of `names` before by other loads than `loads`."""
        old = [t for t in self.directory.published() if t.name in names and t.load not in loads]
        if not old:
            self.publish(tables=tables)
            return
        retired = tuple(entry.retirement(self._generation + 1) for entry in old)
        self.publish(tables=tuple(t for t in tables if t not in old), retired=(*self.directory.retired, *retired))

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
        self.access.reserve([extent])
        self.store(extent.offset, data.ljust(-(-len(data) // LINE) * LINE, b"\0"))
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
        name = name or str(host)
        if not name.isprintable() or len(name) > MAX_HOST_NAME:
            raise ParameterError(f"{name!r} is no host name", remedy=f"give 1 to {MAX_HOST_NAME} printable characters")
        if (other := next((h for h in others if h.name == name), None)) is not None:
            # `own --release --to NAME` and messages have to mean one host.
            raise ParameterError(f"host {other.id} is called {name} already", remedy="give another --name")
        self.publish(hosts=(*others, Host(host, name)))
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
        if not self.directory.retired:
            return
        # Asked behind the publication that retired them: a reader that comes now reads a directory without them.
        proof = self._ask()
        kept = tuple(r for r in self.directory.retired if not proof.none_before(r.generation))
        if len(kept) < len(self.directory.retired):
            self.publish(retired=kept)

    def _ask(self) -> Proof:
        self.proof = ask_all(self.access, self.superblock, self.directory)
        return self.proof

    def _check_writable(self) -> None:
        if self.superblock.ro_compat:
            raise FormatError(
                f"the pool has features {self.superblock.ro_compat:#x} that this engramdax can only read",
                remedy="use a newer engramdax",
            )

    def _check_owner(self) -> None:
        directory, name = self.directory, self.superblock.name
        found = newest(self.media, self.superblock)
        if found is not None and found.reign > directory.reign:
            raise RefusedError(
                f"{self.path}: host {directory.host_name(found.owner)} is taking pool {name} over",
                remedy="`engramdax own --take-over` there completes that, here it takes the pool back",
            )
        if directory.owner != self.access.host:
            owner = directory.short_name(directory.owner)
            raise RefusedError(
                f"{self.path}: pool {name} is written by host {directory.host_name(directory.owner)}, not by this one",
                remedy=f"run this on {owner}, or hand the pool over (`engramdax own --release` there)",
            )
        if directory.released:
            heir = f" to host {directory.host_name(directory.heir)}" if directory.heir else ""
            raise RefusedError(
                f"{self.path}: this host released pool {name}{heir}",
                remedy="`engramdax own --take-over` makes a host its owner",
            )

    def _recover(self, directory: Directory, keep: Callable[[TableEntry], bool], *, repair: bool) -> None:
        """Clear up after a writer that died: one directory in both slots, no load that nobody goes on with."""
        kept = [entry for entry in directory.unfinished() if keep(entry)]
        if repair:
            # The bad slot may have held a newer generation that a reader saw: never use its number again.
            self._generation = last_generation(self.media, self.superblock, directory) + 1
        agree = not repair and slots_agree(self.media, self.superblock, directory)
        if agree and len(kept) == len(directory.unfinished()):
            self.reclaim()
            return
        retired = directory.retired
        lost = repair and may_have_lost(self.media, self.superblock, directory)
        if lost and directory.unfinished() and not self._ask().none_after(directory.generation):
            # That generation may have published them, to a reader that holds it still.
            kept = []
            retired += tuple(entry.retirement(self._generation + 1) for entry in directory.unfinished())
        self.publish(tables=(*directory.published(), *kept), retired=retired)
        self.reclaim()
