# SPDX-License-Identifier: Apache-2.0
"""Gathers that are prepared once, run beside something else, or done several at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib
from engramdax.errors import ParameterError, PoisonedRowsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from engramdax.table import Table

_ENGINES: Final = {"team": lib.ED_TEAM, "openmp": lib.ED_OPENMP}
_gather: Final[Any] = lib.ed_gather
_gather_prepared: Final[Any] = lib.ed_gather_prepared


class Gatherer:
    """A gather whose buffers were checked once; made by `Table.gatherer`.

    Each call reads the ids anew, fills `out` and returns it. A Gatherer may be called by one thread at a
    time; several on the same table at once.
    """

    __slots__ = ("_flags", "_ids", "_request", "out", "table")

    def __init__(self, table: Table, ids: Any, out: Any, *, threads: int | None, per_head: bool, invalid: str) -> None:
        if out is None:
            raise ParameterError("a prepared gather needs its out", remedy="give a buffer for the rows")
        self._ids, self.out, self._flags = table.checked(ids, out, per_head=per_head, invalid=invalid)
        if not isinstance(ids, np.ndarray) and not np.may_share_memory(self._ids, np.asarray(ids)):
            raise ParameterError(
                f"ids are a {type(ids).__name__}, whose later values nobody would see", remedy="give an array"
            )
        request = table.request(self._ids, self.out, self._flags)
        request["threads"] = 0 if threads is None else thread_count(threads)
        self._request: Any = ffi.new("struct ed_request *", request)
        self.table = table

    def __call__(self) -> npt.NDArray[Any]:
        """Gather; errors as of `Table.gather`."""
        if outcome := _gather_prepared(self._request):
            raise failure_of(outcome, [(self.table, self._ids, self._flags)])
        return self.out


class Prefetch:
    """A gather under way; made by `Table.prefetch`. `wait` may be called by any one thread."""

    def __init__(self, table: Table, ids: Any, out: Any, *, threads: int | None, per_head: bool, invalid: str) -> None:
        self._pending: Any = ffi.NULL
        self._table = table
        self._ids, self._out, self._flags = table.checked(ids, out, per_head=per_head, invalid=invalid)
        self._error: Exception | None = None
        count = 0 if threads is None else thread_count(threads)
        request: Any = ffi.new("struct ed_request *", table.request(self._ids, self._out, self._flags))
        self._pending = lib.ed_gather_start(request, count)
        if self._pending == ffi.NULL:
            raise MemoryError("no memory for a pending gather")

    @property
    def done(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._pending == ffi.NULL or bool(lib.ed_pending_done(self._pending))

    def wait(self) -> npt.NDArray[Any]:
        """Do what is left and give the rows; errors as of `Table.gather`, each time it is called."""
        if self._pending != ffi.NULL:
            pending, self._pending = self._pending, ffi.NULL
            if outcome := lib.ed_pending_wait(pending):
                self._error = failure_of(outcome, [(self._table, self._ids, self._flags)])
        if self._error is not None:
            raise self._error
        return self._out

    def __del__(self) -> None:
        # The buffers go with this object, and workers may still write into them.
        if self._pending != ffi.NULL:
            pending, self._pending = self._pending, ffi.NULL
            lib.ed_pending_wait(pending)


def gather_many(
    requests: Sequence[tuple[Table, npt.NDArray[Any], Any]],
    *,
    threads: int | None = None,
    invalid: str = "raise",
) -> list[npt.NDArray[Any]]:
    """Gather from several tables in one go: `(table, ids, out)` each, arguments as of `Table.gather`.

    An `out` of None is made. Gives the outputs in order. The work of all is shared out together, which
    costs one wake-up and one wait instead of one for each.
    """
    checked = [table.checked(ids, out, per_head=False, invalid=invalid) for table, ids, out in requests]
    tables = [table for table, _, _ in requests]
    core: Any = ffi.new(
        "struct ed_request[]",
        [table.request(*parts) for table, parts in zip(tables, checked, strict=True)],
    )
    count = 0 if threads is None else thread_count(threads)
    if outcome := _gather(core, len(tables), count, 0):
        failed = [(table, ids, flags) for table, (ids, _, flags) in zip(tables, checked, strict=True)]
        raise failure_of(outcome, failed)
    return [out for _, out, _ in checked]


def configure(*, threads: int | None = None, spin_us: int | None = None) -> None:
    """Set how gathers of this process use its CPUs.

    threads: the most that work at once, callers included; None means ENGRAMDAX_THREADS, or the CPUs that
    the process may use (affinity, cgroup quota). spin_us: how long an idle worker spins before it sleeps,
    in microseconds; None leaves it (ENGRAMDAX_SPIN_US, 100). Spinning answers faster and burns a core.
    """
    if spin_us is not None and not 0 <= spin_us <= 1_000_000:
        raise ParameterError(f"spin_us={spin_us} is out of range", remedy="give 0 to 1000000 microseconds")
    lib.ed_team_configure(0 if threads is None else thread_count(threads), -1 if spin_us is None else spin_us)


def thread_count(threads: int) -> int:
    """Check a number of threads."""
    if threads < 1:
        raise ParameterError(f"threads={threads} copies nothing", remedy="give 1 or more")
    return min(threads, 255)


def engine_number(engine: str) -> int:
    """Give the C core's number of an engine."""
    if engine not in _ENGINES:
        raise ParameterError(f"engine={engine!r} is unknown", remedy=f"say {' or '.join(_ENGINES)}")
    return int(_ENGINES[engine])


def failure_of(outcome: int, requests: Sequence[tuple[Table, npt.NDArray[Any], int]]) -> Exception:
    """Give the error for this thread's last gather, which did not end well."""
    if outcome == lib.ED_OVERLAP:
        return ParameterError("out overlaps ids", remedy="give two separate buffers")
    failure: Any = lib.ed_failure()
    table, ids, flags = requests[failure.request]
    if outcome == lib.ED_BAD_ID:
        error: Exception = table.bad_id(ids, int(failure.position), per_head=bool(flags & lib.ED_PER_HEAD))
        return error
    if failure.unreadable == ffi.NULL:
        return MemoryError("no memory to report rows that cannot be read")
    bits = np.frombuffer(bytes(ffi.buffer(failure.unreadable, ids.size // 8 + 1)), np.uint8)
    positions = np.flatnonzero(np.unpackbits(bits, bitorder="little")[: ids.size])
    lib.ed_failure_clear()
    bad = ids.reshape(-1)[positions].astype(np.int64)
    shown = ", ".join(map(str, bad[:4])) + (", ..." if bad.size > 4 else "")
    return PoisonedRowsError(
        f"{bad.size} of {ids.size} rows of table {table.name} cannot be read (ids {shown})",
        table=table.name,
        positions=positions,
        ids=bad,
        remedy="look at the pool with `engramdax verify`; the device may be gone, or the file truncated",
    )
