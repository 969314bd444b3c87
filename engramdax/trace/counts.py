# SPDX-License-Identifier: Apache-2.0
"""Exact counts of row accesses in bounded memory, and the rows with the highest ones.

Every row of as many heads as the memory allows has a counter; the trace is hashed once for each such group
of heads. So the counts are exact whatever the memory; less of it costs more passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engramdax._core import ffi, lib
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from engramdax.ngram import Hasher
    from engramdax.trace.tokens import Trace

COUNTER_BYTES: Final = 4
TOKENS_AT_ONCE: Final = 1 << 16
ROWS_AT_ONCE: Final = 1 << 24
HIGHEST_SINGLE_COUNT: Final = 1 << 20
"""Counts from here on are told apart by sorting alone: so many rows as have them always fit."""

SPARE_BYTES: Final = 400 << 20
"""For everything but counters: the interpreter, a block of ids, candidates while they are sorted."""


@dataclass(frozen=True, slots=True)
class HotRows:
    """The rows of a layer that a trace reads most.

    row_ids: int64 [n] by falling count, then ascending; counts: int64 [n]; accesses: all reads of the trace.
    """

    row_ids: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    accesses: int

    def share(self, rows: int) -> float:
        """Give the share of all reads that the first `rows` of the list serve."""
        return float(self.counts[:rows].sum() / self.accesses) if self.accesses else 0.0


def hot_rows(
    hasher: Hasher,
    layer: int,
    trace: Trace,
    *,
    most: int,
    memory: int,
    progress: Callable[[int, int], None] | None = None,
) -> HotRows:
    """Count the reads of one layer's rows and give the `most` rows that are read most.

    layer: position in the layout. memory: bytes that the whole process may take; at least what one head needs,
    else ParameterError. `progress` gets tokens done and all, over all passes.
    """
    sizes = hasher.layout.head_sizes(layer)
    groups = head_groups(sizes, memory - SPARE_BYTES)
    ids: list[npt.NDArray[np.int64]] = []
    counts: list[npt.NDArray[np.int64]] = []
    accesses = 0
    for number, (first, last) in enumerate(groups):
        pass_progress = None
        if progress:
            before, whole = number * trace.tokens.size, len(groups) * trace.tokens.size
            pass_progress = partial(_shifted, progress, before, whole)
        counters, reads = _count(hasher, layer, trace, heads=(first, last), progress=pass_progress)
        accesses += reads
        rows, found = _highest(counters, most)
        ids.append(rows + sum(sizes[:first]))
        counts.append(found)
        del counters
    row_ids, all_counts = np.concatenate(ids), np.concatenate(counts)
    order = np.lexsort((row_ids, -all_counts))[:most]
    return HotRows(row_ids[order], all_counts[order], accesses)


def head_groups(sizes: tuple[int, ...], memory: int) -> list[tuple[int, int]]:
    """Divide heads into runs whose counters fit into `memory` bytes; give first and last + 1 of each."""
    bounds, taken = [0], 0
    for head, rows in enumerate(sizes):
        needed = rows * COUNTER_BYTES
        if needed > memory:
            raise ParameterError(
                f"the counters of one head of {rows} rows take {needed} bytes, {max(memory, 0)} are left for them",
                remedy=f"give at least --memory {(needed + SPARE_BYTES) >> 20}M",
            )
        if taken + needed > memory:
            bounds.append(head)
            taken = 0
        taken += needed
    return list(pairwise([*bounds, len(sizes)]))


def served(hasher: Hasher, layer: int, trace: Trace, row_ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Give the share of another trace's reads that a list of rows serves: [orders] of each order, and of all last."""
    layout = hasher.layout
    wanted = np.zeros(layout.rows(layer), np.bool_)
    wanted[row_ids] = True
    hits = np.zeros(layout.heads, np.int64)
    reads = np.zeros(layout.heads, np.int64)
    for block in _blocks(hasher, layer, trace):
        real = block >= 0
        hits += (wanted[np.where(real, block, 0)] & real).sum(axis=0)
        reads += real.sum(axis=0)
    orders = len(layout.orders)
    by_order = [hits.reshape(orders, -1).sum(axis=1), reads.reshape(orders, -1).sum(axis=1)]
    return np.append(by_order[0] / np.maximum(by_order[1], 1), hits.sum() / max(int(reads.sum()), 1))


