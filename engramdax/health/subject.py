# SPDX-License-Identifier: Apache-2.0
"""What is looked at: one pool of this host, the device under it, and where facts about both come from."""

from __future__ import annotations

import os
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from engramdax.devices.reading import DEV, SYSFS, read_tree
from engramdax.devices.tree import Tree
from engramdax.errors import EngramdaxError, FormatError
from engramdax.health.history import History
from engramdax.pool.access import LocalAccess
from engramdax.pool.pool import DegradedPoolWarning, Pool
from engramdax.pool.records import resolve
from engramdax.pool.volume import Found, read_directory, read_superblock

if TYPE_CHECKING:
    from types import TracebackType

    from engramdax.devices.tree import DaxDevice
    from engramdax.format.directory import Directory
    from engramdax.format.superblock import Superblock

EMPTY_TREE: Final = Tree((), (), (), (), (), (), (), (), (), ())


@dataclass(frozen=True, slots=True)
class Sources:
    """Where facts come from; a test gives captured ones."""

    sysfs: Path = SYSFS
    dev: Path = DEV
    proc: Path = Path("/proc")
    tracing: Path = Path("/sys/kernel/tracing")
    rasdaemon: Path = Path("/var/lib/rasdaemon/ras-mc_event.db")


@dataclass
class Subject:
    """A pool as far as it could be opened. What could not be is None, and its `problem` says why.

    Opened by `Subject.open`, closed by `close` or a with statement.
    """

    sources: Sources
    tree: Tree = EMPTY_TREE
    tree_problem: EngramdaxError | None = None
    path: Path | None = None
    path_problem: EngramdaxError | None = None
    device: DaxDevice | None = None
    opened: LocalAccess | None = None
    superblock: Found[Superblock] | None = None
    directory: Found[Directory] | None = None
    pool: Pool | None = None
    """What tables are read by; None also where this host is not admitted."""
    problem: EngramdaxError | None = None
    """The first thing that stood in the way of reading the pool."""
    history: History = field(default_factory=History)
    root: bool = False
    """Whether this is root, who sees all."""
    _stack: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def open(cls, target: str | None, sources: Sources) -> Self:
        """Open as much as there is; raises nothing but what no EngramdaxError is."""
        subject = cls(sources, root=os.geteuid() == 0)
        try:
            subject.tree = read_tree(sources.sysfs, sources.dev)
        except EngramdaxError as e:
            subject.tree_problem = e
        try:
            subject.path = resolve(target)
        except EngramdaxError as e:
            subject.path_problem = e
            return subject
        subject.device = _find_device(subject.tree, subject.path)
        try:
            subject._read(subject.path)
        except EngramdaxError as e:
            # Its traceback would keep the mapping.
            subject.problem = e.with_traceback(None)
        return subject

    def _read(self, path: Path) -> None:
        opened = LocalAccess(path, writable=False)
        self._stack.callback(opened.close)
        self.opened = opened
        try:
            self.superblock = read_superblock(opened.media)
            self.history = History.of(self.superblock.value.pool)
            self.directory = read_directory(opened.media, self.superblock.value)
        except FormatError as e:
            raise e.at(path) from None
        with warnings.catch_warnings():
            # Bad copies are findings here.
            warnings.simplefilter("ignore", DegradedPoolWarning)
            self.pool = self._stack.enter_context(Pool(path))

    def close(self) -> None:
        """Let go of the pool."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _find_device(tree: Tree, path: Path) -> DaxDevice | None:
    """Give the dax device that a node opens: by its number, for a node may be called anything."""
    try:
        number = path.stat().st_rdev
    except OSError:
        number = 0
    return tree.dax_by_number(number) if number else tree.dax(path)
