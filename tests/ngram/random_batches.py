# SPDX-License-Identifier: Apache-2.0
"""Random layouts and batches: every form that a call may take, small enough for plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engramdax.ngram import Layout


@dataclass
class Batch:
    tokens: np.ndarray[Any, Any]
    arguments: dict[str, Any]


def random_layout(chance, heads=(1, 2, 3, 5, 7, 8, 9, 16, 17)):
    max_ngram = int(chance.choice([2, 2, 3, 4, 4, 5, 16]))
    vocab = int(chance.choice([1, 2, 40, 500]))
    token_map = None
    if chance.random() < 0.5:
        token_map = chance.permutation(np.concatenate([np.arange(vocab), chance.integers(0, vocab, 20)]))
    return Layout.make(
        layer_ids=np.flatnonzero(chance.random(20) < 0.1).tolist() or [1],
        max_ngram=max_ngram,
        heads_per_order=int(chance.choice(heads)) if max_ngram < 16 else 2,
        # Around 8,192 the remainder is found in another way.
        vocab_size=int(chance.choice([2, 50, 8150, 8192, 20_000, 16_000_000])),
        pad_id=int(chance.integers(vocab)),
        compressed_vocab=vocab,
        seed=int(chance.integers(1 << 40)),
        token_map=token_map,
    )


def random_batch(chance, layout):
    count = int(chance.choice([0, 1, 2, 7, 40, 63, 64, 65, 130], p=[0.1, 0.1, 0.1, 0.3, 0.2, 0.05, 0.05, 0.05, 0.05]))
    if layout.max_ngram == 16 or layout.heads * len(layout.layer_ids) > 100:
        count = min(count, 20)
    tokens = chance.integers(0, layout.vocab, count)
    arguments = {}
    if chance.random() < 0.3:
        tokens[chance.random(count) < 0.2] = -1
    if chance.random() < 0.7:
        sequences = int(chance.integers(1, 6))
        end = count if chance.random() < 0.5 else int(chance.integers(count + 1))
        starts = np.sort(chance.integers(0, end + 1, sequences + 1))  # equal ones: empty sequences
        starts[0], starts[-1] = 0, end
        arguments["starts"] = starts
    else:
        sequences = 1
    if chance.random() < 0.5:
        arguments["blocked"] = chance.random(count) < 0.2
    if chance.random() < 0.6:
        history = chance.integers(0, layout.vocab, (sequences, layout.max_ngram - 1))
        history[chance.random(history.shape) < 0.2] = -1
        arguments["history"] = history.astype(chance.choice(["i4", "i8"]))
    return Batch(tokens.astype(chance.choice(["i4", "i8"])), arguments)
