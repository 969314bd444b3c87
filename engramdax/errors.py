# SPDX-License-Identifier: Apache-2.0
"""Every error that engramdax raises on purpose.

Each names the object (path, device, table), what was found, and, in `remedy`, what to do about it.
`exit_code` is the status that the command line ends with: 1 the operation failed, 2 it was asked for
wrongly, 3 it was refused for safety and `--force` (or what the remedy says) would go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from pathlib import Path


class EngramdaxError(Exception):
    """Base of all errors of this package; `str()` is one line, problem and remedy."""

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, *, remedy: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}" if self.remedy else self.problem


class ParameterError(EngramdaxError, ValueError):
    """An argument is wrong in itself, whatever the pool holds."""

    exit_code = 2


class RefusedError(EngramdaxError):
    """Going on could destroy or disturb something; nothing was touched."""

    exit_code = 3


class SourceError(EngramdaxError):
    """A file to load is not what it claims to be, cannot be read, or changed while it was read."""


class FormatError(EngramdaxError):
    """What stands on the media is not a pool of a version that this code knows, or is damaged."""

    def at(self, path: Path) -> Self:
        """Give the same error with the place that it was found at."""
        return type(self)(f"{path}: {self.problem}", remedy=self.remedy)


class NotAPoolError(FormatError):
    """There is no pool at this place at all."""


class UnreadableError(FormatError):
    """Memory of the pool faults when it is read: poison, an unplugged device, a truncated file."""


class BackingError(EngramdaxError):
    """The memory under a pool cannot be had: no such device, no permission, not enough space."""


class ToolError(EngramdaxError):
    """A program that provisioning needs (`cxl`, `ndctl`, `daxctl`) is missing, failed, or did nothing."""


class BusyError(EngramdaxError):
    """Another process writes the pool."""


class DeposedError(EngramdaxError):
    """Another host took the pool over while this one wrote; what was published before is whole, the rest is not."""


class SpaceError(EngramdaxError):
    """The pool has no free extent of the size needed."""


class TableNotFoundError(EngramdaxError, KeyError):
    """The pool has no published table of this name."""

    __str__ = EngramdaxError.__str__  # KeyError's would print the repr


class TableExistsError(EngramdaxError):
    """A table of this name is published already."""


class DamagedTableError(EngramdaxError):
    """Bytes of a table differ from the checksums that were published with them."""


class RowIdError(EngramdaxError, IndexError):
    """An id is neither -1 nor a row of the table."""

    exit_code = 2


class PoisonedRowsError(EngramdaxError, OSError):
    """Memory under some rows of a gather could not be read: poison, an unplugged device, a truncated file.

    `positions` are the flat positions in `ids` of those rows, `ids` their ids (both int64 [n], ascending
    positions), `table` the table's name. Their rows in `out` are zeros; all others are right.
    """

    def __init__(self, problem: str, *, table: str, positions: Any, ids: Any, remedy: str = "") -> None:
        super().__init__(problem, remedy=remedy)
        self.table = table
        self.positions = positions
        self.ids = ids

    __str__ = EngramdaxError.__str__  # OSError has one of its own


class CudaError(EngramdaxError, RuntimeError):
    """The GPU, its driver or the packages for it are missing, or refused something."""


class ClosedError(EngramdaxError, ValueError):
    """The pool, source or table on a GPU was closed before."""
