# SPDX-License-Identifier: Apache-2.0
"""A pool as its readers see it: tables by name, one generation at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal, Self

from engramdax.errors import ClosedError
from engramdax.pool.attachment import Attachment
from engramdax.pool.space import free_extents
from engramdax.table import Table
from engramdax.warning import warn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType
    from uuid import UUID

    from engramdax.backing import Backing
    from engramdax.format.directory import Directory, Header
    from engramdax.format.geometry import Extent
    from engramdax.format.superblock import Superblock


class DegradedPoolWarning(UserWarning):
    """The metadata are not as they should be, and serve all the same.

    A copy is bad (any write to the pool repairs a directory slot), or the directory is older than before.
    """


class Pool:
    """A pool opened for reading: `pool["name"]` is a Table, `pool.tables` all their names.

    Sees the generation that was current when it was opened, until `refresh`. Closing it ends it alone:
    Tables taken from it stay right, and nothing is unpublished for anybody else. Thread-safe.
    """

    def __init__(self, path: Path, *, tune: int | Literal["auto"] | None = None) -> None:
        self._attachment: Attachment | None = Attachment(path, tune=tune)
        self._mutex = threading.Lock()
        self._watched = self._watch(self._attachment)
        found = self._attachment.read_directory()
        self._directory = found.value
        self._problems = (*self._attachment.superblock_problems, *found.problems)
        for problem in self._problems:
            warn(f"{path}: {problem}", DegradedPoolWarning)

    @property
    def _open(self) -> Attachment:
        if self._attachment is None:
            raise ClosedError("the pool was closed", remedy="open it again")
        return self._attachment

    @property
    def superblock(self) -> Superblock:
        """What the superblock says."""
        return self._open.superblock

    @property
    def backing(self) -> Backing:
        """The memory it lives in."""
        return self._open.backing

    @property
    def directory(self) -> Directory:
        """The directory of the generation that this object sees."""
        return self._directory

    @property
    def problems(self) -> tuple[str, ...]:
        """What was wrong with copies of the metadata at the last open or refresh."""
        return self._problems

    @property
    def name(self) -> str:
        """The pool's name."""
        return self.superblock.name

    @property
    def uuid(self) -> UUID:
        """The pool's uuid."""
        return self.superblock.pool

    @property
    def generation(self) -> int:
        """The generation that this object sees; it grows with each publication."""
        return self._directory.generation

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the published tables, sorted."""
        return tuple(sorted(t.name for t in self._directory.published()))

    def free(self) -> list[Extent]:
        """Give the free extents, in bytes, in the order of their offsets."""
        s = self.superblock
        return free_extents(s.geometry, s.size, self._directory.taken())

    def page_bytes(self) -> int:
        """Bytes of the pages that map the pool, the huge ones that the kernel really gave included."""
        return self.backing.page_bytes(self._open.mapping)

    def __getitem__(self, name: str) -> Table:
        with self._mutex:
            return Table(self._directory.require(name, self.backing.path), self.generation, self._open)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._directory.table(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self._directory.published())

    @staticmethod
    def _watch(attachment: Attachment) -> tuple[int, Header | None]:
        """Choose the header line that `changed` reads, in front of the directory: what comes later differs from it."""
        header = attachment.header(0)
        return (0, header) if header is not None else (1, attachment.header(1))

    def changed(self) -> bool:
        """Tell whether anything was published since the last open or refresh: one line of 64 bytes is read.

        Cheap enough for every step of a server; `refresh` then takes what it is.
        """
        index, header = self._watched
        return self._open.header(index) != header

    def refresh(self) -> bool:
        """See what is published now; tell whether that is newer. Tables taken before stay as they were.

        A directory that is older than the one before is a DegradedPoolWarning.
        """
        with self._mutex:
            attachment = self._open
            before = self._directory
            self._watched = self._watch(attachment)
            found = attachment.read_directory()
            self._directory, self._problems = found.value, (*attachment.superblock_problems, *found.problems)
            attachment.pins.unpin(before.generation)
            if found.value.age < before.age:
                # Both slots were written back to an older state: the writer's media lost what it published.
                warn(
                    f"{self.backing.path}: the directory went back from epoch {before.epoch}, generation "
                    f"{before.generation} to {found.value.epoch}, {found.value.generation}",
                    DegradedPoolWarning,
                )
            return found.value.age > before.age

    def close(self) -> None:
        """End this object. May be called twice."""
        with self._mutex:
            if self._attachment is not None:
                self._attachment.pins.unpin(self._directory.generation)
                self._attachment = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state: Any = "closed" if self._attachment is None else f"{self.name} on {self.backing.path}"
        return f"<engramdax.Pool {state}, generation {self.generation}, {len(self)} tables>"
