# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of several files: shards, directories, indices, and what may be wrong between them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_files import open_files, random_bytes, read_all, write_index, write_safetensors

from engramdax.errors import SourceError
from engramdax.ingest.safetensors import open_checkpoint, open_tensor

A, B = random_bytes(40, 1), random_bytes(60, 2)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [
        write_safetensors(tmp_path / "model-00001-of-00002.safetensors", {"a": ("U8", [4, 10], A)}),
        write_safetensors(
            tmp_path / "model-00002-of-00002.safetensors", {"b": ("U8", [6, 10], B), "c": ("U8", [1], b"c")}
        ),
    ]


def index_of(shards: list[Path]) -> dict[str, str]:
    return {"a": shards[0].name, "b": shards[1].name, "c": shards[1].name}


def table(paths: Any, name: str) -> bytes:
    with open_checkpoint(paths) as checkpoint, open_tensor(checkpoint, name) as source:
        return read_all(source)


def refused(path: Path, match: str) -> None:
    with pytest.raises(SourceError, match=match) as caught:
        open_checkpoint(path)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert open_files(path if path.is_dir() else path.parent) == 0


def test_shards_are_one_checkpoint(tmp_path: Path, shards: list[Path]) -> None:
    assert table(shards, "a") == A
    assert table(list(map(str, shards)), "b") == B
    assert open_files(tmp_path) == 0


def test_directory_is_read_by_its_index(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", index_of(shards))
    write_safetensors(tmp_path / "consolidated.safetensors", {"a": ("U8", [1, 1], b"x")})
    assert table(tmp_path, "a") == A
    assert table(str(tmp_path), "b") == B


def test_index_of_another_name_is_found(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "weights.safetensors.index.json", index_of(shards))
    assert table(tmp_path, "b") == B


def test_usual_index_goes_before_others(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", index_of(shards))
    write_index(tmp_path / "a.safetensors.index.json", {"x": "missing.safetensors"})
    assert table(tmp_path, "a") == A


def test_index_itself_can_be_given(tmp_path: Path, shards: list[Path]) -> None:
    index = write_index(tmp_path / "one.safetensors.index.json", index_of(shards))
    write_index(tmp_path / "two.safetensors.index.json", {})
    assert table(index, "b") == B


def test_directory_without_an_index_is_all_its_shards(tmp_path: Path, shards: list[Path]) -> None:
    (tmp_path / "README.md").write_text("not a shard")
    with open_checkpoint(tmp_path) as checkpoint:
        assert sorted(checkpoint.tensors) == ["a", "b", "c"]
    assert table(tmp_path, "a") == A


def test_shards_behind_links_are_read(tmp_path: Path, shards: list[Path]) -> None:
    # The cache of the Hugging Face client is such a folder.
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for shard in shards:
        (snapshot / shard.name).symlink_to(f"../{shard.name}")
    write_index(snapshot / "model.safetensors.index.json", index_of(shards))
    assert table(snapshot, "b") == B


def test_tensors_that_the_index_leaves_out_are_not_there(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", {"a": shards[0].name})
    with open_checkpoint(tmp_path) as checkpoint:
        assert list(checkpoint.tensors) == ["a"]


def test_table_outlives_its_checkpoint(tmp_path: Path, shards: list[Path]) -> None:
    checkpoint = open_checkpoint(shards)
    source = open_tensor(checkpoint, "a")
    checkpoint.close()
    checkpoint.close()
    assert read_all(source) == A
    source.close()
    assert open_files(tmp_path) == 0


def test_empty_directory_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, r"the directory holds no \.safetensors file")


def test_missing_path_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", "none: no such file")


def test_several_indices_are_refused(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "one.safetensors.index.json", index_of(shards))
    write_index(tmp_path / "two.safetensors.index.json", index_of(shards))
    refused(tmp_path, "holds 2 indices: one.safetensors.index.json, two.safetensors.index.json")


def test_tensor_in_two_shards_is_refused(tmp_path: Path, shards: list[Path]) -> None:
    write_safetensors(tmp_path / "more.safetensors", {"b": ("U8", [1], b"x")})
    refused(tmp_path, "tensor b is in two shards, .*model-00002-of-00002.safetensors and .*more.safetensors")


def test_shard_given_twice_is_refused(tmp_path: Path, shards: list[Path]) -> None:
    with pytest.raises(SourceError, match="tensor a is in two shards"):
        open_checkpoint([shards[0], shards[0]])
    assert open_files(tmp_path) == 0


def test_index_naming_a_missing_shard_is_refused(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", {**index_of(shards), "d": "model-00003.safetensors"})
    refused(tmp_path, "index.json: names the shard model-00003.safetensors, which is missing")


def test_index_naming_a_tensor_its_shard_lacks_is_refused(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", {**index_of(shards), "b": shards[0].name})
    refused(tmp_path, "says that tensor b is in model-00001-of-00002.safetensors, which does not hold it")


def test_broken_shard_of_an_index_is_refused(tmp_path: Path, shards: list[Path]) -> None:
    write_index(tmp_path / "model.safetensors.index.json", index_of(shards))
    shards[1].write_bytes(b"short")
    refused(tmp_path, "model-00002-of-00002.safetensors: 5 bytes are too few")


@pytest.mark.parametrize("text", ["{", "[]", "nonsense", '{"weight_map": {}, "weight_map": {}}', "\ufeff{}"])
def test_index_that_is_no_json_object_is_refused(tmp_path: Path, text: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(text)
    refused(tmp_path, "index.json: the index (is not valid JSON|is not a JSON object|has the key)")


def test_index_of_invalid_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_bytes(b'{"\xff": 1}')
    refused(tmp_path, "the index is not valid UTF-8")


def test_empty_index_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").touch()
    refused(tmp_path, "index.json: the file is empty")


@pytest.mark.parametrize("value", [{}, {"weight_map": []}, {"weight_map": {"a": 1}}, {"weight_map": None}])
def test_index_without_a_weight_map_is_refused(tmp_path: Path, value: dict[str, Any]) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(value))
    refused(tmp_path, "weight_map is not a map of tensor names to shard names")


@pytest.mark.parametrize(
    "shard", ["../x.safetensors", "/etc/passwd", "a/../../x", "..", "", ".", "a\0b", "a/..", "//x"]
)
def test_shard_outside_the_directory_is_refused(tmp_path: Path, shard: str) -> None:
    write_index(tmp_path / "model.safetensors.index.json", {"a": shard})
    refused(tmp_path, "which is not a file beside or below the index")


def test_shard_below_the_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write_safetensors(tmp_path / "sub" / "a.safetensors", {"a": ("U8", [4, 10], A)})
    write_index(tmp_path / "model.safetensors.index.json", {"a": "sub/a.safetensors"})
    assert table(tmp_path, "a") == A


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]),
        st.sampled_from(["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"])
        | st.text(st.characters(codec="utf-8"), max_size=6),
    )
)
def test_any_weight_map_is_read_or_refused(tmp_path: Path, shards: list[Path], weight_map: Any) -> None:
    write_index(tmp_path / "model.safetensors.index.json", weight_map)
    try:
        open_checkpoint(tmp_path).close()
    except SourceError as e:
        assert "\n" not in str(e)  # noqa: PT017
    assert open_files(tmp_path) == 0
