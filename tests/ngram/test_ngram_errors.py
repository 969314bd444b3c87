# SPDX-License-Identifier: Apache-2.0
"""What a wrong configuration, token map or sequence is told."""

from __future__ import annotations

import numpy as np
import pytest

from engramdax.errors import ParameterError
from engramdax.ngram import Hasher, Layout

CONFIG = {
    "engram_layer_ids": [1, 3],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 2,
    "engram_vocab_size": [10, 20],
    "engram_num_embeddings": [11 + 13 + 23 + 29, 17 + 19 + 31 + 37],
    "engram_pad_token_id": 4,
    "engram_compressed_vocab_size": 3,
}
TOKEN_MAP = np.array([0, 1, 1, 0, 2, 1])
BY_HAND = {
    "layer_ids": (1,),
    "orders": (2, 3),
    "heads_per_order": 1,
    "primes": ((11, 13),),
    "multipliers": ((1, 3, 5),),
    "pad_id": 0,
    "compressed_vocab": 3,
}


@pytest.fixture
def hasher():
    return Hasher(Layout.from_config(CONFIG, token_map=TOKEN_MAP))


def test_the_pad_token_of_a_config_is_compressed():
    assert Layout.from_config(CONFIG, token_map=TOKEN_MAP).pad_id == 2


def test_a_config_without_a_token_map_names_compressed_ids():
    layout = Layout.from_config(CONFIG | {"engram_pad_token_id": 1}, token_map=None)
    assert (layout.pad_id, layout.vocab) == (1, 3)


def test_the_fields_are_found_in_text_config_too():
    nested = Layout.from_config({"model_type": "x", "text_config": CONFIG}, token_map=TOKEN_MAP)
    assert nested == Layout.from_config(CONFIG, token_map=TOKEN_MAP)


def test_a_seed_in_the_config_changes_the_multipliers():
    seeded = Layout.from_config(CONFIG | {"engram_seed": 1}, token_map=TOKEN_MAP)
    plain = Layout.from_config(CONFIG, token_map=TOKEN_MAP)
    assert seeded.primes == plain.primes
    assert seeded.multipliers != plain.multipliers


@pytest.mark.parametrize("name", CONFIG)
def test_a_missing_field_is_named(name):
    config = {key: value for key, value in CONFIG.items() if key != name}
    with pytest.raises(ParameterError, match=f"no field {name}"):
        Layout.from_config(config, token_map=TOKEN_MAP)


@pytest.mark.parametrize("name", [*CONFIG, "engram_seed"])
@pytest.mark.parametrize("value", [None, "8", 1.5, True, -1, [], [0.5], {}])
def test_a_field_of_a_wrong_kind_is_named(name, value):
    with pytest.raises(ParameterError, match=name):
        Layout.from_config(CONFIG | {name: value}, token_map=TOKEN_MAP)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"engram_layer_ids": [1, 1]}, "names a layer twice"),
        ({"engram_vocab_size": [10, 20, 30]}, "has 3 entries; expected one for each of 2 orders"),
        ({"engram_vocab_size": 1}, "engram_vocab_size is 1"),
        ({"engram_max_ngram_size": 1}, "engram_max_ngram_size is 1; expected 2"),
        ({"engram_n_heads": 10**9}, "engram_n_heads is 1000000000"),
        ({"engram_n_heads": 60_000}, "heads in all"),
        ({"engram_pad_token_id": 6}, "engram_pad_token_id is 6; the token map holds ids 0 to 5"),
        ({"engram_num_embeddings": [76, 105]}, r"\[76, 105\], but the primes of .* \[76, 104\]"),
        ({"engram_num_embeddings": [76]}, r"\[76\], but the primes"),
    ],
)
def test_fields_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ParameterError, match=message):
        Layout.from_config(CONFIG | change, token_map=TOKEN_MAP)


def test_a_config_that_is_no_object_is_refused():
    with pytest.raises(ParameterError, match="config is a list"):
        Layout.from_config([CONFIG], token_map=TOKEN_MAP)


def test_a_map_of_another_tokenizer_is_told_what_it_would_do():
    with pytest.raises(ParameterError, match=r"leads to 2 .* has 3: .*another tokenizer.*tokenizer\.json"):
        Layout.from_config(CONFIG, token_map=np.array([0, 1, 1, 0, 1]))


@pytest.mark.parametrize(
    ("token_map", "message"),
    [
        ([0, 1, 5], "another tokenizer"),
        ([0, 1, -1], "negative"),
        ([], "empty"),
        ([0.0, 1.0, 2.0], "dtype float64"),
        ([[0, 1, 2]], "shape"),
        ([[0], [1, 2]], "ragged"),
    ],
)
def test_a_token_map_that_is_none_is_refused(token_map, message):
    with pytest.raises(ParameterError, match=message):
        Layout(**BY_HAND, token_map=token_map)


