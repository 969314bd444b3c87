# SPDX-License-Identifier: Apache-2.0
"""Compressed ids from tokenizers, DeepSeek's own among them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers

from engramdax.demo.tokens import load_tokenizer
from engramdax.errors import ParameterError
from engramdax.ngram import build_token_map


def word_level(words):
    vocab = dict(words) if isinstance(words, dict) else {word: place for place, word in enumerate(words)}
    return tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token=next(iter(vocab))))


@pytest.mark.unsanitized  # none of it is in C
def test_the_map_of_the_v41_tokenizer_is_the_published_one():
    token_map = build_token_map(load_tokenizer())
    with np.load(Path(__file__).parents[1] / "data" / "token_map_v41.npz") as saved:
        np.testing.assert_array_equal(token_map, saved["token_map"])
    assert token_map.dtype == np.int32
    assert token_map.max() + 1 == 99_092


def test_case_accents_and_width_do_not_count():
    assert build_token_map(word_level(["the", "The", "THÉ", "the\u0301", "ＴＨＥ", "then"])).tolist() == [  # noqa: RUF001
        0, 0, 0, 0, 0, 1,
    ]  # fmt: skip


def test_white_space_counts_once_and_only_alone():
    words = ["a", " a", "a\t", " ", "\n", " \r\n ", "a b", "a \t b"]
    assert build_token_map(word_level(words)).tolist() == [0, 0, 0, 1, 1, 1, 2, 2]


def test_a_token_without_text_left_is_keyed_by_its_raw_text():
    # Lone combining marks are stripped as accents.
    assert build_token_map(word_level(["\u0301", "\u0302", "\u0301x", "x"])).tolist() == [0, 1, 2, 2]


def test_a_token_that_is_no_whole_character_is_keyed_by_its_name():
    vocab = {"Ã": 0, "Â": 1, "a": 2, "A": 3}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    assert build_token_map(tokenizer).tolist() == [0, 1, 2, 2]


def test_added_tokens_are_counted():
    tokenizer = word_level(["a", "b"])
    tokenizer.add_special_tokens(["<pad>"])
    assert build_token_map(tokenizer).tolist() == [0, 1, 2]


def test_ids_with_gaps_are_refused():
    with pytest.raises(ParameterError, match="2 tokens, but none of id 1"):
        build_token_map(word_level({"a": 0, "b": 5}))


def test_another_thing_than_a_tokenizer_is_refused():
    with pytest.raises(ParameterError, match=r"is a str; expected a tokenizers\.Tokenizer"):
        build_token_map("tokenizer.json")
