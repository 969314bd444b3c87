# SPDX-License-Identifier: Apache-2.0
"""Sequences that come in parts: history, drafts, blocked tokens, padding, threads, memory that is given."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
from plain_rule import plain_rows

from engramdax.errors import ParameterError
from engramdax.ngram import Hasher, Layout

VOCAB = 300
LAYOUT = Layout.make(
    layer_ids=[1, 14],
    max_ngram=4,
    heads_per_order=8,
    vocab_size=16_000_000,
    pad_id=2,
    compressed_vocab=200,
    token_map=np.arange(VOCAB) % 200,
)
REACH = LAYOUT.max_ngram - 1


@pytest.fixture
def hasher():
    return Hasher(LAYOUT)


def sequence(count, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, count)


def history_before(tokens, at, blocked=None):
    """What a server keeps of a sequence: the ids before `at`, newest first, -1 for none or blocked."""
    kept = np.full(REACH, -1)
    for back in range(1, REACH + 1):
        if back <= at and not (blocked is not None and blocked[at - back]):
            kept[back - 1] = tokens[at - back]
    return kept


@pytest.mark.parametrize("with_blocked", [False, True])
def test_history_split_at_every_position_gives_the_ids_of_the_whole(hasher, with_blocked):
    tokens = sequence(90)
    blocked = np.random.default_rng(1).random(90) < 0.15 if with_blocked else None
    whole = hasher(tokens, blocked)
    for at in range(91):
        before = hasher(tokens[:at], None if blocked is None else blocked[:at])
        after = hasher(
            tokens[at:], None if blocked is None else blocked[at:], history=[history_before(tokens, at, blocked)]
        )
        np.testing.assert_array_equal(np.concatenate([before, after]), whole)


def test_a_sequence_decoded_token_by_token_gives_the_ids_of_the_whole(hasher):
    tokens = sequence(40)
    steps = [hasher(tokens[at : at + 1], history=[history_before(tokens, at)]) for at in range(40)]
    np.testing.assert_array_equal(np.concatenate(steps), hasher(tokens))


def test_sequences_of_a_batch_do_not_see_each_other(hasher):
    tokens, starts = sequence(200), np.array([0, 1, 1, 64, 66, 130, 200])
    rows = hasher(tokens, starts=starts)
    for start, end in pairwise(starts):
        np.testing.assert_array_equal(rows[start:end], hasher(tokens[start:end]))


def test_a_decode_batch_equals_its_sequences_one_by_one(hasher):
    sequences = [sequence(30, seed) for seed in range(70)]
    places = np.random.default_rng(5).integers(0, 30, 70)
    rows = hasher(
        [s[at] for s, at in zip(sequences, places, strict=True)],
        starts=np.arange(71),
        history=np.array([history_before(s, at) for s, at in zip(sequences, places, strict=True)]),
    )
    for row, s, at in zip(rows, sequences, places, strict=True):
        np.testing.assert_array_equal(row, hasher(s)[at])


def test_a_draft_is_undone_by_the_history_before_it(hasher):
    tokens, draft = sequence(20), sequence(5, 9)
    history = [history_before(tokens, 12)]
    drafted = hasher(draft, history=history)
    np.testing.assert_array_equal(drafted, hasher(np.concatenate([tokens[:12], draft]))[12:])
    # Two of the draft's tokens are kept, the rest is rolled back.
    kept = np.concatenate([tokens[:12], draft[:2]])
    after = hasher(tokens[12:], history=[history_before(kept, 14)])
    np.testing.assert_array_equal(after, hasher(np.concatenate([kept, tokens[12:]]))[14:])
    # All of it is.
    np.testing.assert_array_equal(hasher(tokens[12:], history=history), hasher(tokens)[12:])


def test_nothing_looks_past_a_hidden_token_in_the_history(hasher):
    hidden = hasher([5, 6], history=[[7, -1, 9]])
    np.testing.assert_array_equal(hidden, hasher([7, 5, 6])[1:])
    np.testing.assert_array_equal(hasher([5, 6], history=[[-1, 8, 9]]), hasher([5, 6]))


def test_padding_gets_no_ids_and_nothing_looks_past_it(hasher):
    tokens = sequence(150)
    tokens[[3, 63, 64, 100]] = -1
    rows = hasher(tokens)
    assert (rows[[3, 63, 64, 100]] == -1).all()
    np.testing.assert_array_equal(rows[4:63], hasher(tokens[4:63]))
    np.testing.assert_array_equal(rows[101:], hasher(tokens[101:]))


def test_padding_behind_the_last_sequence_may_hold_anything(hasher):
    tokens = sequence(150)
    tokens[70:] = 2**40
    rows = hasher(tokens, starts=[0, 30, 70])
    assert (rows[70:] == -1).all()
    np.testing.assert_array_equal(rows[30:70], hasher(tokens[30:70]))
    assert (hasher(tokens, starts=[0, 0]) == -1).all()


def test_blocked_tokens_get_the_ids_of_pads(hasher):
    tokens = sequence(10)
    blocked = np.zeros(10, bool)
    blocked[4] = True
    rows = hasher(tokens, blocked)
    assert (rows >= 0).all()
    assert rows[4].tolist() == plain_rows(LAYOUT, [2])[0]  # raw 2 is the pad, compressed
    np.testing.assert_array_equal(rows[5:], hasher(tokens[5:]))


@pytest.mark.parametrize("count", [1, 63, 64, 65, 1000, 9000])
def test_threads_share_a_batch_without_a_trace(hasher, count):
    tokens = sequence(count)
    starts = np.unique([0, *np.random.default_rng(2).integers(0, count + 1, 9), count])
    history = np.random.default_rng(3).integers(-1, VOCAB, (starts.size - 1, REACH))
    one = hasher(tokens, starts=starts, history=history, threads=1)
    for threads in (None, 2, 3, 4):
        np.testing.assert_array_equal(hasher(tokens, starts=starts, history=history, threads=threads), one)


@pytest.mark.parametrize("form", [{}, {"starts": [0, 3, 2000]}])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_into_memory_that_is_given_nothing_of_that_size_is_allocated(hasher, form, dtype):
    tokens = sequence(2000).astype(dtype)
    expected = hasher(tokens, **form)
    for out_type in (np.int32, np.int64):
        out = np.zeros((2000, 2, 24), out_type)
        tracemalloc.start()
        result = hasher(tokens, out=out, **form)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert result is out
        assert peak < out.nbytes // 10
        np.testing.assert_array_equal(out, expected)


def test_ids_are_int64_where_asked_or_needed(hasher):
    assert hasher([1]).dtype == np.int32
    assert hasher([1], dtype=np.int64).dtype == np.int64
    large = Hasher(
        Layout.make(layer_ids=[1], max_ngram=2, heads_per_order=2, vocab_size=2**31, pad_id=0, compressed_vocab=9)
    )
    assert large([1]).dtype == np.int64
    for out in ({"dtype": np.int32}, {"out": np.empty((1, 1, 2), np.int32)}):
        with pytest.raises(ParameterError, match="beyond int32"):
            large(np.array([1]), **out)


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty((3, 2, 24), np.float32), "row ids as float32; expected int32 or int64"),
        (np.empty((4, 2, 24), np.int32), r"out is \[4, 2, 24\]; expected .*\[3, 2, 24\]"),
        (np.empty((3, 48), np.int32), r"out is \[3, 48\]"),
        (np.empty((3, 2, 48), np.int32)[:, :, ::2], "C-contiguous"),
        (np.broadcast_to(np.int64(0), (3, 2, 24)), "writable"),
        ([0] * 3, "row ids as list"),
    ],
)
def test_memory_that_ids_do_not_go_into_is_refused(hasher, out, message):
    for tokens in ([1, 2, 3], np.array([1, 2, 3])):
        with pytest.raises(ParameterError, match=message):
            hasher(tokens, out=out)


def test_tokens_with_gaps_between_them_go_into_given_memory_too(hasher):
    out = np.empty((50, 2, 24), np.int32)
    tokens = sequence(100)
    np.testing.assert_array_equal(hasher(tokens[::2], out=out), hasher(tokens[::2].copy()))


def test_one_layer_alone_has_the_ids_of_that_layer(hasher):
    tokens = sequence(100)
    for layer in (0, 1):
        ids = hasher.layer_ids(tokens, layer, starts=[0, 60, 90])
        assert ids.dtype == np.int64
        np.testing.assert_array_equal(ids, hasher(tokens, starts=[0, 60, 90])[:, layer])
