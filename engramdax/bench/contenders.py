# SPDX-License-Identifier: Apache-2.0
"""The contenders: ways to gather rows of the same table, each as a call that is ready to be timed.

All that a caller would do once, or does for another reason anyway, is done before: the ids were just
written where the contender reads them, as whoever computes them would do, and in the form that it likes
best; the output is allocated where it takes one. What is left is the call itself.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.bench.scratch import available_bytes
from engramdax.bench.sweep import Form, Sweep
from engramdax.errors import BackingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    from engramdax.table import Table

    Ids = npt.NDArray[np.int64]
    Bytes = npt.NDArray[np.uint8]

OURS: Final = "gather"
"""What the others are compared with."""

LABELS: Final = {
    "gather": "gather(out=)",
    "prepared": "gatherer, prepared",
    "openmp": 'gather(engine="openmp")',
    "numpy": 'numpy.take(out=, mode="clip")',
    "torch": "torch.index_select, same memory",
    "torch-ordinary": "torch.index_select, ordinary tensor",
    "engramdb": "EngramDB Store.fetch",
    "limit": "limit: best of the C sweep",
}
PEER_OF: Final = {"torch": "torch", "torch-ordinary": "torch", "engramdb": "engramdb"}
"""The module that a contender needs; `find_peer` looks for it."""

MADV_NOHUGEPAGE: Final = 15


@dataclass(frozen=True, slots=True)
class Ground:
    """What contenders gather from.

    `rows` are all bytes of `table`, uint8 [rows, row_bytes], read-only; `file` is where they lie, from byte
    `offset` on; `scratch` is a directory to put things into.
    """

    table: Table
    rows: Bytes
    file: Path
    offset: int
    scratch: Path


def _flat(result: Any) -> Bytes:
    return np.asarray(result).reshape(-1).view(np.uint8)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to gather.

    `prepare` makes a Form for a number of rows; `gathered` gives the bytes that a call brought, of what it
    returned; `detail` says what else a reader should know of calls of that many rows; `version` of what this
    is, unless it is ours.
    """

    prepare: Callable[[int], Form]
    gathered: Callable[[Any], Bytes] = _flat
    detail: Callable[[int], str] = lambda _rows: ""
    version: str = ""


def make_contender(name: str, ground: Ground, peer: Path | None) -> Contender:
    """Make a contender; `peer` goes into sys.path. ImportError or BackingError where it cannot be had."""
    if peer is not None:
        sys.path.insert(0, str(peer))  # numpy is imported already and stays the one in use
    makers: dict[str, Callable[[Ground], Contender]] = {
        "gather": _gather,
        "prepared": _prepared,
        "openmp": partial(_gather, engine="openmp"),
        "numpy": _take,
        "torch": partial(_index_select, ordinary=False),
        "torch-ordinary": partial(_index_select, ordinary=True),
        "engramdb": _fetch,
        "limit": _limit,
    }
    return makers[name](ground)


def _buffers(ground: Ground, rows: int) -> tuple[Ids, Bytes]:
    return np.zeros(rows, np.int64), np.empty((rows, ground.table.row_bytes), np.uint8)


def _gather(ground: Ground, **options: Any) -> Contender:
    def prepare(rows: int) -> Form:
        ids, out = _buffers(ground, rows)
        return Form(partial(np.copyto, ids), partial(ground.table.gather, ids, out=out, **options))

    return Contender(prepare)


def _prepared(ground: Ground) -> Contender:
    def prepare(rows: int) -> Form:
        ids, out = _buffers(ground, rows)
        return Form(partial(np.copyto, ids), ground.table.gatherer(ids, out))

    return Contender(prepare)


def _take(ground: Ground) -> Contender:
    def prepare(rows: int) -> Form:
        ids, out = _buffers(ground, rows)
        # Any other mode copies the output once more, through a buffer.
        take = partial(np.take, ground.rows, ids, axis=0, out=out, mode="clip")
        return Form(partial(np.copyto, ids), take)

    return Contender(prepare, version=f"numpy {np.__version__}")


def _index_select(ground: Ground, *, ordinary: bool) -> Contender:
    torch: Any = importlib.import_module("torch")
    torch.set_grad_enabled(mode=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the memory is read-only; nobody writes to it
        rows = torch.from_numpy(ground.rows)
    if ordinary:
        rows = _ordinary_tensor(torch, rows)

    def prepare(count: int) -> Form:
        ids, out = _buffers(ground, count)
        select = partial(torch.index_select, rows, 0, torch.from_numpy(ids), out=torch.from_numpy(out))
        return Form(partial(np.copyto, ids), select)

    return Contender(prepare, lambda result: _flat(result.numpy()), version=f"torch {torch.__version__}")


def _ordinary_tensor(torch: Any, rows: Any) -> Any:
    """Copy rows into a tensor as torch allocates it, on 4 KiB pages."""
    if available_bytes() < rows.nbytes * 1.1:
        raise BackingError(f"no memory for a copy of {rows.nbytes} bytes", remedy="give a smaller --size")
    copy = torch.empty(rows.shape, dtype=rows.dtype)
    # Where the system gives transparent huge pages to all who do not ask, this one does without: what the
    # pages are worth is part of the comparison. Where they have to be asked for, nobody asks for a tensor.
    begin = -(-copy.data_ptr() // 4096) * 4096
    end = (copy.data_ptr() + copy.nbytes) // 4096 * 4096
    libc = ctypes.CDLL(None, use_errno=True)
    libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(max(0, end - begin)), MADV_NOHUGEPAGE)
    return copy.copy_(rows)


def _fetch(ground: Ground) -> Contender:
    """Read the file that the pool lies in; EngramDB makes a system call for each row, and new bytes for all."""
    engramdb: Any = importlib.import_module("engramdb")
    width = ground.table.row_bytes
    first, unaligned = divmod(ground.offset, width)
    if unaligned:
        raise BackingError(f"it counts rows of {width} bytes from the start of a file, the table begins elsewhere")
    (ground.scratch / "shard_000.bin").symlink_to(ground.file)
    store = engramdb.Store(str(ground.scratch), 1, first + ground.table.rows, width)

    def prepare(rows: int) -> Form:
        wanted: list[int] = [0] * rows  # of all that it takes, the fastest

        def load(ids: Ids) -> None:
            wanted[:] = (ids + first).tolist()

        return Form(load, partial(store.fetch, wanted))

    version = f"engramdb {engramdb.__version__}"
    return Contender(prepare, lambda result: np.frombuffer(result, np.uint8), version=version)


def _limit(ground: Ground) -> Contender:
    sweep = Sweep(ground.table)
    return Contender(sweep.prepare, lambda _result: _flat(sweep.out), sweep.detail)
