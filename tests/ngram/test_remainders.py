# SPDX-License-Identifier: Apache-2.0
"""Remainders where an estimated quotient goes wrong first, by every instruction set, against Python's integers."""

from __future__ import annotations

import numpy as np
import pytest
from plain_rule import plain_rows
from random_batches import random_batch, random_layout

from engramdax._core import ffi, lib
from engramdax.ngram import Hasher, Layout

VOCAB = 2**31 - 1
PRIMES = [
    2, 3, 8191, 8192, 8193, 8209, 65_537, 999_983, 16_000_057, 2**31 - 1, 2**31, 2**32 + 15, 2**40 + 15, 2**50,
    2**52 + 21, 2**53 - 1, 2**61 - 1, 2**62,
]  # fmt: skip


def sets():
    """Instruction sets that this CPU has."""
    layout = Layout.make(layer_ids=[1], max_ngram=2, heads_per_order=1, vocab_size=9, pad_id=0, compressed_vocab=3)
    return [name for name in ("plain", "avx2", "avx512") if hash_by(name, Hasher(layout), [1]) is not None]


def hash_by(name, hasher, tokens, out=np.int64, **arguments):
    """Row ids by one instruction set, None where it is missing."""
    batch, keep = hasher.batch(tokens, *(arguments.get(key) for key in ("blocked", "starts", "history")))
    layout = hasher.layout
    rows = np.full((keep["tokens"].size, len(layout.layer_ids), layout.heads), 7, out)
    done = lib.ed_hash_bare(hasher.core, batch, ffi.from_buffer(rows), rows.itemsize == 8, name.encode())
    assert done in (-1, lib.ED_NO_SET)
    return None if done == lib.ED_NO_SET else rows


def test_an_unknown_instruction_set_is_not_there():
    layout = Layout.make(layer_ids=[1], max_ngram=2, heads_per_order=1, vocab_size=9, pad_id=0, compressed_vocab=3)
    assert hash_by("plain", Hasher(layout), [1]) is not None
    assert hash_by("none", Hasher(layout), [1]) is None


def mixes_near(prime):
    """Mixes up to 2**63 whose remainder is 0, 1, p - 1, or whose quotient lies half-way between two integers."""
    chance = np.random.default_rng(prime % 1000)
    largest = ((VOCAB - 1) << 32 | (2**31 - 1)) // prime
    quotients = {*range(4), largest - 1, *(int(chance.integers(0, largest + 1)) for _ in range(300))}
    quotients |= {1 << bit for bit in range(63)} | {(1 << bit) - 1 for bit in range(63)}
    rests = {0, 1, prime - 1, prime // 2, prime // 2 + 1}
    return [q * prime + rest for q in quotients for rest in rests if 0 <= q <= largest]


def reached(mixes):
    """Those that two tokens mix to with multipliers 2**32 and 1."""
    return [m for m in mixes if m < 2**63 and not m >> 31 & 1 and m >> 32 < VOCAB and m & 0x7FFFFFFF < VOCAB]


@pytest.mark.parametrize("name", sets())
@pytest.mark.parametrize("prime", PRIMES)
def test_remainders_at_their_edges(name, prime):
    layout = Layout(
        layer_ids=(0,),
        orders=(2,),
        heads_per_order=1,
        primes=((prime,),),
        multipliers=((2**32, 1),),
        pad_id=0,
        compressed_vocab=VOCAB,
    )
    anywhere = np.random.default_rng(0).integers(0, 2**63, 400).tolist()
    mixes = reached(mixes_near(prime) + anywhere)
    assert len(mixes) > 100
    assert max(mixes) > 2**62
    tokens = np.array([[m & 0x7FFFFFFF, m >> 32] for m in mixes]).reshape(-1)
    rows = hash_by(name, Hasher(layout), tokens, starts=np.arange(0, tokens.size + 1, 2))
    assert rows[1::2].reshape(-1).tolist() == [m % prime for m in mixes]


@pytest.mark.parametrize("name", sets())
@pytest.mark.parametrize("vocab", [2, 3, 99_092, 2**31 - 1])
def test_products_at_the_bound_of_int64(name, vocab):
    bound = (2**63 - 1) // (vocab - 1)
    layout = Layout(
        layer_ids=(0, 1),
        orders=(2, 3, 4),
        heads_per_order=3,
        primes=((16_000_057, 16_000_093, 8209) * 3, (2**40 + 15, 8219, 9001) * 3),
        multipliers=((bound, bound - 1, bound, 1), (bound, 1, bound, bound)),
        pad_id=vocab - 1,
        compressed_vocab=vocab,
    )
    tokens = np.random.default_rng(0).choice([0, 1, vocab - 2, vocab - 1], 100)
    assert hash_by(name, Hasher(layout), tokens).tolist() == plain_rows(layout, tokens)


@pytest.mark.parametrize("name", sets())
def test_the_largest_compressed_vocabulary_mixes_without_overflow(name):
    layout = Layout.make(
        layer_ids=[1], max_ngram=4, heads_per_order=8, vocab_size=2**40, pad_id=2, compressed_vocab=2**31 - 1
    )
    tokens = [2**31 - 2] * 5
    assert hash_by(name, Hasher(layout), tokens).tolist() == plain_rows(layout, tokens)


@pytest.mark.parametrize("name", sets())
def test_every_instruction_set_gives_the_same(name):
    for seed in range(150):
        chance = np.random.default_rng(seed)
        layout = random_layout(chance)
        batch = random_batch(chance, layout)
        hasher = Hasher(layout)
        for out in (np.int32, np.int64):
            rows = hash_by(name, hasher, batch.tokens, out, **batch.arguments)
            np.testing.assert_array_equal(rows, hasher(batch.tokens, **batch.arguments))
