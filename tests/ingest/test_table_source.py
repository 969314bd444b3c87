# SPDX-License-Identifier: Apache-2.0
"""Packed bytes of a table of one or several columns, at any offset, by any thread."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_files import interleaved, open_files, random_bytes, read_all, read_part

from engramdax.errors import ClosedError, ParameterError, SourceError
from engramdax.format.layout import RowLayout
from engramdax.ingest.file import SourceFile
from engramdax.ingest.source import BLOCK_BYTES, Column, TableSource


def make_source(folder: Path, rows: int, *widths: int) -> tuple[TableSource, bytes]:
    """A table of these columns, each in a file of its own 7 bytes in, and its packed bytes."""
    contents = [random_bytes(rows * width, seed) for seed, width in enumerate(widths)]
    columns = []
    for i, (width, content) in enumerate(zip(widths, contents, strict=True)):
        (folder / f"column{i}").write_bytes(b"skipped" + content + b"tail")
        columns.append(Column(SourceFile(folder / f"column{i}"), 7, width))
    layout = RowLayout.packed(*((f"f{i}", "uint8", width) for i, width in enumerate(widths)))
    source = TableSource(kind="test", name="t", rows=rows, layout=layout, columns=columns)
    return source, interleaved(rows, *contents)


@pytest.mark.parametrize("widths", [(1,), (320,), (256, 8), (8, 256), (1, 1), (3, 5, 7), (160, 5)])
def test_whole_table_is_packed_row_by_row(tmp_path: Path, widths: tuple[int, ...]) -> None:
    source, expected = make_source(tmp_path, 1_003, *widths)
    with source:
        assert source.nbytes == len(expected)
        assert read_all(source) == expected


def test_table_of_several_blocks_is_packed(tmp_path: Path) -> None:
    rows = 3 * BLOCK_BYTES // 264 + 17
    source, expected = make_source(tmp_path, rows, 256, 8)
    with source:
        assert read_all(source) == expected
        assert read_part(source, 263, 2 * BLOCK_BYTES + 5) == expected[263 : 2 * BLOCK_BYTES + 268]


def test_rows_of_the_largest_size_are_packed(tmp_path: Path) -> None:
    source, expected = make_source(tmp_path, 3, (1 << 20) - 100, 100)
    with source:
        assert read_all(source) == expected


@pytest.mark.parametrize("widths", [(13,), (11, 2), (4, 8, 1)])
def test_each_offset_and_length_gives_its_bytes(tmp_path: Path, widths: tuple[int, ...]) -> None:
    source, expected = make_source(tmp_path, 5, *widths)
    with source:
        for offset in range(len(expected) + 1):
            for length in range(len(expected) - offset + 1):
                assert read_part(source, offset, length) == expected[offset : offset + length]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=4),
    st.integers(1, 200),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_any_columns_at_any_offset(tmp_path: Path, widths: list[int], rows: int, begin: float, end: float) -> None:
    source, expected = make_source(tmp_path, rows, *widths)
    with source:
        low, high = sorted((int(begin * len(expected)), int(end * len(expected))))
        assert read_part(source, low, high - low) == expected[low:high]


@pytest.mark.parametrize("widths", [(264,), (256, 8)])
def test_threads_read_at_once(tmp_path: Path, widths: tuple[int, ...]) -> None:
    source, expected = make_source(tmp_path, 8_000, *widths)
    wrong: list[int] = []

    def read_many(seed: int) -> None:
        rng = np.random.default_rng(seed)
        out = np.empty(40_001, dtype=np.uint8)
        for offset in rng.integers(0, len(expected) - len(out), size=100).tolist():
            source.read_into(offset, out)
            if out.tobytes() != expected[offset : offset + len(out)]:
                wrong.append(offset)

    with source:
        threads = [threading.Thread(target=read_many, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 41), (40, 1), (41, 0)])
def test_range_outside_the_table_is_refused(tmp_path: Path, offset: int, length: int) -> None:
    source, _ = make_source(tmp_path, 4, 10)
    with source, pytest.raises(ParameterError, match="of table t, which has 40"):
        source.read_into(offset, memoryview(bytearray(length)))


def test_column_that_ends_early_is_an_error(tmp_path: Path) -> None:
    source, _ = make_source(tmp_path, 100, 10, 2)
    with source:
        os.truncate(tmp_path / "column1", 50)
        with pytest.raises(SourceError, match="column1: ended early"):
            read_all(source)


def test_change_of_any_file_is_noticed(tmp_path: Path) -> None:
    source, _ = make_source(tmp_path, 100, 10, 2)
    with source:
        source.check_unchanged()
        os.truncate(tmp_path / "column1", 50)
        with pytest.raises(SourceError, match="column1: changed while it was read"):
            source.check_unchanged()


def test_description_is_json_with_each_file_once(tmp_path: Path) -> None:
    (tmp_path / "both").write_bytes(random_bytes(30))
    file = SourceFile(tmp_path / "both")
    columns = [Column(file, 0, 2), Column(file.retain(), 20, 1)]
    layout = RowLayout.packed(("a", "uint8", 2), ("b", "uint8", 1))
    tensors = ("x", "y")
    with TableSource(kind="test", name="t", rows=10, layout=layout, columns=columns, tensors=tensors) as source:
        described = json.loads(json.dumps(source.describe()))
    mtime_ns = (tmp_path / "both").stat().st_mtime_ns
    assert described == {
        "kind": "test",
        "files": [{"path": str(tmp_path / "both"), "size": 30, "mtime_ns": mtime_ns}],
        "tensors": ["x", "y"],
    }
    assert open_files(tmp_path) == 0


@pytest.mark.parametrize("widths", [(4,), (4, 2)])
def test_closing_twice_is_fine_and_reading_then_is_an_error(tmp_path: Path, widths: tuple[int, ...]) -> None:
    source, _ = make_source(tmp_path, 10, *widths)
    source.close()
    source.close()
    assert open_files(tmp_path) == 0
    with pytest.raises(ClosedError, match="was closed before"):
        source.read_into(0, memoryview(bytearray(1)))
