# SPDX-License-Identifier: Apache-2.0
"""The C core against the rule in plain Python, on random layouts and batches."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_rule import plain_primes, plain_rows
from random_batches import random_batch, random_layout

from engramdax.ngram import Hasher, Layout


def check_random_batch(seed):
    """One random case, once with a new result and once into memory that is given."""
    chance = np.random.default_rng(seed)
    layout = random_layout(chance)
    batch = random_batch(chance, layout)
    hasher = Hasher(layout)
    expected = plain_rows(layout, batch.tokens, **batch.arguments)
    rows = hasher(batch.tokens, **batch.arguments)
    assert rows.shape == (batch.tokens.size, len(layout.layer_ids), layout.heads)
    assert rows.tolist() == expected
    out = np.full(rows.shape, 7, chance.choice(["i4", "i8"]))
    assert hasher(batch.tokens, **batch.arguments, out=out, threads=int(chance.integers(1, 5))) is out
    assert out.tolist() == expected


@pytest.mark.parametrize("seed", range(300))
def test_any_batch_is_hashed_as_the_rule_says(seed):
    check_random_batch(seed)


@pytest.mark.slow
@pytest.mark.parametrize("hundred", range(100))
def test_ten_thousand_batches_are_hashed_as_the_rule_says(hundred):
    for seed in range(1000 + 100 * hundred, 1100 + 100 * hundred):
        check_random_batch(seed)


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


@pytest.mark.parametrize("orders", [(1,), (1, 4), (3,), (2, 16)])
def test_orders_by_hand_may_leave_lengths_out(orders):
    layout = Layout(
        layer_ids=(3,),
        orders=orders,
        heads_per_order=2,
        primes=((11, 13, 17, 19)[: 2 * len(orders)],),
        multipliers=(tuple(range(3, 3 + 2 * orders[-1], 2)),),
        pad_id=1,
        compressed_vocab=8,
    )
    tokens = [0, 7, 3, 2, 2, 6]
    assert Hasher(layout)(tokens).tolist() == plain_rows(layout, tokens)


def test_many_heads_and_layers_in_one_call():
    layout = Layout.make(
        layer_ids=range(5), max_ngram=3, heads_per_order=67, vocab_size=9000, pad_id=0, compressed_vocab=1000
    )
    tokens = np.random.default_rng(1).integers(0, 1000, 70)
    assert Hasher(layout)(tokens).tolist() == plain_rows(layout, tokens)


def test_a_sequence_shorter_than_the_longest_gram_sees_pads_before_its_start():
    layout = Layout.make(layer_ids=[1], max_ngram=4, heads_per_order=1, vocab_size=100, pad_id=5, compressed_vocab=10)
    hasher = Hasher(layout)
    np.testing.assert_array_equal(hasher([7])[0], hasher([5, 5, 5, 7])[3])


def test_no_tokens_give_no_rows():
    layout = Layout.make(
        layer_ids=[1, 2], max_ngram=3, heads_per_order=2, vocab_size=100, pad_id=0, compressed_vocab=10
    )
    hasher = Hasher(layout)
    assert hasher([]).shape == (0, 2, 4)
    assert hasher([], [], starts=[0, 0, 0], history=np.full((2, 2), 3)).shape == (0, 2, 4)
    out = np.empty((0, 2, 4), np.int32)
    assert hasher(np.empty(0, np.int32), out=out) is out


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
