# SPDX-License-Identifier: Apache-2.0
"""Gathers that are prepared once, run beside something else, or done several at a time."""

from __future__ import annotations

import operator
import os
import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax import plain
from engramdax._core import ffi, lib
from engramdax.errors import ParameterError, PoisonedRowsError
from engramdax.warning import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from engramdax.table import Table

MAX_THREADS: Final = int(lib.ED_MAX_WORKERS)
MAX_SPIN_US: Final = 1_000_000

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
    """A gather under way; made by `Table.prefetch`. All methods may be called from several threads at once.

    One that is dropped without `wait` leaves undone what nobody has begun. In a forked child, `wait` of one
    that the parent started gathers anew, by the child alone.
    """

    def __init__(self, table: Table, ids: Any, out: Any, *, threads: int | None, per_head: bool, invalid: str) -> None:
        self._table = table
        self._ids, self._out, self._flags = table.checked(ids, out, per_head=per_head, invalid=invalid)
        self._error: Exception | None = None
        self._finished = False
        self._turn, self._process = threading.Lock(), os.getpid()
        count = 0 if threads is None else thread_count(threads)
        self._request: Any = ffi.new("struct ed_request *", table.request(self._ids, self._out, self._flags))
        # It owns the buffers, for as long as workers may write into them: a signal's handler may raise at any time.
        kept = (table, self._ids, self._out, self._request)
        self._pending = plain.start(int(ffi.cast("uintptr_t", self._request)), count, kept)

    @property
    def done(self) -> bool:
        """Tell whether `wait` would return at once."""
        return self._finished or plain.done(self._pending)

    def wait(self) -> npt.NDArray[Any]:
        """Do what is left and give the rows; errors as of `Table.gather`, each time it is called."""
        if self._turn.locked() and os.getpid() != self._process:
            # A thread of the parent was waiting when this process was forked, and is not here.
            self._turn, self._process = threading.Lock(), os.getpid()
        with self._turn:
            if not self._finished:
                self._finish()
        if self._error is not None:
            raise self._error
        return self._out

    def _finish(self) -> None:
        outcome = plain.wait(self._pending)
        if outcome is None:  # who waited was interrupted, or is of the process that this one was forked from
            outcome = int(_gather(self._request, 1, 0, 0))
        if outcome:
            self._error = failure_of(outcome, [(self._table, self._ids, self._flags)])
        self._finished = True


def gather_many(
    requests: Sequence[tuple[Table, npt.NDArray[Any], Any]],
    *,
    threads: int | None = None,
    invalid: str = "raise",
) -> list[npt.NDArray[Any]]:
    """Gather from several tables in one go: `(table, ids, out)` each, arguments as of `Table.gather`.

    An `out` of None is made. Gives the outputs in order, each as `gather` would. The work of all is shared out
    together, which costs one wake-up and one wait instead of one for each. The ids of no request may overlap the
    output of another.

    In a PoisonedRowsError, `positions` count through the ids of all requests, in order: those of the first
    request come first. Its `table` names all tables concerned.
    """
    if len(requests) > lib.ED_MAX_REQUESTS:
        raise ParameterError(
            f"{len(requests)} requests are too many for one call", remedy=f"give at most {lib.ED_MAX_REQUESTS}"
        )
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


def configure(*, threads: int | None = None, spin_us: int | None = None, linger_us: int | None = None) -> None:
    """Set how gathers of this process use its CPUs.

    threads: the most that work at once, callers included; None means ENGRAMDAX_THREADS, or the CPUs that
    the process may use (affinity, cgroup quota). spin_us: how long an idle worker spins before it sleeps,
    in microseconds; None leaves it (ENGRAMDAX_SPIN_US, 100). Gathers of 12 to 80 KiB that set no threads of their own
    are shared out only if another of more than 12 KiB began within that time; else their caller does all of it, and
    with 0 always. linger_us: how long those who may take part stay awake after a gather for the GPU
    (ENGRAMDAX_LINGER_US, 20,000): meanwhile they leave their CPU to whoever wants it. Spinning answers faster and
    burns cores.
    """
    spin_us = _microseconds("spin_us", spin_us)
    linger_us = _microseconds("linger_us", linger_us)
    limit = _ENVIRONMENT_THREADS if threads is None else thread_count(threads)
    lib.ed_team_configure(limit, -1 if spin_us is None else spin_us)
    if linger_us is not None:
        lib.ed_lanes_configure(linger_us)


