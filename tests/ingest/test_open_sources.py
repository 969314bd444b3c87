# SPDX-License-Identifier: Apache-2.0
"""The choice of a reader, contradictory arguments, and the names that tables get."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_files import interleaved, open_files, random_bytes, read_all, write_index, write_safetensors

from engramdax.errors import ParameterError, SourceError
from engramdax.ingest.naming import shown, table_name
from engramdax.ingest.open import open_sources

WEIGHT, SCALE = random_bytes(256 * 5, 1), random_bytes(8 * 5, 2)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """One file of each kind; `two` and `engram` are checkpoints of several tensors."""
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    np.save(tmp_path / "a.npy", array)
    (tmp_path / "array.data").write_bytes((tmp_path / "a.npy").read_bytes())
    (tmp_path / "raw.bin").write_bytes(random_bytes(640))
    one = {"only": ("U8", [5, 8], SCALE), "bias": ("F32", [1], bytes(4))}
    write_safetensors(tmp_path / "one.safetensors", one)
    write_safetensors(tmp_path / "two.safetensors", {f"t{i:02}": ("U8", [1, 2], bytes(2)) for i in range(12)})
    (tmp_path / "engram").mkdir()
    names = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"
    write_safetensors(tmp_path / "engram" / "w.safetensors", {names[0]: ("F8_E4M3", [5, 256], WEIGHT)})
    write_safetensors(tmp_path / "engram" / "s.safetensors", {names[1]: ("F8_E8M0", [5, 8], SCALE)})
    write_index(
        tmp_path / "engram" / "model.safetensors.index.json",
        {names[0]: "w.safetensors", names[1]: "s.safetensors"},
    )
    return {path.stem: path for path in sorted(tmp_path.iterdir())}


def content_of(*paths: str | Path, **arguments: Any) -> tuple[str, bytes]:
    (source,) = open_sources(paths, **arguments)
    with source:
        return source.describe()["kind"], read_all(source)


def test_raw_file_is_chosen_by_its_arguments(files: dict[str, Path]) -> None:
    expected = "binary", files["raw"].read_bytes()
    assert content_of(files["raw"], row_bytes=64) == expected
    assert content_of(str(files["raw"]), dtype="float16", dim=32) == expected


@pytest.mark.parametrize("arguments", [{}, {"row_bytes": 2}, {"dtype": "uint8", "dim": 2}])
def test_archives_of_others_are_no_rows_whatever_size_they_are_given(tmp_path: Path, arguments: dict[str, Any]) -> None:
    np.savez(tmp_path / "a.npz", np.zeros(4))
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(60))
    for name, kind in (("a.npz", "zip archive"), ("a.gguf", "GGUF file")):
        with pytest.raises(SourceError, match=rf"{name} is a {kind}.*save its table as \.npy"):
            open_sources([tmp_path / name], **arguments)


def test_raw_file_whose_rows_nobody_told_is_named(files: dict[str, Path]) -> None:
    with pytest.raises(ParameterError, match=r"raw\.bin: a raw file says nothing about its rows"):
        open_sources([files["raw"]])


def test_array_is_chosen_by_its_suffix_or_its_magic(files: dict[str, Path]) -> None:
    expected = "npy", np.arange(20, dtype=np.float32).tobytes()
    assert content_of(files["a"]) == expected
    assert content_of(files["array"]) == expected


def test_only_table_of_a_checkpoint_needs_no_name(files: dict[str, Path]) -> None:
    assert content_of(files["one"]) == ("safetensors", SCALE)


def test_tensor_is_chosen_by_its_name(files: dict[str, Path]) -> None:
    assert content_of(files["engram"], tensor="layers.1.engram.embed.weight") == ("safetensors", WEIGHT)


def test_engram_tables_are_chosen_by_request(files: dict[str, Path]) -> None:
    expected = "engram", interleaved(5, WEIGHT, SCALE)
    folder = files["engram"]
    assert content_of(folder, engram=True) == expected
    assert content_of(folder / "model.safetensors.index.json", engram=True) == expected
    assert content_of(folder / "s.safetensors", folder / "w.safetensors", engram=True) == expected
    assert open_files(folder.parent) == 0


def test_checkpoint_of_several_tables_needs_a_name(files: dict[str, Path]) -> None:
    with pytest.raises(
        SourceError,
        match=r"holds 12 tensors that could be meant: t00, t01, .*t07, \.\.\.; name one with --tensor",
    ):
        open_sources([files["two"]])
    assert open_files(files["two"].parent) == 0


def test_checkpoint_without_a_table_is_refused(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "t.safetensors", {"bias": ("F32", [1], bytes(4))})
    with pytest.raises(SourceError, match="none of its 1 tensors is a table of two dimensions"):
        open_sources([path])


@pytest.mark.parametrize(
    ("names", "arguments", "match"),
    [
        ([], {}, "no source was given"),
        (["engram"], {"tensor": "x", "engram": True}, "--tensor and --engram were both given"),
        (["a"], {"row_bytes": 20}, r"a\.npy: a \.npy file says itself what its rows are"),
        (["array"], {"row_bytes": 20}, r"array\.data: a \.npy file says itself"),
        (["a"], {"dtype": "float32", "dim": 5}, r"a \.npy file says itself"),
        (["one"], {"row_bytes": 8}, "a checkpoint says itself what its rows are"),
        (["engram"], {"dim": 8, "engram": True}, "a checkpoint says itself"),
        (["raw"], {"tensor": "x"}, r"raw\.bin: --tensor needs a checkpoint"),
        (["raw"], {"engram": True}, "--engram needs a checkpoint"),
        (["a"], {"engram": True}, "--engram needs a checkpoint"),
        (["raw"], {}, "say --row-bytes N, or --dtype D --dim N"),
        (["raw", "raw"], {"row_bytes": 64}, r"2 sources were given and .*raw\.bin is no \.safetensors shard"),
        (["one", "a"], {}, r"2 sources were given and .*a\.npy is no \.safetensors shard"),
        (["one", "engram"], {}, r"2 sources were given and .*engram is no \.safetensors shard"),
    ],
)
def test_contradictory_arguments_are_refused(
    files: dict[str, Path], names: list[str], arguments: dict[str, Any], match: str
) -> None:
    with pytest.raises(ParameterError, match=match) as caught:
        open_sources([files[name] for name in names], **arguments)
    assert caught.value.exit_code == 2
    assert caught.value.remedy
    assert open_files(files["raw"].parent) == 0


@pytest.mark.parametrize("name", ["none", "none.npy", "none.bin", "none.safetensors", "a\0b", "a" * 5_000])
def test_missing_source_is_refused_whatever_its_suffix(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match=r"no such file|cannot be opened: File name too long"):
        open_sources([str(tmp_path / name)], row_bytes=None if "." in name else 8)


def test_empty_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.bin").touch()
    with pytest.raises(SourceError, match="the file is empty"):
        open_sources([tmp_path / "t.bin"], row_bytes=8)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("layers.1", "layers.1"),
        ("my table (2)", "my-table--2-"),
        ("a/b/c", "a/b/c"),
        ("/a//b/", "a/b"),
        ("..", "--"),
        ("a/../b/./c", "a/--/b/-/c"),
        ("", "table"),
        ("///", "table"),
        ("größe\n", "gr--e-"),
        ("x" * 200, "x" * 128),
        ("x" * 126 + "/..y", "x" * 126 + "/-"),
        ("x" * 127 + "/y", "x" * 127),
    ],
)
def test_default_names_are_cleaned(text: str, name: str) -> None:
    assert table_name(text) == name


@given(st.text(max_size=300) | st.text("./a", max_size=300))
def test_default_names_are_always_valid(text: str) -> None:
    name = table_name(text)
    assert re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", name)
    assert len(name) <= 128
    assert not {".", ".."} & set(name.split("/"))


@given(st.text(st.characters(), max_size=600))
def test_names_in_messages_are_one_short_printable_line(text: str) -> None:
    line = shown(text)
    assert line.isprintable()
    assert line
    assert len(line) <= 203 * 10 + 2
