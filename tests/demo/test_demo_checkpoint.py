# SPDX-License-Identifier: Apache-2.0
"""The demonstration's checkpoint: a well-formed one, of V4.1's shape, the same for the same seed."""

from __future__ import annotations

import json
import math

import pytest

from engramdax.demo.checkpoint import write_checkpoint
from engramdax.errors import EngramdaxError, ParameterError, RefusedError
from engramdax.ngram import Layout

VOCAB_SIZE = 30
ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("demo") / "deep" / "checkpoint"
    write_checkpoint(directory, vocab_size=VOCAB_SIZE, seed=3)
    return directory


def header(shard):
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    entries = json.loads(raw[8 : 8 + length])
    entries.pop("__metadata__")
    return length, entries, len(raw)


def shards(directory):
    return sorted(directory.glob("*.safetensors"))


def test_the_config_describes_its_own_tables(checkpoint):
    config = json.loads((checkpoint / "config.json").read_text())
    layout = Layout.from_config(config, token_map=None)
    assert layout.layer_ids == (1, 14)
    assert layout.orders == (2, 3, 4)
    assert layout.heads == 24
    assert min(layout.head_sizes(0)) == 31


def test_each_shard_is_filled_by_its_tensors_without_gaps(checkpoint):
    assert len(shards(checkpoint)) == 3
    for shard in shards(checkpoint):
        length, entries, size = header(shard)
        assert length % 8 == 0
        end = 0
        for entry in sorted(entries.values(), key=lambda entry: entry["data_offsets"]):
            assert entry["data_offsets"][0] == end
            end = entry["data_offsets"][1]
            assert end - entry["data_offsets"][0] == math.prod(entry["shape"]) * ITEM_BYTES[entry["dtype"]]
        assert size == 8 + length + end


def test_the_index_sends_each_tensor_to_its_shard(checkpoint):
    weight_map = json.loads((checkpoint / "model.safetensors.index.json").read_text())["weight_map"]
    assert weight_map == {name: shard.name for shard in shards(checkpoint) for name in header(shard)[1]}


def test_tables_have_the_names_dtypes_and_shapes_of_the_model(checkpoint):
    rows = json.loads((checkpoint / "config.json").read_text())["text_config"]["engram_num_embeddings"]
    entries = {name: entry for shard in shards(checkpoint) for name, entry in header(shard)[1].items()}
    for layer, count in zip((1, 14), rows, strict=True):
        weight = entries.pop(f"layers.{layer}.engram.embed.weight")
        scale = entries.pop(f"layers.{layer}.engram.embed.scale")
        assert (weight["dtype"], weight["shape"]) == ("F8_E4M3", [count, 256])
        assert (scale["dtype"], scale["shape"]) == ("F8_E8M0", [count, 8])
    assert "norm.weight" in entries


def test_the_seed_alone_decides_the_bytes(checkpoint, tmp_path):
    write_checkpoint(tmp_path / "same", vocab_size=VOCAB_SIZE, seed=3)
    write_checkpoint(tmp_path / "other", vocab_size=VOCAB_SIZE, seed=4)
    for shard in shards(checkpoint):
        assert (tmp_path / "same" / shard.name).read_bytes() == shard.read_bytes()
        assert (tmp_path / "other" / shard.name).read_bytes() != shard.read_bytes()


def test_blocks_are_joined_without_repetition(tmp_path):
    write_checkpoint(tmp_path, vocab_size=1_500, seed=0)
    raw = shards(tmp_path)[1].read_bytes()
    block = 8 << 20
    start = 8 + header(shards(tmp_path)[1])[0]
    assert len(raw) > start + block
    assert raw[start : start + 4096] != raw[start + block : start + block + 4096]
    assert any(raw[-8:])


def test_a_directory_that_is_not_empty_is_left_alone(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(RefusedError, match="is not empty"):
        write_checkpoint(tmp_path, vocab_size=VOCAB_SIZE, seed=0)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(EngramdaxError, match=r"file/ck: .*cannot be written: Not a directory; .* MiB free"):
        write_checkpoint(tmp_path / "file" / "ck", vocab_size=VOCAB_SIZE, seed=0)


def test_a_vocabulary_size_that_is_none_is_refused(tmp_path):
    with pytest.raises(ParameterError, match="vocab_size is 1"):
        write_checkpoint(tmp_path, vocab_size=1, seed=0)
