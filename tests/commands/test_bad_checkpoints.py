# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that are damaged, incomplete, or not what was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcomes import Outcome, unchanged

from engramdax.demo.checkpoint import write_checkpoint

Command = Callable[..., Outcome]

WEIGHT, SCALE = "layers.3.engram.embed.weight", "layers.3.engram.embed.scale"


def tensor(begin: int, end: int, shape: list[int], dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def encoded(header: dict[str, Any] | bytes, data: int, *, claimed: int | None = None) -> bytes:
    """A file with this header and `data` bytes behind it; the header's length is true or as `claimed`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if claimed is None else claimed).to_bytes(8, "little") + text + bytes(data)


GOOD = {"t": tensor(0, 32, [4, 8])}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (encoded(GOOD, 32, claimed=10_000), ["10000 bytes", "past the file's"]),
        (encoded(GOOD, 32, claimed=1 << 63), [str(1 << 63), "more than the format's"]),
        (encoded(GOOD, 32, claimed=(1 << 64) - 1), [str((1 << 64) - 1)]),
        (
            encoded({"t": tensor(0, 32, [4, 8]), "u": tensor(16, 48, [4, 8])}, 48),
            ["tensor u", "16 to 48", "overlap tensor t"],
        ),
        (encoded({"t": tensor(0, 32, [4, 8]), "u": tensor(0, 32, [4, 8])}, 32), ["overlap"]),
        (encoded({"t": tensor(0, 64, [8, 8])}, 32), ["tensor t", "0 to 64", "past the 32 bytes"]),
        (encoded({"t": tensor(32, 0, [4, 8])}, 32), ["tensor t", "backwards"]),
        (encoded({"t": tensor(0, 1 << 64, [4, 8])}, 32), ["tensor t", "data_offsets"]),
        (encoded({"t": tensor(0, 32, [5, 8])}, 32), ["tensor t", "U8 of shape [5, 8]", "32 bytes"]),
        (encoded({"t": tensor(0, 32, [4, 8], "F32")}, 32), ["tensor t", "F32 of shape [4, 8]"]),
        (encoded({"t": tensor(0, 32, [1 << 40, 1 << 40])}, 32), ["tensor t", "does not make"]),
        (encoded(b'{"t":1,"t":2}', 0), ["the key t twice"]),
        (encoded(b'{"t":{"dtype":"U8","dtype":"I8","shape":[4,8],"data_offsets":[0,32]}}', 32), ["key dtype twice"]),
        (encoded(b'{"\xff\xfe":1}', 0), ["not valid UTF-8 at byte 2"]),
        (encoded(b"[1]", 0), ["not with b'{'"]),
        (encoded(b"{", 0), ["not valid JSON"]),
        (encoded({"t": tensor(8, 40, [4, 8])}, 40), ["hole of 8 bytes"]),
        (encoded(GOOD, 40), ["8 bytes after the last tensor"]),
        (b"\x08\x00", ["2 bytes are too few"]),
        (encoded({}, 0), ["none of its 0 tensors"]),
    ],
    ids=[
        "header-past-the-end",
        "header-of-2**63",
        "header-of-2**64-1",
        "overlapping-offsets",
        "same-offsets",
        "offsets-past-the-end",
        "offsets-backwards",
        "offset-of-2**64",
        "shape-too-large",
        "dtype-too-large",
        "shape-overflowing",
        "duplicate-tensor",
        "duplicate-key",
        "invalid-utf-8",
        "list",
        "cut-json",
        "hole",
        "bytes-left-over",
        "two-bytes",
        "no-tensor",
    ],
)
def test_damaged_file_is_refused(command: Command, pool: Path, tmp_path: Path, content: bytes, said: list[str]) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), *said)


def engram_file(path: Path, weight_rows: int | None, scale_rows: int | None) -> Path:
    header, end = {}, 0
    for name, dtype, rows, width in ((WEIGHT, "F8_E4M3", weight_rows, 64), (SCALE, "F8_E8M0", scale_rows, 2)):
        if rows is not None:
            header[name] = tensor(end, end + rows * width, [rows, width], dtype)
            end += rows * width
    path.write_bytes(encoded(header, end))
    return path


@pytest.mark.parametrize(
    ("weight_rows", "scale_rows", "said"),
    [
        (8, 7, ["weight has 8 rows and scale has 7"]),
        (8, None, [WEIGHT, "but no scale"]),
        (None, 8, [SCALE, "but no weight"]),
        (None, None, ["none of its 0 tensors"]),
    ],
    ids=["rows-differ", "no-scale", "no-weight", "neither"],
)
def test_half_an_engram_table_is_refused(
    command: Command, pool: Path, tmp_path: Path, *, weight_rows: int | None, scale_rows: int | None, said: list[str]
) -> None:
    path = engram_file(tmp_path / "half.safetensors", weight_rows, scale_rows)
    with unchanged(pool):
        command("load", path, "--engram", "--pool", pool).failed(1, str(path), *said)


def test_index_that_names_a_missing_shard_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {WEIGHT: "one.safetensors", SCALE: "two.safetensors"}}))
    engram_file(folder / "one.safetensors", 8, None)
    for source in (folder, index):
        with unchanged(pool):
            outcome = command("load", source, "--engram", "--pool", pool)
        outcome.failed(1, str(index), "two.safetensors, which is missing", "fetch the whole checkpoint")


def test_index_that_points_outside_its_folder_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    engram_file(tmp_path / "outside.safetensors", 8, 8)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {WEIGHT: "../outside.safetensors", SCALE: "../outside.safetensors"}})
    )
    with unchanged(pool):
        command("load", folder, "--engram", "--pool", pool).failed(1, "../outside.safetensors", "not a file beside")


def test_config_of_another_model_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    checkpoint, other = tmp_path / "checkpoint", tmp_path / "other"
    write_checkpoint(checkpoint, vocab_size=20)
    write_checkpoint(other, vocab_size=30)
    (other / "config.json").replace(checkpoint / "config.json")
    with unchanged(pool):
        outcome = command("load", checkpoint, "--engram", "--pool", pool)
    outcome.failed(1, "layers.1", str(checkpoint), "its config.json means", "another model")


@pytest.mark.parametrize("text", ["{", "\xff", '{"engram_layer_ids": "three"}'])
def test_damaged_config_is_refused(command: Command, pool: Path, tmp_path: Path, text: str) -> None:
    path = engram_file(tmp_path / "model.safetensors", 8, 8)
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with unchanged(pool):
        command("load", path, "--engram", "--pool", pool).failed(1, str(tmp_path / "config.json"))


def test_tensor_that_is_not_there_is_named_with_its_nearest(command: Command, pool: Path, tmp_path: Path) -> None:
    path = engram_file(tmp_path / "model.safetensors", 8, 8)
    with unchanged(pool):
        outcome = command("load", path, "--tensor", "layers.4.engram.embed.weight", "--pool", pool)
    outcome.failed(1, "layers.4.engram.embed.weight", f"nearest: {WEIGHT}")


def test_choice_between_tensors_is_asked_for(command: Command, pool: Path, tmp_path: Path) -> None:
    path = engram_file(tmp_path / "model.safetensors", 8, 8)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, WEIGHT, SCALE, "--tensor", "--engram")
