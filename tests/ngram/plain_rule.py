# SPDX-License-Identifier: Apache-2.0
"""The addressing rule in plain Python integers, token by token, as it is described."""

from __future__ import annotations

import math
from itertools import pairwise


def plain_primes(layers, starts, heads):
    used, primes = set(), []
    for _ in range(layers):
        sizes = []
        for start in starts:
            current = start - 1
            for _ in range(heads):
                current += 1
                while current in used or any(current % d == 0 for d in range(2, math.isqrt(current) + 1)):
                    current += 1
                used.add(current)
                sizes.append(current)
        primes.append(tuple(sizes))
    return tuple(primes)


def plain_ids(layout, seen):
    """Row ids, [layers][heads], of one token that sees these compressed ids, itself first."""
    per_layer = []
    for sizes, multipliers in zip(layout.primes, layout.multipliers, strict=True):
        ids, first = [], 0
        for column, size in enumerate(sizes):
            mix = 0
            for back in range(layout.orders[column // layout.heads_per_order]):
                mix ^= seen[back] * multipliers[back]
            ids.append(first + mix % size)
            first += size
        per_layer.append(ids)
    return per_layer


def plain_rows(layout, tokens, blocked=None, starts=None, history=None):
    """Row ids of a batch, [T][layers][heads]; -1 for padding."""
    starts = [0, len(tokens)] if starts is None else starts
    padding = [[-1] * layout.heads for _ in layout.layer_ids]
    rows = [padding] * len(tokens)
    for s, (start, end) in enumerate(pairwise(starts)):
        before = [-1] * (layout.max_ngram - 1) if history is None else [int(t) for t in history[s]]
        # Oldest first; None for what no n-gram reaches into or across.
        line = [None if t == -1 else t for t in reversed(before)]
        for i in range(start, end):
            hidden = tokens[i] == -1 or (blocked is not None and blocked[i])
            line.append(None if hidden else int(tokens[i]))
            seen, stopped = [], False
            for back in range(layout.max_ngram):
                token = line[-1 - back] if back < len(line) else None
                stopped = stopped or token is None
                compressed = token if stopped or layout.token_map is None else int(layout.token_map[token])
                seen.append(layout.pad_id if stopped else compressed)
            if tokens[i] != -1:
                rows[i] = plain_ids(layout, seen)
    return rows
