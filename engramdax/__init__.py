# SPDX-License-Identifier: Apache-2.0
"""Engram memory tables of large language models, held once in a pool of CXL memory.

pool = engramdax.open("/dev/dax0.0")
table = pool["deepseek-v4.1-flash/layers.1"]
rows = table.gather(ids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from engramdax.checksums import BadBlock
from engramdax.errors import (
    BackingError,
    BusyError,
    ClosedError,
    CudaError,
    DamagedTableError,
    DeposedError,
    EngramdaxError,
    FormatError,
    NotAPoolError,
    ParameterError,
    PoisonedRowsError,
    RefusedError,
    RowIdError,
    SourceError,
    SpaceError,
    TableExistsError,
    TableNotFoundError,
    ToolError,
    UnreadableError,
)
from engramdax.gathering import Gatherer, Prefetch, configure, gather_many
from engramdax.pool.attachment import MAX_ROWS_AHEAD
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
    "CudaError",
    "DamagedTableError",
    "DegradedPoolWarning",
    "DeposedError",
    "EngramdaxError",
    "FormatError",
    "Gatherer",
    "NotAPoolError",
    "ParameterError",
    "PoisonedRowsError",
    "Pool",
    "Prefetch",
    "RefusedError",
    "RowIdError",
    "SourceError",
    "SpaceError",
    "Table",
    "TableExistsError",
    "TableNotFoundError",
    "ToolError",
    "UnreadableError",
    "__version__",
    "configure",
    "gather_many",
    "open",
]


def open(  # noqa: A001 - the name users expect
    target: str | os.PathLike[str] | None = None, *, tune: int | Literal["auto"] | None = None
) -> Pool:
    """Open a pool for reading.

    target: a path, a dax device (/dev/dax0.0 or dax0.0), or the name or uuid of a pool of this host;
    None means ENGRAMDAX_POOL, or else the one pool there is. The memory is opened O_RDONLY and mapped
    PROT_READ. A bad copy of the metadata is a DegradedPoolWarning as long as another one is good.

    tune: how many rows ahead gathers prefetch, 0 to 63; "auto" measures it with the first table (some
    milliseconds), None does so on devdax devices and takes 12 elsewhere.

    Raises ParameterError (`tune`, no one pool), BackingError (nothing there, no permission), NotAPoolError,
    FormatError, RefusedError (a shared pool that has not admitted this host).
    """
    number = type(tune) is int and 0 <= tune <= MAX_ROWS_AHEAD
    if tune is not None and tune != "auto" and not number:
        raise ParameterError(f"tune={tune!r} is unknown", remedy=f"give 0 to {MAX_ROWS_AHEAD} rows, or 'auto'")
    return Pool(resolve(target), tune=tune)
