# SPDX-License-Identifier: Apache-2.0
"""Arrays in .npy files: the versions and types that are read, and all that is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.lib import format as npy_format
from table_files import open_files, read_all

from engramdax.errors import SourceError
from engramdax.format.layout import Field
from engramdax.ingest.npy import open_npy

PLAIN = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


def npy_bytes(header: str | bytes, data: bytes = bytes(48), version: tuple[int, int] = (1, 0)) -> bytes:
    text = header if isinstance(header, bytes) else header.encode()
    length = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return bytes(npy_format.MAGIC_PREFIX) + bytes(version) + length + text + data


def refused(folder: Path, content: bytes, match: str) -> None:
    path = folder / "t.npy"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=match) as caught:
        open_npy(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.remedy
    assert open_files(folder) == 0


def refused_array(folder: Path, array: np.ndarray, match: str) -> None:
    path = folder / "made.npy"
    np.save(path, array, allow_pickle=True)
    refused(folder, path.read_bytes(), match)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_each_version_is_read(tmp_path: Path, version: tuple[int, int]) -> None:
    array = np.arange(60, dtype=np.float32).reshape(12, 5)
    with (tmp_path / "t.npy").open("wb") as raw:
        npy_format.write_array(raw, array, version=version)
    with open_npy(tmp_path / "t.npy") as source:
        assert source.rows == 12
        assert source.name == "t"
        assert source.layout.fields == (Field("row", "float32", 5, 0, 20),)
        assert source.describe()["kind"] == "npy"
        assert read_all(source) == array.tobytes()


@pytest.mark.parametrize(
    "name",
    ["uint8", "int8", "float16", "uint16", "int16", "float32", "uint32", "int32", "float64", "uint64", "int64"],
)
def test_each_numeric_type_is_read(tmp_path: Path, name: str) -> None:
    array = np.arange(24).reshape(3, 8).astype(name)
    np.save(tmp_path / "t.npy", array)
    with open_npy(tmp_path / "t.npy") as source:
        assert source.layout.fields[0].dtype == name
        assert read_all(source) == array.tobytes()


def test_header_of_python_2_is_read(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (3L, 4L), }\n"
    (tmp_path / "t.npy").write_bytes(npy_bytes(header))
    with open_npy(tmp_path / "t.npy") as source:
        assert source.rows == 3


@pytest.mark.parametrize("shape", [(1, 7), (7, 1)])
def test_fortran_order_of_a_single_row_or_column_is_read(tmp_path: Path, shape: tuple[int, int]) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': True, 'shape': {shape}, }}"
    (tmp_path / "t.npy").write_bytes(npy_bytes(header, bytes(28)))
    with open_npy(tmp_path / "t.npy") as source:
        assert source.rows == shape[0]


def test_wrong_magic_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, b"PK\x03\x04 an archive, say", r"is not a \.npy file: it starts with b'PK")


def test_unknown_version_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, npy_bytes(PLAIN, version=(4, 0)), r"\.npy version 4\.0 is not known")


@pytest.mark.parametrize("kept", [6, 8, 9, 11])
def test_file_of_half_a_preamble_is_refused(tmp_path: Path, kept: int) -> None:
    refused(tmp_path, npy_bytes(PLAIN)[:kept], "header is truncated after")


def test_truncated_header_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, npy_bytes(PLAIN)[:40], "header is truncated: it ends at byte 69 of 40")


def test_long_header_is_refused_unparsed(tmp_path: Path) -> None:
    header = PLAIN + " " * 20_000
    refused(tmp_path, npy_bytes(header, version=(2, 0)), r"claims 20059 bytes, more than the 10000")


def test_header_length_of_4_gib_is_refused(tmp_path: Path) -> None:
    content = bytes(npy_format.MAGIC_PREFIX) + b"\x02\x00\xff\xff\xff\xff" + bytes(100)
    refused(tmp_path, content, "claims 4294967295 bytes")


@pytest.mark.parametrize(
    "header",
    [
        "__import__('os').abort()",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (__import__('os').abort(), 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 2 ** 99999)}",
        "{'descr': '<f4', 'fortran_order': False}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (3, 4)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3, 4]}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3.0, 4)}",
        "{'descr': 'no such type', 'fortran_order': False, 'shape': (3, 4)}",
        "{'descr': 5, 'fortran_order': False, 'shape': (3, 4)}",
        "{1: 2, 'descr': '<f4', b'x': 3}",
        "{[]: 1}",
        "(3, 4)",
        "",
        "\0",
        "(" * 9_000,
        "-" * 9_000 + "1",
        "[" * 150 + "]" * 150,
    ],
)
def test_header_that_is_no_plain_literal_is_refused(tmp_path: Path, header: str) -> None:
    refused(tmp_path, npy_bytes(header), "header cannot be parsed")


def test_header_of_invalid_utf_8_is_refused(tmp_path: Path) -> None:
    refused(tmp_path, npy_bytes(b"{'descr': '\xff'}", version=(3, 0)), "header cannot be parsed")


@pytest.mark.parametrize("shape", ["(-3, 4)", "(3, True)", f"(3, 0x{'f' * 9_000})", f"({1 << 63}, 1)"])
def test_impossible_shape_is_refused(tmp_path: Path, shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}"
    refused(tmp_path, npy_bytes(header), "shape is impossible")


def test_objects_are_refused_unread(tmp_path: Path) -> None:
    refused_array(tmp_path, np.array([[{}, None]], dtype=object), r"holds Python objects \(a pickle\)")


def test_structured_elements_are_refused(tmp_path: Path) -> None:
    refused_array(tmp_path, np.zeros((3, 4), dtype=[("a", "<f4"), ("b", "u1")]), "elements are structured")


def test_structured_elements_with_objects_are_refused(tmp_path: Path) -> None:
    refused_array(tmp_path, np.zeros((3, 4), dtype=[("a", "O")]), "holds Python objects")


def test_elements_that_are_arrays_are_refused(tmp_path: Path) -> None:
    header = "{'descr': ('<f4', (2,)), 'fortran_order': False, 'shape': (3, 4), }"
    refused(tmp_path, npy_bytes(header), "elements are structured")


def test_voids_are_refused_with_the_way_out(tmp_path: Path) -> None:
    refused_array(tmp_path, np.zeros((3, 4), dtype="V2"), "2-byte voids.*--dtype D --dim N or --row-bytes")


@pytest.mark.parametrize("dtype", ["S4", "U4", "bool", "complex64", "M8[s]", "m8[s]"])
def test_type_that_is_no_plain_number_is_refused(tmp_path: Path, dtype: str) -> None:
    refused_array(tmp_path, np.zeros((3, 4), dtype=dtype), "elements are .*; a table holds one of uint8")


def test_big_endian_is_refused(tmp_path: Path) -> None:
    refused_array(tmp_path, np.zeros((3, 4), dtype=">f4"), r"elements are big-endian \(>f4\)")


def test_fortran_order_is_refused(tmp_path: Path) -> None:
    refused_array(tmp_path, np.asfortranarray(np.zeros((3, 4))), "is in Fortran order")


@pytest.mark.parametrize("shape", [(), (12,), (3, 2, 2)])
def test_other_than_two_dimensions_are_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    refused_array(tmp_path, np.zeros(shape), f"has {len(shape)} dimensions, a table has 2")


@pytest.mark.parametrize("shape", [(0, 4), (3, 0), (0, 0)])
def test_array_of_nothing_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    refused_array(tmp_path, np.zeros(shape), r"of shape \(\d, \d\) holds nothing")


def test_too_wide_row_is_refused(tmp_path: Path) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': (3, {(1 << 18) + 1}), }}"
    refused(tmp_path, npy_bytes(header), "a row of 262145 float32 is too large")


def test_truncated_data_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, npy_bytes(PLAIN, bytes(47)), "makes a file of 117 bytes, this has 116: it is truncated")


def test_trailing_bytes_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, npy_bytes(PLAIN, bytes(49)), "makes a file of 117 bytes, this has 118: it is too long")


def open_or_refuse(path: Path) -> None:
    """A table whose bytes are all there, or a SourceError of one line: nothing else may come out."""
    try:
        source = open_npy(path)
    except SourceError as e:
        assert "\n" not in str(e)  # noqa: PT017
    else:
        with source:
            assert len(read_all(source)) == source.nbytes > 0
    assert open_files(path.parent) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 127), st.integers(0, 255)), max_size=4),
    st.one_of(st.none(), st.integers(0, 200)),
)
def test_mutated_files_are_read_or_refused(
    tmp_path: Path, major: int, changes: list[tuple[int, int]], kept: int | None
) -> None:
    content = bytearray(npy_bytes(PLAIN + "\n", version=(major, 0)))
    for place, value in changes:
        content[place % len(content)] = value
    (tmp_path / "t.npy").write_bytes(content[:kept] or b"x")
    open_or_refuse(tmp_path / "t.npy")


LITERALS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
DESCRIPTIONS = st.sampled_from(["<f4", ">f8", "|O", "|V3", "?", "<U3", "f4,i4", "(2,3)f4", "M8[ns]"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(
    st.one_of(
        LITERALS,
        st.fixed_dictionaries(
            {
                "descr": DESCRIPTIONS | LITERALS,
                "fortran_order": st.booleans() | LITERALS,
                "shape": st.tuples(st.integers(-1, 5), st.integers(-1, 5)) | LITERALS,
            }
        ),
    ),
    st.integers(1, 3),
    st.binary(max_size=100),
)
def test_any_literal_as_a_header_is_read_or_refused(tmp_path: Path, header: Any, major: int, data: bytes) -> None:
    text = repr(header).encode("utf-8", "surrogatepass")
    (tmp_path / "t.npy").write_bytes(npy_bytes(text, data, (major, 0)))
    open_or_refuse(tmp_path / "t.npy")
