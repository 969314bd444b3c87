# SPDX-License-Identifier: Apache-2.0
"""A contest: all contenders over all cases, on one kind of pool after the other."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from engramdax.bench.baton import Runner
from engramdax.bench.contenders import LABELS, PEER_OF
from engramdax.bench.neighbours import Neighbours
from engramdax.bench.peers import Peer, find_peer
from engramdax.bench.scratch import scratch_pool
from engramdax.bench.spinner import busy_core
from engramdax.bench.worker import Limit, Setup, Taken, Turn
from engramdax.errors import BackingError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from engramdax.bench.scratch import Scratch

    Say = Callable[[str], None]

ROWS_PER_TURN: Final = 800_000
CALLS: Final = (8, 1000)
"""Least and most calls in a turn, within which it copies ROWS_PER_TURN."""

SECONDS: Final = 0.5
"""After which a turn ends once it has made its least calls: a peer may be a hundred times slower than others."""

BUSY_ROWS: Final = 4096
BUSY_CALLS: Final = 150
BUSY_GAPS: Final = (200e-6, 0.0)
BUSY_CONTENDERS: Final = ("gather", "openmp")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be measured; the product of all lists, but for `rounds` and `size` (bytes of the table)."""

    pages: Sequence[str]
    row_bytes: Sequence[int]
    rows: Sequence[int]
    ids: Sequence[str]
    contenders: Sequence[str]
    size: int
    rounds: int
    trace: Path | None = None
    peers: Path | None = None
    busy_core: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure. `gap`: seconds between calls; `busy`: another process keeps a core busy."""

    pages: str
    row_bytes: int
    rows: int
    ids: str
    gap: float = 0.0
    busy: bool = False


@dataclass(slots=True)
class Series:
    """What one contender took in one case, all rounds together."""

    case: Case
    contender: str
    nanoseconds: npt.NDArray[np.int64]
    detail: str


@dataclass(slots=True)
class Outcome:
    """All that was measured, who took part in which version, and what could not be had, with its reason.

    `others` is the share of the CPUs' time that processes which have nothing to do with it had meanwhile.
    """

    series: list[Series] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    others: float = 0.0


def hold(plan: Plan, say: Say) -> Outcome:
    """Measure everything that `plan` says and that can be had here; what cannot be is told in `absent`.

    Raises BackingError or RefusedError where there is memory for none of the pools.
    """
    outcome = Outcome()
    peers = _find_peers(plan, outcome, say)
    neighbours = Neighbours()
    refusal: BackingError | RefusedError | None = None
    for pages, row_bytes in itertools.product(plan.pages, plan.row_bytes):
        if f"pool on {pages} pages" in outcome.absent:
            continue
        where = f"{pages} pages, {row_bytes} bytes a row"
        say(f"{where}: making a pool of {plan.size >> 20} MiB")
        try:
            with scratch_pool(pages, plan.size, row_bytes) as scratch, ExitStack() as stack:
                runners = list(_runners(plan, scratch, peers, stack))
                for runner in runners:
                    if runner.failed:
                        outcome.absent[f"{LABELS[runner.name]}, {where}"] = runner.failed
                    elif runner.version:
                        outcome.versions[runner.name] = runner.version
                for case in _cases(plan, pages, row_bytes):
                    say(f"{where}: {case.rows} rows, {case.ids} ids")
                    outcome.series += _measure(plan, case, [r for r in runners if not r.failed], outcome)
        except (BackingError, RefusedError) as e:
            refusal = e
            outcome.absent[f"pool on {pages} pages"] = str(e)
    outcome.others = neighbours.share()
    if refusal and not outcome.series:
        raise refusal
    return outcome


def _find_peers(plan: Plan, outcome: Outcome, say: Say) -> dict[str, Peer]:
    wanted = {module for name, module in PEER_OF.items() if name in plan.contenders}
    peers = {module: find_peer(module, plan.peers, say) for module in sorted(wanted)}
    outcome.absent |= {module: peer.absent for module, peer in peers.items() if peer.absent}
    return peers


def _runners(plan: Plan, scratch: Scratch, peers: dict[str, Peer], stack: ExitStack) -> Iterator[Runner]:
    for name in plan.contenders:
        peer = peers[PEER_OF[name]] if name in PEER_OF else Peer()
        if peer.absent:
            continue
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="engramdax-bench-")))
        yield stack.enter_context(Runner(Setup(name, scratch.path, scratch.offset, peer.path, plan.trace, place)))


def _cases(plan: Plan, pages: str, row_bytes: int) -> Iterator[Case]:
    if plan.busy_core:
        for gap in BUSY_GAPS:
            yield Case(pages, row_bytes, BUSY_ROWS, plan.ids[0], gap, busy=True)
        return
    for ids, rows in itertools.product(plan.ids, plan.rows):
        yield Case(pages, row_bytes, rows, ids)


def _measure(plan: Plan, case: Case, runners: list[Runner], outcome: Outcome) -> list[Series]:
    """Let the baton go round; a contender that fails once is out of this case."""
    calls = BUSY_CALLS if case.busy else min(max(ROWS_PER_TURN // case.rows, CALLS[0]), CALLS[1])
    limit = Limit(CALLS[0], SECONDS)
    found: dict[str, list[Taken]] = {runner.name: [] for runner in runners}
    with busy_core() if case.busy else ExitStack():
        for turn in range(plan.rounds):
            for place in range(len(runners)):
                number = (turn + place) % len(runners)
                runner = runners[number]
                if runner.name not in found:
                    continue
                seed = [case.row_bytes, case.rows, turn, number]
                taken = runner.take(Turn(case.rows, case.ids, calls, limit, case.gap, seed, check=turn == 0))
                if isinstance(taken, Taken):
                    found[runner.name].append(taken)
                else:
                    outcome.absent[f"{LABELS[runner.name]}, {_place(case)}"] = taken.reason
                    del found[runner.name]
    return [
        Series(case, name, np.concatenate([t.nanoseconds for t in taken]), taken[-1].detail)
        for name, taken in found.items()
    ]


def _place(case: Case) -> str:
    return f"{case.pages} pages, {case.row_bytes} bytes a row, {case.rows} rows"