def _microseconds(name: str, value: int | None) -> int | None:
    if value is not None and not 0 <= (value := _whole(name, value)) <= MAX_SPIN_US:
        raise ParameterError(f"{name}={value} is out of range", remedy=f"give 0 to {MAX_SPIN_US} microseconds")
    return value


def thread_count(threads: int) -> int:
    """Check a number of threads."""
    if type(threads) is not int:
        threads = _whole("threads", threads)
    if threads < 1:
        raise ParameterError(f"threads={threads} copies nothing", remedy="give 1 or more")
    return min(threads, MAX_THREADS)


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__"):
        raise ParameterError(f"{name}={value!r} is no whole number", remedy="give an int")
    return operator.index(value)


def engine_number(engine: str) -> int:
    """Give the C core's number of an engine."""
    if engine not in _ENGINES:
        raise ParameterError(f"engine={engine!r} is unknown", remedy=f"say {' or '.join(_ENGINES)}")
    return int(_ENGINES[engine])


def failure_of(outcome: int, requests: Sequence[tuple[Table, npt.NDArray[Any], int]]) -> Exception:
    """Give the error for this thread's last gather, which did not end well."""
    if outcome == lib.ED_OVERLAP:
        return ParameterError("out overlaps ids", remedy="give two separate buffers")
    if outcome == lib.ED_NO_MEMORY:
        return MemoryError("no memory to keep account of a gather")
    failure: Any = lib.ed_failure()
    if outcome == lib.ED_BAD_ID:
        table, ids, flags = requests[failure.request]
        error: Exception = table.bad_id(ids, int(failure.position), per_head=bool(flags & lib.ED_PER_HEAD))
        return error
    total = sum(ids.size for _, ids, _ in requests)
    bits = np.frombuffer(bytes(ffi.buffer(failure.unreadable, total // 8 + 1)), np.uint8)
    lib.ed_failure_clear()
    positions = np.flatnonzero(np.unpackbits(bits, bitorder="little")[:total])
    names: dict[str, None] = {}
    parts: list[npt.NDArray[np.int64]] = []
    begin = 0
    for table, ids, _ in requests:
        first, last = np.searchsorted(positions, (begin, begin + ids.size))
        if last > first:
            names[table.name] = None
            table.note_unreadable(int(last - first))
            parts.append(ids.reshape(-1)[positions[first:last] - begin].astype(np.int64))
        begin += ids.size
    bad = np.concatenate(parts)
    named = ", ".join(names)
    shown = ", ".join(map(str, bad[:4])) + (", ..." if bad.size > 4 else "")
    return PoisonedRowsError(
        f"{bad.size} of {total} rows of table {named} cannot be read (ids {shown})",
        table=named,
        positions=positions,
        ids=bad,
        remedy="look at the pool with `engramdax verify`; the device may be gone, or the file truncated",
    )


_ignored: Final[dict[str, str]] = {}
"""Variables, and what is wrong with each, until somebody was told."""


def _environment(name: str, least: int, most: int) -> int | None:
    text = os.environ.get(name, "")
    if not text:
        return None
    if text.isascii() and text.isdecimal() and least <= int(text) <= most:
        return int(text)
    # A program that was started with a slip in its environment serves all the same.
    error = ParameterError(
        f"{name}={text!r} is ignored: it is no number from {least} to {most}", remedy="correct or unset it"
    )
    _ignored[name] = str(error)
    return None


def warn_of_environment() -> list[str]:
    """Warn of each variable of the environment that is no number and was ignored, once; give their names.

    Not while this is imported: a program could not have said yet what is to become of warnings.
    """
    names = list(_ignored)
    for name in names:
        # Another thread may have said it meanwhile.
        if (text := _ignored.pop(name, None)) is not None:
            warn(text, RuntimeWarning)
    return names


_ENVIRONMENT_THREADS: Final = _environment("ENGRAMDAX_THREADS", 1, MAX_THREADS) or 0
configure(
    spin_us=_environment("ENGRAMDAX_SPIN_US", 0, MAX_SPIN_US),
    linger_us=_environment("ENGRAMDAX_LINGER_US", 0, MAX_SPIN_US),
)
