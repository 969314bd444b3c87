# SPDX-License-Identifier: Apache-2.0
"""Engram memory tables of large language models, held once in a pool of CXL memory.

pool = engramdax.open("/dev/dax0.0")
table = pool["deepseek-v4.1-flash/layers.1"]
rows = table.gather(ids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.checksums import BadBlock
from engramdax.errors import (
    BackingError,
    BusyError,
    ClosedError,
    DamagedTableError,
    EngramdaxError,
    FormatError,
    NotAPoolError,
    ParameterError,
    RefusedError,
    RowIdError,
    SourceError,
    SpaceError,
    TableExistsError,
    TableNotFoundError,
)
from engramdax.pool.pool import DegradedPoolWarning, Pool
from engramdax.pool.records import resolve
from engramdax.table import Table
from engramdax.version import __version__

if TYPE_CHECKING:
    import os

__all__ = [
    "BackingError",
    "BadBlock",
    "BusyError",
    "ClosedError",
    "DamagedTableError",
    "DegradedPoolWarning",
    "EngramdaxError",
    "FormatError",
    "NotAPoolError",
    "ParameterError",
    "Pool",
    "RefusedError",
    "RowIdError",
    "SourceError",
    "SpaceError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "__version__",
    "open",
]


def open(target: str | os.PathLike[str] | None = None) -> Pool:  # noqa: A001 - the name users expect
    """Open a pool for reading.

    target: a path, a dax device (/dev/dax0.0 or dax0.0), or the name or uuid of a pool of this host;
    None means ENGRAMDAX_POOL, or else the one pool there is. The memory is opened O_RDONLY and mapped
    PROT_READ. A bad copy of the metadata is a DegradedPoolWarning as long as another one is good.

    Raises BackingError (nothing there, no permission), NotAPoolError, FormatError, RefusedError (a
    shared pool that has not admitted this host).
    """
    return Pool(resolve(target))
