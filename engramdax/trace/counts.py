# SPDX-License-Identifier: Apache-2.0
"""Exact counts of row accesses in bounded memory, and the rows with the highest ones.

Every row of as many heads as the memory allows has a counter; the trace is hashed once for each such group
of heads. So the counts are exact whatever the memory; less of it costs more passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from engramdax._core import ffi, lib
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.ngram import Hasher
    from engramdax.trace.tokens import Trace

COUNTER_BYTES: Final = 4
KEY_BYTES: Final = 8
TOKENS_AT_ONCE: Final = 1 << 16
ROWS_AT_ONCE: Final = 1 << 22
HIGHEST_SINGLE_COUNT: Final = 1 << 16
"""Counts from here on are told apart by sorting alone: so many rows as have them always fit."""

BASE_BYTES: Final = 192 << 20
"""For the interpreter, a block of ids, and the pieces in which counters are looked through."""


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


def hot_rows(hasher: Hasher, layer: int, trace: Trace, *, most: int, memory: int) -> HotRows:
    """Count the reads of one layer's rows and give the `most` rows that are read most.

    layer: position in the layout. memory: bytes that the whole process may take while it counts. Raises
    ParameterError where that is less than one head needs, or the trace is too long to be counted exactly.
    """
    sizes, rows = hasher.layout.head_sizes(layer), hasher.layout.rows(layer)
    row_bits = (rows - 1).bit_length()
    # A token reads a row at most once, so no count is higher than the number of tokens.
    most_tokens = (1 << min(64 - row_bits, 8 * COUNTER_BYTES)) - 1
    if trace.tokens.size > most_tokens:
        raise ParameterError(
            f"a trace of {trace.tokens.size} tokens is too long to count exactly for a table of {rows} rows",
            remedy=f"give at most {most_tokens} tokens",
        )
    listed = min(most, rows, hasher.layout.heads * trace.tokens.size)
    spare = BASE_BYTES + trace.tokens.nbytes + KEY_BYTES * listed
    groups = head_groups(sizes, memory, spare)
    if len(groups) > 1:  # keys of earlier groups beside those of the next
        groups = head_groups(sizes, memory, spare + KEY_BYTES * listed)
    # The highest count and then the lowest row is the lowest key: (most_tokens - count) << row_bits | row.
    keys = np.empty(0, np.uint64)
    for first, last in groups:
        counters = _count(hasher, layer, trace, heads=(first, last))
        found = _highest(counters, most, first_row=sum(sizes[:first]), row_bits=row_bits, most_tokens=most_tokens)
        del counters
        keys = np.concatenate([keys, found]) if keys.size else found
        del found
        keys.sort()
        if keys.size > most:
            keys = keys[:most].copy()
    row_ids = (keys & np.uint64((1 << row_bits) - 1)).view(np.int64)
    keys >>= np.uint64(row_bits)
    np.subtract(np.uint64(most_tokens), keys, out=keys)
    return HotRows(row_ids, keys.view(np.int64), trace.reads(hasher.layout.heads))


def head_groups(sizes: tuple[int, ...], memory: int, spare: int) -> list[tuple[int, int]]:
    """Divide heads into runs whose counters fit into `memory` less `spare` bytes; give first and last + 1 of each."""
    bounds, taken, left = [0], 0, memory - spare
    for head, rows in enumerate(sizes):
        needed = rows * COUNTER_BYTES
        if needed > left:
            raise ParameterError(
                f"counting takes {spare >> 20} MiB and the counters of a head of {rows} rows {needed >> 20} MiB more, "
                f"the memory for both is {memory >> 20} MiB",
                remedy=f"give at least --memory {((max(sizes) * COUNTER_BYTES + spare) >> 20) + 1}M, or fewer --rows",
            )
        if taken + needed > left:
            bounds.append(head)
            taken = 0
        taken += needed
    return list(pairwise([*bounds, len(sizes)]))


def blocks(hasher: Hasher, layer: int, trace: Trace) -> Iterator[npt.NDArray[np.int64]]:
    """Give the layer's row ids of a trace, int64 [tokens, heads] at a time.

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


def _count(hasher: Hasher, layer: int, trace: Trace, *, heads: tuple[int, int]) -> npt.NDArray[np.uint32]:
    first, last = heads
    sizes = hasher.layout.head_sizes(layer)
    counters = np.zeros(sum(sizes[first:last]), np.uint32)
    for block in blocks(hasher, layer, trace):
        lib.ed_count(
            ffi.cast("int64_t *", block.ctypes.data + first * block.itemsize),
            block.shape[0],
            block.shape[1],
            last - first,
            sum(sizes[:first]),
            ffi.cast("uint32_t *", counters.ctypes.data),
        )
    return counters


def _highest(
    counters: npt.NDArray[np.uint32], most: int, *, first_row: int, row_bits: int, most_tokens: int
) -> npt.NDArray[np.uint64]:
    """Give the keys, in no order, of the `most` rows with the highest counts above zero, of few more where many tie."""
    histogram = np.zeros(HIGHEST_SINGLE_COUNT + 2, np.int64)  # the last stays 0: so high is no count here
    for at in range(0, counters.size, ROWS_AT_ONCE):
        piece = np.minimum(counters[at : at + ROWS_AT_ONCE], HIGHEST_SINGLE_COUNT)
        histogram += np.bincount(piece, minlength=histogram.size)
    histogram[0] = 0
    above = histogram[::-1].cumsum()[::-1]  # rows with at least so many
    # What fits for certain has at least `threshold`; of those with one less, `ties` fit still.
    threshold = min(int(np.flatnonzero(above <= most)[0]), HIGHEST_SINGLE_COUNT)
    threshold = max(threshold, 1)
    # None do where more than fit is taken, which is a few; the caller sorts and cuts.
    ties = max(min(most - int(above[threshold]), int(histogram[threshold - 1])), 0)
    keys = np.empty(int(above[threshold]) + ties, np.uint64)
    filled = 0
    for at in range(0, counters.size, ROWS_AT_ONCE):
        piece = counters[at : at + ROWS_AT_ONCE]
        parts = [np.flatnonzero(piece >= threshold)]
        if ties:
            parts.append(np.flatnonzero(piece == threshold - 1)[:ties])
            ties -= parts[1].size
        for rows in parts:
            part = keys[filled : filled + rows.size]
            np.subtract(np.uint64(most_tokens), piece[rows], out=part)
            part <<= np.uint64(row_bits)
            part |= (rows + (at + first_row)).view(np.uint64)
            filled += rows.size
    return keys