def test_the_layout_keeps_its_own_token_map():
    given = TOKEN_MAP.copy()
    layout = Layout(**BY_HAND, token_map=given)
    given[:] = 0
    np.testing.assert_array_equal(layout.token_map, TOKEN_MAP)
    with pytest.raises(ValueError, match="read-only"):
        layout.token_map[0] = 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": (3, 2)}, "ascending"),
        ({"orders": (0, 2)}, r"orders\[0\]"),
        ({"primes": ((11,),)}, r"primes\[0\] has 1 entries; expected 2"),
        ({"primes": ()}, "primes"),
        ({"primes": ((11, 0),)}, r"primes\[0\]\[1\] is 0"),
        ({"primes": ((2**62, 2**62),)}, "beyond int64"),
        ({"multipliers": ((1, 3),)}, "expected 3"),
        ({"multipliers": ((1, 3, 2**62 + 1),)}, "beyond int64"),
        ({"pad_id": 3}, "pad_id is 3; expected 0 to 2"),
        ({"layer_ids": "12"}, "layer_ids"),
    ],
)
def test_fields_by_hand_that_do_not_fit_are_refused(change, message):
    with pytest.raises(ParameterError, match=message):
        Layout(**(BY_HAND | change))


def test_lists_by_hand_make_an_equal_and_hashable_layout():
    listed = Layout(**(BY_HAND | {"primes": [[11, 13]], "multipliers": np.array([[1, 3, 5]])}))
    assert listed == Layout(**BY_HAND)
    assert hash(listed) == hash(Layout(**BY_HAND))


@pytest.mark.parametrize("token", [-2, 6, 2**40, -(2**63)])
def test_a_token_outside_the_vocabulary_is_named_with_its_place(hasher, token):
    message = rf"token_ids\[2\] is {token}; the vocabulary has ids 0 to 5; .*-1 is padding"
    for form in ({}, {"starts": [0, 1, 4]}, {"blocked": [False, False, True, False]}):
        with pytest.raises(ParameterError, match=message):
            hasher([0, 5, token, token], **form)
    with pytest.raises(ParameterError, match=message):
        hasher(np.array([0, 5, token, token]), out=np.empty((4, 2, 4), np.int32))


def test_the_first_of_many_bad_tokens_is_named_whoever_finds_it(hasher):
    tokens = np.zeros(20_000, np.int64)
    tokens[[700, 701, 9000, 19_999]] = 6, 7, 8, 9
    for threads in (1, 2, 4):
        with pytest.raises(ParameterError, match=r"token_ids\[700\] is 6"):
            hasher(tokens, threads=threads)


def test_a_bad_token_in_the_history_is_named_with_its_sequence(hasher):
    with pytest.raises(ParameterError, match=r"history\[1\] holds 6; the vocabulary has ids 0 to 5"):
        hasher([0, 1, 2], starts=[0, 1, 3], history=[[0, -1], [0, 6]])
    with pytest.raises(ParameterError, match=r"history\[0\] holds -2"):
        hasher([0], history=[[-2, 0]])


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([0.0, 1.0], "dtype float64"),
        ([True, False], "dtype bool"),
        (["a"], "dtype <U1"),
        ([2**70], "dtype object"),
        (np.empty(0), "dtype float64"),
        ([[0, 1]], r"shape \[1, 2\]"),
        (3, r"shape \[\]"),
        ([[0], [0, 1]], "ragged"),
    ],
)
def test_tokens_that_are_no_vector_of_integers_are_refused(hasher, tokens, message):
    with pytest.raises(ParameterError, match=message):
        hasher(tokens)


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ([0, 1], r"blocked is int64 \[2\]; expected bool \[2\], one for each token"),
        ([True], r"blocked is bool \[1\]; expected bool \[2\], one for each token"),
        ([[True, False]], r"blocked has shape \[1, 2\]; expected one dimension"),
    ],
)
def test_blocked_that_is_no_vector_of_truths_is_refused(hasher, blocked, message):
    with pytest.raises(ParameterError, match=message):
        hasher([0, 1], blocked)


@pytest.mark.parametrize("starts", [[0], [], [1, 2], [0, 3], [0, 2, 1], [0, -1, 2]])
def test_starts_that_cut_no_sequences_are_refused(hasher, starts):
    with pytest.raises(ParameterError, match="starts does not ascend from 0 to at most 2"):
        hasher([0, 1], starts=starts)


def test_starts_of_another_type_are_refused(hasher):
    with pytest.raises(ParameterError, match="starts has dtype float64; expected integers"):
        hasher([0, 1], starts=[0.0, 2.0])


@pytest.mark.parametrize("history", [[[0]], [0, 0], [[0, 0], [0, 0]], [[0.0, 0.0]], [[True, False]], [[0, 0, 0]]])
def test_history_of_another_shape_or_type_is_refused(hasher, history):
    with pytest.raises(ParameterError, match=r"history is .*; expected integers \[1, 2\]"):
        hasher([0, 1], history=history)


def test_history_that_is_ragged_is_refused(hasher):
    with pytest.raises(ParameterError, match="history is ragged"):
        hasher([0, 1], starts=[0, 1, 2], history=[[0, 0], [0]])


def test_n_grams_that_are_too_long_are_refused():
    layout = Layout.make(layer_ids=[1], max_ngram=17, heads_per_order=1, vocab_size=9, pad_id=0, compressed_vocab=3)
    with pytest.raises(ParameterError, match="n-grams of 17 tokens; expected at most 16"):
        Hasher(layout)


def test_threads_below_one_are_refused(hasher):
    with pytest.raises(ParameterError, match="threads=0"):
        hasher(np.zeros(3, np.int32), threads=0)
