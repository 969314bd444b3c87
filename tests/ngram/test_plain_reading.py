# SPDX-License-Identifier: Apache-2.0
"""The vectorised rule against a slow one that is written straight from its description."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engramdax.ngram import Hasher, Layout


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


def plain_rows(layout, tokens, blocked):
    compressed = tokens if layout.token_map is None else [int(layout.token_map[t]) for t in tokens]
    rows = []
    for i in range(len(tokens)):
        seen, stopped = [], False
        for back in range(max(layout.orders)):
            stopped = stopped or i - back < 0 or blocked[i - back]
            seen.append(layout.pad_id if stopped else compressed[i - back])
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
        rows.append(per_layer)
    return rows


@st.composite
def layouts(draw):
    vocab = draw(st.integers(1, 40))
    max_ngram = draw(st.integers(2, 5))
    raw = draw(st.none() | st.lists(st.integers(0, vocab - 1), max_size=20))
    token_map = None if raw is None else draw(st.permutations([*range(vocab), *raw]))
    starts = draw(st.integers(2, 200) | st.lists(st.integers(2, 200), min_size=max_ngram - 1, max_size=max_ngram - 1))
    return Layout.make(
        layer_ids=draw(st.lists(st.integers(0, 60), min_size=1, max_size=3, unique=True)),
        max_ngram=max_ngram,
        heads_per_order=draw(st.integers(1, 4)),
        vocab_size=starts,
        pad_id=draw(st.integers(0, vocab - 1)),
        compressed_vocab=vocab,
        seed=draw(st.integers(0, 2**40)),
        token_map=token_map,
    )


@given(layouts(), st.data())
def test_any_layout_any_tokens_any_blocked_spans(layout, data):
    tokens = data.draw(st.lists(st.integers(0, layout.vocab - 1), max_size=12))
    blocked = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    rows = Hasher(layout)(tokens, blocked)
    assert rows.shape == (len(tokens), len(layout.layer_ids), layout.heads)
    assert rows.tolist() == plain_rows(layout, tokens, blocked)


@given(
    st.integers(1, 3),
    st.lists(st.integers(2, 3000), min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_primes_are_those_of_a_plain_search(layers, starts, heads):
    layout = Layout.make(
        layer_ids=range(layers),
        max_ngram=len(starts) + 1,
        heads_per_order=heads,
        vocab_size=starts,
        pad_id=0,
        compressed_vocab=10,
    )
    assert layout.primes == plain_primes(layers, starts, heads)


def test_orders_by_hand_may_leave_lengths_out():
    layout = Layout(
        layer_ids=(3,),
        orders=(1, 4),
        heads_per_order=2,
        primes=((11, 13, 17, 19),),
        multipliers=((3, 5, 7, 9),),
        pad_id=1,
        compressed_vocab=8,
    )
    tokens = [0, 7, 3, 2, 2, 6]
    blocked = [False] * 6
    assert Hasher(layout)(tokens).tolist() == plain_rows(layout, tokens, blocked)


def test_the_largest_compressed_vocabulary_mixes_without_overflow():
    layout = Layout.make(
        layer_ids=[1],
        max_ngram=4,
        heads_per_order=8,
        vocab_size=2**40,
        pad_id=2,
        compressed_vocab=2**31 - 1,
    )
    tokens = [2**31 - 2] * 5
    assert Hasher(layout)(tokens).tolist() == plain_rows(layout, tokens, [False] * 5)


def test_a_sequence_shorter_than_the_longest_gram_sees_pads_before_its_start():
    layout = Layout.make(layer_ids=[1], max_ngram=4, heads_per_order=1, vocab_size=100, pad_id=5, compressed_vocab=10)
    hasher = Hasher(layout)
    np.testing.assert_array_equal(hasher([7])[0], hasher([5, 5, 5, 7])[3])


def test_no_tokens_give_no_rows():
    layout = Layout.make(
        layer_ids=[1, 2], max_ngram=3, heads_per_order=2, vocab_size=100, pad_id=0, compressed_vocab=10
    )
    assert Hasher(layout)([]).shape == (0, 2, 4)


def test_each_integer_dtype_gives_the_same_rows():
    layout = Layout.make(
        layer_ids=[1],
        max_ngram=3,
        heads_per_order=2,
        vocab_size=100,
        pad_id=0,
        compressed_vocab=100,
        token_map=np.arange(100),
    )
    tokens = np.arange(100)[::3]
    expected = Hasher(layout)(tokens)
    for dtype in (np.int8, np.uint8, np.int32, np.uint64, ">i4"):
        np.testing.assert_array_equal(Hasher(layout)(tokens.astype(dtype)), expected)
