# SPDX-License-Identifier: Apache-2.0
"""Small layouts, made-up traces with the skew of words, and their counts without anything clever."""

from __future__ import annotations

import numpy as np

from engramdax.ngram import Hasher, Layout
from engramdax.trace.tokens import Trace

VOCAB = 400
LAYOUT = Layout.make(layer_ids=[1, 3], max_ngram=3, heads_per_order=2, vocab_size=500, pad_id=0, compressed_vocab=VOCAB)


def words(count, seed=0):
    """Ids that are frequent as words are."""
    return np.minimum(np.random.default_rng(seed).zipf(1.3, count) - 1, VOCAB - 1)


def zipf_trace(count, seed=0, sequences=9):
    cuts = np.sort(np.random.default_rng(seed + 1).integers(0, count + 1, sequences - 1))
    return Trace(words(count, seed).astype(np.int32), np.array([0, *cuts, count]), compressed=True)


def exact_counts(trace, layer, layout=LAYOUT):
    ids = Hasher(layout)(trace.tokens, starts=trace.starts)[:, layer].reshape(-1)
    return np.bincount(ids[ids >= 0], minlength=layout.rows(layer))


def hottest(counts):
    """Rows that are read, by falling count and then ascending."""
    order = np.lexsort((np.arange(counts.size), -counts))
    return order[counts[order] > 0]
