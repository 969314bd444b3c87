# SPDX-License-Identifier: Apache-2.0
"""The header of a .safetensors file: what is read, and each way in which it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_files import open_files, random_bytes, read_all, read_part, safetensors_bytes, write_safetensors

from engramdax.errors import SourceError
from engramdax.format.layout import Field
from engramdax.ingest.safetensors import LAYOUT_DTYPES, SafetensorsFile, open_checkpoint, open_tensor


def entry(begin: Any, end: Any, shape: Any, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def refused(folder: Path, content: bytes, match: str) -> None:
    path = folder / "t.safetensors"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=match) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert open_files(folder) == 0


def refused_header(folder: Path, header: Any, match: str, data: bytes = bytes(8)) -> None:
    refused(folder, safetensors_bytes(header, data), match)


def test_tensors_are_found_with_their_place(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "t.safetensors", {"a": ("U8", [2, 3], b"abcdef"), "b": ("F32", [], b"wxyz")})
    opened = SafetensorsFile(path)
    content = path.read_bytes()
    assert list(opened.tensors) == ["a", "b"]
    a, b = opened.tensors.values()
    assert (a.dtype, a.shape, content[a.begin : a.end]) == ("U8", (2, 3), b"abcdef")
    assert (b.dtype, b.shape, content[b.begin : b.end]) == ("F32", (), b"wxyz")
    opened.close()
    assert open_files(tmp_path) == 0


def test_header_padded_with_spaces_is_read(tmp_path: Path) -> None:
    header = json.dumps({"a": entry(0, 8, [8])}).encode() + b" " * 7
    (tmp_path / "t.safetensors").write_bytes(safetensors_bytes(header, bytes(8)))
    SafetensorsFile(tmp_path / "t.safetensors").close()


def test_order_of_the_header_need_not_be_that_of_the_data(tmp_path: Path) -> None:
    header = {"b": entry(3, 8, [5]), "none": entry(3, 3, [0, 7]), "a": entry(0, 3, [3])}
    (tmp_path / "t.safetensors").write_bytes(safetensors_bytes(header, bytes(8)))
    SafetensorsFile(tmp_path / "t.safetensors").close()


@pytest.mark.parametrize("kept", [1, 7])
def test_file_without_a_header_length_is_refused(tmp_path: Path, kept: int) -> None:
    refused(tmp_path, bytes(kept), f"{kept} bytes are too few")


def test_header_length_past_the_end_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, (100).to_bytes(8, "little") + b"{}", "claims 100 bytes and would end past the file's 10")


@pytest.mark.parametrize("length", [1 << 63, (1 << 64) - 1, 100_000_001])
def test_header_length_above_the_bound_is_refused(tmp_path: Path, length: int) -> None:
    refused(tmp_path, length.to_bytes(8, "little") + b"{}", f"claims {length} bytes, more than the format's")


def test_header_of_invalid_utf_8_is_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, b'{"a\xff": 1}', "the header is not valid UTF-8 at byte 3")


def test_header_in_utf_16_is_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, "{}".encode("utf-16-le"), "the header is not valid JSON")


@pytest.mark.parametrize(
    "header",
    [
        b"{",
        b"{}{}",
        b"{'a': 1}",
        b'{"a": [NaN]}',
        b'{"a": Infinity}',
        b'{"a":' * 50_000,
        b'{"a": ' + b"9" * 5_000 + b"}",
        b"{}\0",
    ],
)
def test_header_that_is_not_json_is_refused(tmp_path: Path, header: bytes) -> None:
    refused_header(tmp_path, header, "the header is not valid JSON")


@pytest.mark.parametrize("header", [b"", b" {}", b"[]", b"\xef\xbb\xbf{}", b"null"])
def test_header_that_does_not_start_with_a_brace_is_refused(tmp_path: Path, header: bytes) -> None:
    refused_header(tmp_path, header, "the header starts with .*, not with b'{'")


def test_duplicate_tensor_is_refused(tmp_path: Path) -> None:
    one = json.dumps(entry(0, 8, [8]))
    refused_header(tmp_path, f'{{"a": {one}, "a": {one}}}'.encode(), "has the key a twice")


def test_duplicate_key_of_an_entry_is_refused(tmp_path: Path) -> None:
    text = b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [8], "data_offsets": [0, 8]}}'
    refused_header(tmp_path, text, "has the key dtype twice")


@pytest.mark.parametrize("metadata", [[], "x", 1, None, {"a": 1}, {"a": None}, {"a": {}}])
def test_metadata_that_is_no_map_of_strings_is_refused(tmp_path: Path, metadata: Any) -> None:
    refused_header(tmp_path, {"__metadata__": metadata}, "__metadata__ is not a map of strings", b"")


@pytest.mark.parametrize("value", [None, 1, "U8", [1, 2]])
def test_entry_that_is_no_object_is_refused(tmp_path: Path, value: Any) -> None:
    refused_header(tmp_path, {"a": value}, "tensor a: the entry is not a JSON object")


@pytest.mark.parametrize("key", ["dtype", "shape", "data_offsets"])
def test_entry_without_a_part_is_refused(tmp_path: Path, key: str) -> None:
    whole = entry(0, 8, [8])
    del whole[key]
    refused_header(tmp_path, {"a": whole}, f"tensor a: the entry lacks {key}")


@pytest.mark.parametrize("dtype", [None, 8, ["U8"], {}])
def test_dtype_of_a_wrong_type_is_refused(tmp_path: Path, dtype: Any) -> None:
    refused_header(tmp_path, {"a": entry(0, 8, [8], dtype)}, "dtype is not a string")


@pytest.mark.parametrize("shape", [None, 8, "8", {}, [-8], [8.0], ["8"], [True], [[8]], [None], [1 << 64], [0, -1]])
def test_shape_of_a_wrong_type_is_refused(tmp_path: Path, shape: Any) -> None:
    refused_header(tmp_path, {"a": entry(0, 8, shape)}, "tensor a: shape is not a list of lengths")


@pytest.mark.parametrize(
    "offsets", [None, 8, {}, [], [8], [0, 4, 8], [0, 8.0], [False, 8], [-1, 7], [0, "8"], [0, 1 << 64]]
)
def test_offsets_of_a_wrong_type_are_refused(tmp_path: Path, offsets: Any) -> None:
    header = {"a": {"dtype": "U8", "shape": [8], "data_offsets": offsets}}
    refused_header(tmp_path, header, "tensor a: data_offsets is not a list of two offsets")


def test_offsets_that_run_backwards_are_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, {"a": entry(8, 0, [8])}, "data_offsets 8 to 0 run backwards")


@pytest.mark.parametrize("end", [9, (1 << 64) - 1])
def test_offsets_out_of_range_are_refused(tmp_path: Path, end: int) -> None:
    refused_header(tmp_path, {"a": entry(0, end, [end])}, f"0 to {end} end past the 8 bytes of data")


def test_overlapping_tensors_are_refused(tmp_path: Path) -> None:
    header = {"b": entry(4, 8, [4]), "a": entry(0, 5, [5])}
    refused_header(tmp_path, header, "tensor b: data_offsets 4 to 8 overlap tensor a")


def test_two_tensors_of_the_same_bytes_are_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, {"a": entry(0, 8, [8]), "b": entry(0, 8, [8])}, "overlap tensor a")


def test_hole_between_tensors_is_refused(tmp_path: Path) -> None:
    header = {"a": entry(0, 3, [3]), "b": entry(5, 8, [3])}
    refused_header(tmp_path, header, "tensor b: .* leave a hole of 2 bytes before it")


def test_hole_at_the_start_is_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, {"a": entry(1, 8, [7])}, "leave a hole of 1 bytes before it")


def test_bytes_after_the_last_tensor_are_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, {"a": entry(0, 7, [7])}, "1 bytes after the last tensor belong to none")


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ([7], "U8"),
        ([9], "U8"),
        ([8], "BF16"),
        ([2, 2], "F8_E4M3"),
        ([], "U8"),
        ([0, 8], "U8"),
        # Products that come out as 8 in 64 bits.
        ([(1 << 63) + 4, 2], "U8"),
        ([1 << 32, 1 << 32, 8], "U8"),
        ([1 << 61, 1], "F64"),
    ],
)
def test_shape_times_dtype_that_does_not_match_is_refused(tmp_path: Path, shape: list[int], dtype: str) -> None:
    refused_header(tmp_path, {"a": entry(0, 8, shape, dtype)}, f"{dtype} of shape .* does not make the 8 bytes")


def test_endless_shape_is_refused_at_once(tmp_path: Path) -> None:
    refused_header(tmp_path, {"a": entry(0, 8, [(1 << 64) - 1] * 100_000)}, "does not make the 8 bytes")


def test_name_of_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    refused_header(tmp_path, b'{"\\ud800": {}}', "half of a surrogate pair")


def test_long_name_is_cut_in_the_message(tmp_path: Path) -> None:
    refused_header(tmp_path, {"x" * 5_000: None}, r"tensor x{100}\.\.\.x{100}: the entry")


def make_checkpoint(folder: Path) -> tuple[Path, bytes]:
    rows = random_bytes(60)
    return write_safetensors(
        folder / "t.safetensors",
        {
            "other": ("I64", [2], bytes(16)),
            "model.embed.weight": ("BF16", [5, 6], rows),
            "vector": ("F32", [3], bytes(12)),
            "empty": ("F32", [0, 3], b""),
            "mask": ("BOOL", [2, 2], bytes(4)),
            "later": ("F2_NEW", [2, 2], bytes(1)),
            "cube": ("U8", [1, 2, 3], bytes(6)),
            "wide": ("U8", [1, (1 << 20) + 1], bytes((1 << 20) + 1)),
        },
    ), rows


def test_tensor_is_a_table(tmp_path: Path) -> None:
    path, rows = make_checkpoint(tmp_path)
    with open_checkpoint(path) as checkpoint:
        source = open_tensor(checkpoint, "model.embed.weight")
    with source:
        assert source.name == "model.embed.weight"
        assert source.rows == 5
        assert source.layout.fields == (Field("row", "bfloat16", 6, 0, 12),)
        assert read_all(source) == rows
        assert read_part(source, 13, 30) == rows[13:43]
        described = source.describe()
        assert (described["kind"], described["tensors"]) == ("safetensors", ["model.embed.weight"])
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("dtype", list(LAYOUT_DTYPES))
def test_each_dtype_keeps_its_name(tmp_path: Path, dtype: str) -> None:
    layout_dtype = LAYOUT_DTYPES[dtype]
    content = random_bytes(6 * Field("x", layout_dtype, 1, 0, 8).bytes)
    path = write_safetensors(tmp_path / "t.safetensors", {"a": (dtype, [2, 3], content)})
    with open_checkpoint(path) as checkpoint, open_tensor(checkpoint, "a") as source:
        assert source.layout.fields[0].dtype == layout_dtype
        assert read_all(source) == content


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("vector", "tensor vector: it has 1 dimensions, a table has 2"),
        ("cube", "tensor cube: it has 3 dimensions"),
        ("empty", r"its shape \[0, 3\] holds nothing"),
        ("mask", "its dtype BOOL cannot be loaded"),
        ("later", "its dtype F2_NEW cannot be loaded"),
        ("wide", "a row of 1048577 bytes is too large"),
        ("model.embed.wieght", "has no tensor model.embed.wieght among its 8; nearest: model.embed.weight"),
        ("zzzzzzzz", "has no tensor zzzzzzzz among its 8; check the name"),
    ],
)
def test_tensor_that_is_no_table_is_refused(tmp_path: Path, name: str, match: str) -> None:
    path, _ = make_checkpoint(tmp_path)
    with open_checkpoint(path) as checkpoint, pytest.raises(SourceError, match=match):
        open_tensor(checkpoint, name)
    assert open_files(tmp_path) == 0


JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
SMALL = st.integers(-1, 9)
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["U8", "F16", "F4", "BOOL", "NEW"]) | JSON_VALUES,
        "shape": st.lists(SMALL, max_size=3) | JSON_VALUES,
        "data_offsets": st.lists(SMALL, min_size=2, max_size=2) | JSON_VALUES,
    }
)


def open_or_refuse(path: Path) -> None:
    """A checkpoint whose tensors lie in the file, or a SourceError of one line: nothing else may come."""
    try:
        checkpoint = open_checkpoint(path)
    except SourceError as e:
        assert "\n" not in str(e)  # noqa: PT017
    else:
        with checkpoint:
            covered = 0
            for shard, tensor in checkpoint.tensors.values():
                assert 8 <= tensor.begin <= tensor.end <= shard.file.size
                covered += tensor.end - tensor.begin
            assert covered <= path.stat().st_size - 8
    assert open_files(path.parent) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(st.dictionaries(st.text(max_size=3), ENTRIES | JSON_VALUES, max_size=3) | JSON_VALUES, st.binary(max_size=16))
def test_any_json_as_a_header_is_read_or_refused(tmp_path: Path, header: Any, data: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(safetensors_bytes(header, data))
    open_or_refuse(tmp_path / "t.safetensors")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=4),
    st.none() | st.integers(1, 200),
)
def test_mutated_files_are_read_or_refused(tmp_path: Path, changes: list[tuple[int, int]], kept: int | None) -> None:
    header = {"a": entry(0, 6, [3, 2]), "b": entry(6, 14, [2, 2], "BF16"), "__metadata__": {"format": "pt"}}
    content = bytearray(safetensors_bytes(header, bytes(14)))
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "t.safetensors").write_bytes(content[:kept])
    open_or_refuse(tmp_path / "t.safetensors")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(st.binary(min_size=1, max_size=64))
def test_any_bytes_are_read_or_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "t.safetensors").write_bytes(content)
    open_or_refuse(tmp_path / "t.safetensors")
