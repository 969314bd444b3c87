# SPDX-License-Identifier: Apache-2.0
"""Row ids against vectors made by the models' own code, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from engramdax.ngram import Hasher, Layout

DATA = Path(__file__).parents[1] / "data"
V41 = json.loads((DATA / "engram_v41_golden.json").read_text())
V41_BLOCKED = json.loads((DATA / "engram_v41_blocked_golden.json").read_text())
DEMO = json.loads((DATA / "engram_demo_golden.json").read_text())
V41_CONFIG = {
    "engram_layer_ids": [1, 14],
    "engram_max_ngram_size": 4,
    "engram_n_heads": 8,
    "engram_vocab_size": 16_000_000,
    "engram_num_embeddings": [384_006_168, 384_016_682],
    "engram_head_dim": 256,
    "engram_pad_token_id": 2,
    "engram_compressed_vocab_size": 99_092,
}


@pytest.fixture(scope="module")
def v41():
    with np.load(DATA / "token_map_v41.npz") as saved:
        return Layout.from_config(V41_CONFIG, token_map=saved["token_map"])


def test_v41_multipliers_primes_and_pad_are_the_published_ones(v41):
    assert [list(row) for row in v41.multipliers] == V41["multipliers"]
    assert [list(row) for row in v41.primes] == V41["primes"]
    assert v41.pad_id == V41["pad_compressed_id"]
    assert v41.orders == (2, 3, 4)


def test_v41_tables_have_the_published_numbers_of_rows(v41):
    assert (v41.rows(0), v41.rows(1)) == (384_006_168, 384_016_682)
    assert v41.offsets[1][-1] + v41.head_sizes(1)[-1] == 384_016_682


@pytest.mark.parametrize("case", V41["cases"], ids=lambda case: repr(case["text"])[:30])
def test_v41_row_ids_equal_the_golden_ones(v41, case):
    rows = Hasher(v41)(case["token_ids"])
    assert rows.dtype == np.int32
    # The vectors are layer-major.
    np.testing.assert_array_equal(rows.transpose(1, 0, 2), case["row_ids"])


@pytest.mark.parametrize("case", V41_BLOCKED["cases"], ids=lambda case: "".join(map(str, case["blocked"])))
def test_v41_row_ids_around_blocked_spans_equal_the_golden_ones(v41, case):
    rows = Hasher(v41)(case["token_ids"], np.array(case["blocked"], bool))
    np.testing.assert_array_equal(rows.transpose(1, 0, 2), case["row_ids"])


@pytest.mark.parametrize("case", DEMO["cases"], ids=lambda case: case["name"])
def test_rows_of_a_layout_made_by_hand_equal_the_golden_ones(case):
    config = case["config"]
    layout = Layout.make(
        layer_ids=config["layer_ids"],
        max_ngram=config["max_ngram_size"],
        heads_per_order=config["heads_per_ngram"],
        vocab_size=config["vocab_size_per_ngram"],
        pad_id=config["pad_compressed_id"],
        compressed_vocab=config["compressed_vocab_size"],
        seed=config["seed"],
    )
    hasher = Hasher(layout)
    for sequence, tokens in enumerate(case["compressed_ids"]):
        rows = hasher(tokens)
        for position, layer_id in enumerate(config["layer_ids"]):
            golden = case["layers"][str(layer_id)]
            assert list(layout.multipliers[position]) == golden["multipliers"]
            assert list(layout.head_sizes(position)) == golden["head_sizes"]
            np.testing.assert_array_equal(rows[:, position], golden["row_ids"][sequence])
            np.testing.assert_array_equal(
                rows[:, position] - layout.offsets[position], golden["head_local_ids"][sequence]
            )