def _shifted(progress: Callable[[int, int], None], before: int, whole: int, done: int) -> None:
    progress(before + done, whole)


def _count(
    hasher: Hasher, layer: int, trace: Trace, *, heads: tuple[int, int], progress: Callable[[int], None] | None
) -> tuple[npt.NDArray[np.uint32], int]:
    first, last = heads
    sizes = hasher.layout.head_sizes(layer)
    first_row = sum(sizes[:first])
    counters = np.zeros(sum(sizes[first:last]), np.uint32)
    done = reads = 0
    for block in _blocks(hasher, layer, trace):
        lib.ed_count(
            ffi.cast("int64_t *", block.ctypes.data + first * block.itemsize),
            block.shape[0],
            block.shape[1],
            last - first,
            first_row,
            ffi.cast("uint32_t *", counters.ctypes.data),
        )
        done += block.shape[0]
        reads += int((block[:, first:last] >= 0).sum())
        if progress:
            progress(done)
    return counters, reads


def _blocks(hasher: Hasher, layer: int, trace: Trace) -> Iterator[npt.NDArray[np.int64]]:
    """Give the layer's row ids of the trace, int64 [tokens, heads] at a time.

    A block begins in mid-sequence with the history that the sequence has there.
    """
    tokens, reach = trace.tokens, hasher.layout.max_ngram - 1
    for begin in range(0, tokens.size, TOKENS_AT_ONCE):
        end = min(begin + TOKENS_AT_ONCE, tokens.size)
        inside = trace.starts[(trace.starts > begin) & (trace.starts < end)]
        starts = np.concatenate([[begin], inside, [end]])
        own = int(trace.starts[np.searchsorted(trace.starts, begin, side="right") - 1])
        history = np.full((starts.size - 1, reach), -1, np.int64)
        seen = tokens[max(own, begin - reach) : begin][::-1]
        history[0, : seen.size] = seen
        yield hasher.layer_ids(tokens[begin:end], layer, starts=starts - begin, history=history)


def _highest(counters: npt.NDArray[np.uint32], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give the rows with the highest counts above zero, `most` of them, and the counts; in no order."""
    histogram = np.zeros(HIGHEST_SINGLE_COUNT + 2, np.int64)  # the last stays 0: so high is no count here
    for at in range(0, counters.size, ROWS_AT_ONCE):
        piece = np.minimum(counters[at : at + ROWS_AT_ONCE], HIGHEST_SINGLE_COUNT)
        histogram += np.bincount(piece, minlength=histogram.size)
    histogram[0] = 0
    above = histogram[::-1].cumsum()[::-1]  # rows with at least so many
    fitting = np.flatnonzero(above <= most)
    threshold = int(fitting[0])
    left = most - int(above[threshold])  # rows of the next lower count that still fit
    if threshold > HIGHEST_SINGLE_COUNT:
        threshold, left = HIGHEST_SINGLE_COUNT, 0  # more than fit, and few; the caller sorts and cuts
    rows: list[npt.NDArray[Any]] = []
    for at in range(0, counters.size, ROWS_AT_ONCE):
        piece = counters[at : at + ROWS_AT_ONCE]
        found = np.flatnonzero(piece >= threshold) if threshold else np.flatnonzero(piece)
        rows.append(found + at)
        if threshold > 1 and left:
            ties = np.flatnonzero(piece == threshold - 1)[:left]
            left -= ties.size
            rows.append(ties + at)
    chosen = np.concatenate(rows).astype(np.int64) if rows else np.empty(0, np.int64)
    return chosen, counters[chosen].astype(np.int64)
