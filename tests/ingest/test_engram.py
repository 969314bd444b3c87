# SPDX-License-Identifier: Apache-2.0
"""Engram tables of a checkpoint: weight and scale packed per layer, and what must fit together."""

from __future__ import annotations

from pathlib import Path

import pytest
from table_files import (
    interleaved,
    open_files,
    random_bytes,
    read_all,
    read_part,
    write_index,
    write_safetensors,
)

from engramdax.errors import SourceError
from engramdax.format.layout import V41_ROW, Field
from engramdax.ingest.engram import open_engram
from engramdax.ingest.safetensors import open_checkpoint

Tensors = dict[str, tuple[str, list[int], bytes]]

WEIGHT, SCALE = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"


def layer(number: int, rows: int, *, prefix: str = "", dim: int = 256) -> tuple[tuple[str, str], Tensors, bytes]:
    """Names, tensors and packed bytes of one layer as DeepSeek-V4.1 has it."""
    weight, scale = random_bytes(rows * dim, number), random_bytes(rows * dim // 32, number + 1)
    names = (
        f"{prefix}layers.{number}.engram.embed.weight",
        f"{prefix}layers.{number}.engram.embed.scale",
    )
    tensors: Tensors = {
        names[0]: ("F8_E4M3", [rows, dim], weight),
        names[1]: ("F8_E8M0", [rows, dim // 32], scale),
    }
    return names, tensors, interleaved(rows, weight, scale)


def refused(folder: Path, tensors: Tensors, match: str) -> None:
    path = write_safetensors(folder / "model.safetensors", tensors)
    with open_checkpoint(path) as checkpoint, pytest.raises(SourceError, match=match) as caught:
        open_engram(checkpoint)
    assert str(path) in str(caught.value)
    assert caught.value.remedy
    assert open_files(folder) == 0


@pytest.mark.parametrize("prefix", ["", "model."])
def test_layer_is_packed_into_rows_of_264_bytes(tmp_path: Path, prefix: str) -> None:
    names, tensors, packed = layer(1, 1_001, prefix=prefix)
    path = write_safetensors(tmp_path / "m.safetensors", {"head": ("U8", [3], b"abc"), **tensors})
    with open_checkpoint(path) as checkpoint:
        (source,) = open_engram(checkpoint)
    with source:
        assert source.name == "layers.1"
        assert source.rows == 1_001
        assert source.layout == V41_ROW
        assert source.describe()["kind"] == "engram"
        assert source.describe()["tensors"] == list(names)
        assert read_all(source) == packed
        assert read_part(source, 263, 100_002) == packed[263:100_265]
    assert open_files(tmp_path) == 0


def test_layers_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tables = {number: layer(number, 10 + number) for number in (14, 2, 1)}
    tensors: Tensors = {}
    for _, of_layer, _ in tables.values():
        tensors |= of_layer
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    with open_checkpoint(path) as checkpoint:
        sources = open_engram(checkpoint)
    assert [source.name for source in sources] == ["layers.1", "layers.2", "layers.14"]
    for source, number in zip(sources, (1, 2, 14), strict=True):
        assert read_all(source) == tables[number][2]
        source.close()
    assert open_files(tmp_path) == 0


def test_weight_and_scale_may_stand_in_two_shards(tmp_path: Path) -> None:
    (weight, scale), tensors, packed = layer(14, 500)
    write_safetensors(tmp_path / "one.safetensors", {weight: tensors[weight]})
    write_safetensors(tmp_path / "two.safetensors", {scale: tensors[scale]})
    write_index(tmp_path / "model.safetensors.index.json", {weight: "one.safetensors", scale: "two.safetensors"})
    with open_checkpoint(tmp_path) as checkpoint:
        (source,) = open_engram(checkpoint)
    with source:
        assert read_all(source) == packed
        files = source.describe()["files"]
        assert [Path(file["path"]).name for file in files] == ["one.safetensors", "two.safetensors"]


def test_other_widths_keep_one_scale_per_32_values(tmp_path: Path) -> None:
    _, tensors, packed = layer(0, 77, dim=96)
    path = write_safetensors(tmp_path / "m.safetensors", tensors)
    with open_checkpoint(path) as checkpoint:
        (source,) = open_engram(checkpoint)
    with source:
        assert source.layout.fields == (
            Field("weight", "float8_e4m3fn", 96, 0, 99),
            Field("scale", "float8_e8m0fnu", 3, 96, 99),
        )
        assert read_all(source) == packed


@pytest.mark.parametrize(("dtype", "name", "size"), [("BF16", "bfloat16", 2), ("F32", "float32", 4)])
def test_unquantised_weight_without_scale_is_a_table(tmp_path: Path, dtype: str, name: str, size: int) -> None:
    content = random_bytes(9 * 160 * size)
    path = write_safetensors(tmp_path / "m.safetensors", {WEIGHT: (dtype, [9, 160], content)})
    with open_checkpoint(path) as checkpoint:
        (source,) = open_engram(checkpoint)
    with source:
        assert source.layout.fields == (Field("weight", name, 160, 0, 160 * size),)
        assert read_all(source) == content


def test_checkpoint_without_engram_tables_is_refused(tmp_path: Path) -> None:
    tensors: Tensors = {"model.embed.weight": ("U8", [1], b"x")}
    refused(tmp_path, tensors, r"none of its 1 tensors is named \[model\.\]layers\.N\.engram\.embed\.weight")


@pytest.mark.parametrize(
    "name",
    [
        "layers.x.engram.embed.weight",
        "layers.01.engram.embed.weight",
        "xlayers.1.engram.embed.weight",
        "layers.1.engram.embed.weight.more",
        "layers.1.engram.embed.weight\n",
        "layers.1.engram.embed.bias",
        "layers.٣.engram.embed.weight",
    ],
)
def test_similar_names_are_shown_but_not_taken(tmp_path: Path, name: str) -> None:
    refused(tmp_path, {name: ("U8", [1], b"x")}, "load .*engram.embed.* with --tensor")


def test_missing_scale_is_refused(tmp_path: Path) -> None:
    _, tensors, _ = layer(1, 4)
    del tensors[SCALE]
    refused(tmp_path, tensors, f"layer 1: has {WEIGHT}, which is F8_E4M3, but no scale")


def test_missing_weight_is_refused(tmp_path: Path) -> None:
    _, tensors, _ = layer(1, 4)
    del tensors[WEIGHT]
    refused(tmp_path, tensors, f"layer 1: has {SCALE} but no weight")


def test_different_row_counts_are_refused(tmp_path: Path) -> None:
    _, tensors, _ = layer(1, 4)
    tensors[SCALE] = ("F8_E8M0", [5, 8], bytes(40))
    refused(tmp_path, tensors, "layer 1: weight has 4 rows and scale has 5")


@pytest.mark.parametrize("dtype", ["U8", "I8", "F8_E5M2", "F8_E4M3"])
def test_scale_of_another_type_is_refused(tmp_path: Path, dtype: str) -> None:
    _, tensors, _ = layer(1, 4)
    tensors[SCALE] = (dtype, [4, 8], bytes(32))
    refused(tmp_path, tensors, f"is {dtype}, expected F8_E8M0.*read as integers give fluent wrong text")


@pytest.mark.parametrize("dtype", ["U8", "F8_E5M2"])
def test_weight_of_another_type_is_refused(tmp_path: Path, dtype: str) -> None:
    _, tensors, _ = layer(1, 4)
    tensors[WEIGHT] = (dtype, [4, 256], bytes(1024))
    refused(tmp_path, tensors, f"{WEIGHT} is {dtype}, expected F8_E4M3 with scales")


def test_unquantised_weight_with_scale_is_refused(tmp_path: Path) -> None:
    _, tensors, _ = layer(1, 4)
    tensors[WEIGHT] = ("BF16", [4, 256], bytes(2048))
    refused(tmp_path, tensors, "is BF16, expected F8_E4M3 with scales")


@pytest.mark.parametrize(("dim", "scales"), [(256, 4), (256, 16), (240, 7), (16, 1)])
def test_other_than_one_scale_per_32_values_is_refused(tmp_path: Path, dim: int, scales: int) -> None:
    tensors: Tensors = {
        WEIGHT: ("F8_E4M3", [4, dim], bytes(4 * dim)),
        SCALE: ("F8_E8M0", [4, scales], bytes(4 * scales)),
    }
    refused(tmp_path, tensors, f"weight has {dim} values a row and scale has {scales}, expected one")


@pytest.mark.parametrize("shape", [[1024], [0, 256], [2, 2, 256]])
def test_weight_that_is_no_table_is_refused(tmp_path: Path, shape: list[int]) -> None:
    _, tensors, _ = layer(1, 4)
    tensors[WEIGHT] = ("F8_E4M3", shape, bytes(1024 if 0 not in shape else 0))
    refused(tmp_path, tensors, "layer 1: .*weight has shape .*, expected rows and elements")


def test_too_wide_rows_are_refused(tmp_path: Path) -> None:
    _, tensors, _ = layer(1, 1, dim=1 << 20)
    refused(tmp_path, tensors, "a row of 1081344 bytes is too large")


def test_layer_named_with_and_without_prefix_is_refused(tmp_path: Path) -> None:
    _, plain, _ = layer(1, 4)
    _, prefixed, _ = layer(1, 4, prefix="model.")
    refused(tmp_path, plain | prefixed, f"holds both {WEIGHT} and model.{WEIGHT}")


def test_bad_layer_closes_the_good_ones_before_it(tmp_path: Path) -> None:
    _, good, _ = layer(0, 4)
    _, bad, _ = layer(1, 4)
    del bad[SCALE]
    refused(tmp_path, good | bad, "layer 1: has .* but no scale")
