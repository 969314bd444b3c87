# SPDX-License-Identifier: Apache-2.0
"""What a hot list serves: the share of reads that find their row among its first so many.

Both functions take lengths in ascending order, and give float64 [lengths, orders + 1]: the share of the reads
of each order, and of all last.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from engramdax.trace.counts import ROWS_AT_ONCE, blocks

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from engramdax.ngram import Hasher, Layout
    from engramdax.trace.counts import HotRows
    from engramdax.trace.tokens import Trace


def own_shares(layout: Layout, layer: int, hot: HotRows, lengths: Sequence[int]) -> npt.NDArray[np.float64]:
    """Give the shares of the trace that the list was made from."""
    firsts = np.array(layout.offsets[layer])[:: layout.heads_per_order]
    hits = np.zeros((len(lengths), firsts.size))
    for place, (begin, end) in enumerate(pairwise([0, *lengths])):
        for at in range(begin, end, ROWS_AT_ONCE):
            chosen = slice(at, min(at + ROWS_AT_ONCE, end))
            orders = np.searchsorted(firsts, hot.row_ids[chosen], side="right") - 1
            hits[place] += np.bincount(orders, weights=hot.counts[chosen], minlength=firsts.size)
    return _shares(hits, hot.accesses)


def shares_of(
    hasher: Hasher, layer: int, trace: Trace, row_ids: npt.NDArray[np.int64], lengths: Sequence[int]
) -> npt.NDArray[np.float64]:
    """Give the shares of another trace. Takes a byte for each row of the table; at most 255 lengths."""
    layout = hasher.layout
    orders, none = len(layout.orders), len(lengths)
    # For each row, the place of the shortest length that reaches it.
    reached = np.full(layout.rows(layer), none, np.uint8)
    for place, (begin, end) in enumerate(pairwise([0, *lengths])):
        reached[row_ids[begin:end]] = place
    hits = np.zeros(orders * (none + 1))
    column_order = np.repeat(np.arange(orders), layout.heads_per_order) * (none + 1)
    for block in blocks(hasher, layer, trace):
        places = np.where(block >= 0, reached[block], none) + column_order
        hits += np.bincount(places.reshape(-1), minlength=hits.size)
    return _shares(hits.reshape(orders, -1)[:, :none].T, trace.reads(layout.heads))


def _shares(hits: npt.NDArray[np.float64], accesses: int) -> npt.NDArray[np.float64]:
    """Give shares from the reads that each further piece of the list serves, [lengths, orders]."""
    hits = hits.cumsum(axis=0)
    each = max(accesses // hits.shape[1], 1)  # a token reads as many rows of one order as of another
    return np.column_stack([hits / each, hits.sum(axis=1) / (each * hits.shape[1])])
