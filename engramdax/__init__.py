# SPDX-License-Identifier: Apache-2.0
"""Engram memory tables of large language models, held once in a pool of CXL memory.

pool = engramdax.open("/dev/dax0.0")
table = pool["deepseek-v4.1-flash/layers.1"]
rows = table.gather(ids)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

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

    from engramdax.cuda.prefetcher import Prefetcher
    from engramdax.cuda.table import CudaTable

__all__ = [
    "BackingError",
    "BadBlock",
    "BusyError",
    "ClosedError",
    "CudaError",
    "CudaTable",
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
    "Prefetcher",
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


def __getattr__(name: str) -> Any:
    # What needs a GPU is imported by those who have one.
    if name == "CudaTable":
        from engramdax.cuda.table import CudaTable  # noqa: PLC0415

        return CudaTable
    if name == "Prefetcher":
        from engramdax.cuda.prefetcher import Prefetcher  # noqa: PLC0415

        return Prefetcher
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def open(  # noqa: A001 - the name users expect
    target: str | os.PathLike[str] | None = None, *, tune: int | Literal["auto"] | None = None
) -> Pool:
    """Open a pool for reading.

    target: a path, a dax device (/dev/dax0.0 or dax0.0), or the name or uuid of a pool of this host;
    None means ENGRAMDAX_POOL, or else the one pool there is. The memory is opened O_RDONLY and mapped
    PROT_READ. A bad copy of the metadata is a DegradedPoolWarning as long as another one is good.

    tune: how many rows ahead gathers prefetch, 0 to 511; "auto" measures it with the first table (some
    milliseconds), None does so on devdax devices and takes 32 KiB of rows elsewhere.

    Raises ParameterError (`tune`, no one pool), BackingError (nothing there, no permission), NotAPoolError,
    FormatError, RefusedError (a shared pool that has not admitted this host).
    """
    number = type(tune) is int and 0 <= tune <= MAX_ROWS_AHEAD
    if tune is not None and tune != "auto" and not number:
        raise ParameterError(f"tune={tune!r} is unknown", remedy=f"give 0 to {MAX_ROWS_AHEAD} rows, or 'auto'")
    return Pool(resolve(target), tune=tune)
