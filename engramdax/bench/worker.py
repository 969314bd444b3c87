# SPDX-License-Identifier: Apache-2.0
"""A contender's process: it holds the mapping, and takes a turn whenever the baton comes to it."""

from __future__ import annotations

import ctypes
import gc
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi
from engramdax.bench.contenders import Ground, make_contender
from engramdax.bench.ids import IdStream, make_stream
from engramdax.bench.scratch import TABLE
from engramdax.bench.sweep import core_table
from engramdax.errors import EngramdaxError
from engramdax.pool.pool import Pool

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    import numpy.typing as npt

    from engramdax.bench.contenders import Contender
    from engramdax.bench.sweep import Form
    from engramdax.table import Table

PR_SET_PDEATHSIG: Final = 1
WARM: Final = 4


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker is to be."""

    contender: str
    pool: Path
    offset: int
    """Where the table begins in the pool's file."""
    peer: Path | None
    trace: Path | None
    scratch: Path
    """A directory of its own."""


@dataclass(frozen=True, slots=True)
class Limit:
    """When a turn may end early: after `calls` calls and `seconds` seconds in them."""

    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Turn:
    """At most `calls` calls of `rows` rows each, `gap` seconds apart, after a quarter as many that do not count."""

    rows: int
    ids: str
    calls: int
    limit: Limit
    gap: float
    seed: list[int]
    check: bool
    """Compare the bytes of the first call with numpy's, before anything is timed."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a turn gave: nanoseconds of each call."""

    nanoseconds: npt.NDArray[np.int64]
    detail: str


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker can take turns."""

    version: str


@dataclass(frozen=True, slots=True)
class Failed:
    """It cannot, or a turn went wrong; a worker that says so when it starts ends."""

    reason: str


def serve(setup: Setup, connection: Connection) -> None:
    """Be a worker: say Ready or Failed, then answer each Turn with Taken or Failed, until the parent ends."""
    die_with_parent()
    # Ctrl-C goes to the whole group, but it is the parent who ends a run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Pool(setup.pool) as pool:
            table = pool[TABLE]
        ground = Ground(table, rows_of(table), setup.pool, setup.offset, setup.scratch)
        contender = make_contender(setup.contender, ground, setup.peer)
    except (ImportError, OSError, EngramdaxError, RuntimeError, MemoryError) as e:
        connection.send(Failed(_one_line(e)))
        return
    connection.send(Ready(contender.version))
    streams: dict[str, IdStream] = {}
    while True:
        try:
            turn: Turn = connection.recv()
        except EOFError:
            return
        try:
            if turn.ids not in streams:
                streams[turn.ids] = make_stream(turn.ids, table.rows, setup.trace)
            connection.send(take_turn(contender, streams[turn.ids], ground.rows, turn))
        except Exception as e:  # noqa: BLE001 - other people's code may raise anything; the run goes on without it
            connection.send(Failed(_one_line(e)))


def rows_of(table: Table) -> npt.NDArray[np.uint8]:
    """Give a table's memory as a read-only array, uint8 [rows, row_bytes], with all its pages mapped."""
    memory: Any = ffi.buffer(core_table(table).base, table.nbytes)
    flat = np.frombuffer(memory, np.uint8)
    flat.setflags(write=False)
    flat[:: 4 << 10].max()  # a page fault is a cost of attaching, not of a gather
    return flat.reshape(table.rows, table.row_bytes)


def take_turn(contender: Contender, stream: IdStream, rows: npt.NDArray[np.uint8], turn: Turn) -> Taken | Failed:
    """Draw the ids, prepare the call, check one, warm up, and time each of the rest."""
    # Caches and predictors hold another contender's things, threads may sleep or share a core.
    warm = max(WARM, turn.calls // 4)
    ids = stream.draw(warm + turn.calls, turn.rows, turn.seed)
    form = contender.prepare(turn.rows)
    if turn.check:
        form.load(ids[0])
        if not np.array_equal(contender.gathered(form.call()), rows[ids[0]].reshape(-1)):
            return Failed("its bytes differ from numpy's")
    gc.collect()
    gc.disable()
    try:
        timed(form, ids[:warm], turn.gap, Limit(WARM, turn.limit.seconds / 4))
        took = timed(form, ids[warm:], turn.gap, turn.limit)
    finally:
        gc.enable()
    return Taken(np.array(took, np.int64), contender.detail(turn.rows))


def timed(form: Form, ids: npt.NDArray[np.int64], gap: float, limit: Limit) -> list[int]:
    """Call for each row of ids, and give the nanoseconds that it took, the clock's own few dozen included."""
    load, call = form.load, form.call
    clock, sleep = time.perf_counter_ns, time.sleep
    least, most = limit.calls, limit.seconds * 1e9
    took: list[int] = []
    total = 0
    for wanted in ids:
        if gap:
            sleep(gap)
        load(wanted)
        begin = clock()
        call()
        took.append(clock() - begin)
        total += took[-1]
        if total > most and len(took) >= least:
            break
    return took


def die_with_parent() -> None:
    """Have the kernel end this process with its parent's thread: a stopped one would stay forever."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
