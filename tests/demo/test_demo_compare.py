# SPDX-License-Identifier: Apache-2.0
"""The rows that the demonstration takes for the truth."""

from __future__ import annotations

import json

import numpy as np
import pytest

from engramdax.demo.checkpoint import write_checkpoint
from engramdax.demo.compare import expected_rows
from engramdax.errors import RowIdError, SourceError


@pytest.fixture
def checkpoint(tmp_path):
    write_checkpoint(tmp_path, vocab_size=30, seed=1)
    return tmp_path


def row_count(checkpoint):
    return json.loads((checkpoint / "config.json").read_text())["text_config"]["engram_num_embeddings"][1]


def test_a_row_is_its_weight_bytes_and_then_its_scale_bytes(checkpoint):
    count = row_count(checkpoint)
    shard = (checkpoint / "model-00003-of-00003.safetensors").read_bytes()
    # The scales end the file and the weights stand before them.
    scales = shard[-8 * count :]
    weights = shard[-264 * count : -8 * count]
    rows = expected_rows(checkpoint, 14, np.array([0, 7, count - 1, 7], np.int32))
    assert rows.dtype == np.uint8
    for row, place in zip(rows, (0, 7, count - 1, 7), strict=True):
        assert row.tobytes() == weights[256 * place :][:256] + scales[8 * place :][:8]


def test_ids_of_any_shape_keep_it(checkpoint):
    ids = np.arange(12).reshape(2, 3, 2)
    rows = expected_rows(checkpoint, 1, ids)
    assert rows.shape == (2, 3, 2, 264)
    np.testing.assert_array_equal(rows.reshape(12, 264), expected_rows(checkpoint, 1, ids.ravel()))
    assert expected_rows(checkpoint, 1, ids[:0]).shape == (0, 3, 2, 264)


@pytest.mark.parametrize("bad", [-1, 10**9])
def test_an_id_outside_the_table_is_named(checkpoint, bad):
    with pytest.raises(RowIdError, match=f"row {bad} of layer 14; the table has rows 0 to"):
        expected_rows(checkpoint, 14, np.array([0, bad]))


def test_a_layer_without_a_table_is_named(checkpoint):
    with pytest.raises(SourceError, match=r"layers\.2\.engram\.embed\.weight"):
        expected_rows(checkpoint, 2, np.array([0]))


def test_a_truncated_shard_is_named(checkpoint):
    shard = checkpoint / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(SourceError, match=r"layers\.1\.engram\.embed\.scale"):
        expected_rows(checkpoint, 1, np.array([0]))
