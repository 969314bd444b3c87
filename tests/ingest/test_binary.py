# SPDX-License-Identifier: Apache-2.0
"""Raw files: rows of a size that the caller gives."""

from __future__ import annotations

from pathlib import Path

import pytest
from table_files import open_files, random_bytes, read_all

from engramdax.errors import ParameterError, SourceError
from engramdax.format.layout import Field
from engramdax.ingest.binary import open_binary


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "my table.bin"
    path.write_bytes(random_bytes(3_200))
    return path


def test_rows_of_bytes(table: Path) -> None:
    with open_binary(table, row_bytes=320) as source:
        assert source.rows == 10
        assert source.name == "my-table"
        assert source.layout.fields == (Field("row", "uint8", 320, 0, 320),)
        assert source.describe()["kind"] == "binary"
        assert read_all(source) == table.read_bytes()


def test_rows_of_elements(table: Path) -> None:
    with open_binary(table, dtype="bfloat16", dim=160) as source:
        assert source.rows == 10
        assert source.layout.fields == (Field("row", "bfloat16", 160, 0, 320),)
        assert read_all(source) == table.read_bytes()


def test_row_size_must_be_given(table: Path) -> None:
    with pytest.raises(ParameterError, match="say --row-bytes N, or --dtype D --dim N"):
        open_binary(table)


@pytest.mark.parametrize(
    ("dtype", "dim", "missing"), [("float16", None, "--dim is missing"), (None, 8, "--dtype is missing")]
)
def test_half_of_a_row_type_is_refused(table: Path, dtype: str | None, dim: int | None, missing: str) -> None:
    with pytest.raises(ParameterError, match=missing):
        open_binary(table, dtype=dtype, dim=dim)


def test_row_size_given_twice_is_refused(table: Path) -> None:
    with pytest.raises(ParameterError, match="given twice"):
        open_binary(table, row_bytes=320, dtype="bfloat16", dim=160)


@pytest.mark.parametrize("size", [0, -1, -(1 << 70)])
def test_row_size_below_one_is_refused(table: Path, size: int) -> None:
    with pytest.raises(ParameterError, match=f"row size {size} is impossible"):
        open_binary(table, row_bytes=size)


@pytest.mark.parametrize("dim", [0, -3])
def test_dim_below_one_is_refused(table: Path, dim: int) -> None:
    with pytest.raises(ParameterError, match=f"dim {dim} is impossible"):
        open_binary(table, dtype="float32", dim=dim)


@pytest.mark.parametrize("size", [(1 << 20) + 1, 1 << 63, 1 << 70])
def test_huge_row_is_refused(table: Path, size: int) -> None:
    with pytest.raises(ParameterError, match="a row has at most 1048576 bytes"):
        open_binary(table, row_bytes=size)


def test_huge_row_of_elements_is_refused(table: Path) -> None:
    with pytest.raises(ParameterError, match="a row of 1048584 bytes is too large"):
        open_binary(table, dtype="float64", dim=(1 << 17) + 1)


def test_unknown_dtype_is_refused_with_the_known_ones(table: Path) -> None:
    with pytest.raises(ParameterError, match=r"dtype fp8 is not known; it is one of uint8, .*bfloat16"):
        open_binary(table, dtype="fp8", dim=8)


def test_file_of_a_broken_row_is_refused_with_the_remainder(table: Path) -> None:
    with pytest.raises(SourceError, match="3200 bytes are not a whole number of 264-byte rows: 12 rows and 32 bytes"):
        open_binary(table, row_bytes=264)
    assert open_files(table.parent) == 0


def test_file_smaller_than_a_row_is_refused(table: Path) -> None:
    with pytest.raises(SourceError, match="0 rows and 3200 bytes"):
        open_binary(table, row_bytes=4096)


def test_arguments_are_judged_before_the_file(tmp_path: Path) -> None:
    with pytest.raises(ParameterError):
        open_binary(tmp_path / "none.bin", row_bytes=0)
    with pytest.raises(SourceError, match="no such file"):
        open_binary(tmp_path / "none.bin", row_bytes=1)


def test_largest_row_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(bytes(2 << 20))
    with open_binary(tmp_path / "t.bin", row_bytes=1 << 20) as source:
        assert source.rows == 2
