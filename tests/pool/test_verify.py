# SPDX-License-Identifier: Apache-2.0
"""Checksums of a table: flipped bits are found, and named by block and rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engramdax
from engramdax.checksums import BadBlock
from engramdax.errors import DamagedTableError
from engramdax.format.geometry import MIB
from engramdax.format.layout import Field, RowLayout

Fixture = Callable[..., object]

ROW = 264
ROWS = 12000  # 3 blocks and 22272 bytes


@pytest.fixture
def path(make_pool: Callable[..., Path], load_array: Fixture) -> Path:
    path = make_pool()
    load_array(path, "t", np.random.default_rng(0).integers(0, 256, (ROWS, ROW), dtype=np.uint8))
    return path


def flip(path: Path, offset: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        (byte,) = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 1 << bit]))


def bad_blocks(path: Path) -> list[BadBlock]:
    with engramdax.open(path) as pool:
        return pool["t"].verify()


def extent_of(path: Path) -> tuple[int, int]:
    with engramdax.open(path) as pool:
        entry = pool["t"]._entry
        return entry.extent.offset, entry.checksums.offset


def test_an_undamaged_table_has_no_bad_block(path: Path) -> None:
    assert bad_blocks(path) == []


@pytest.mark.parametrize("offset", [0, 1, MIB - 1, MIB, 2 * MIB + 5, ROWS * ROW - 1])
def test_one_flipped_bit_names_its_block_and_the_rows_in_it(path: Path, offset: int) -> None:
    flip(path, extent_of(path)[0] + offset, offset % 8)
    begin = offset // MIB * MIB
    end = min(begin + MIB, ROWS * ROW)
    assert bad_blocks(path) == [BadBlock(begin, end - begin, begin // ROW, (end - 1) // ROW)]


def test_several_bad_blocks_are_all_named_in_order(path: Path) -> None:
    rows_at, _ = extent_of(path)
    flip(path, rows_at + 3 * MIB)
    flip(path, rows_at + 10)
    flip(path, rows_at + 20)
    assert [block.offset for block in bad_blocks(path)] == [0, 3 * MIB]


def test_bytes_behind_the_last_row_do_not_count(path: Path) -> None:
    flip(path, extent_of(path)[0] + ROWS * ROW)
    assert bad_blocks(path) == []


def test_damaged_checksums_are_told_apart_from_damaged_rows(path: Path) -> None:
    flip(path, extent_of(path)[1] + 15)
    with pytest.raises(DamagedTableError, match=r"the checksums of table [a-z0-9./-]+ are damaged themselves"):
        bad_blocks(path)


def test_bytes_behind_the_checksums_do_not_count(path: Path) -> None:
    flip(path, extent_of(path)[1] + 16)
    assert bad_blocks(path) == []


def test_progress_ends_at_all_bytes(path: Path) -> None:
    told: list[int] = []
    with engramdax.open(path) as pool:
        pool["t"].verify(progress=told.append)
    assert told == sorted(told)
    assert told[-1] == ROWS * ROW


@given(data=st.data())
def test_the_rows_of_a_block_are_those_with_bytes_in_it(data: st.DataObject) -> None:
    rows = data.draw(st.integers(1, 12))
    widths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    if data.draw(st.booleans()):
        layout = RowLayout.packed(*[(f"f{i}", "uint8", width) for i, width in enumerate(widths)])
    else:  # arrays side by side
        starts = np.cumsum([0, *[width * rows for width in widths]])
        layout = RowLayout(
            tuple(Field(f"f{i}", "uint8", w, int(at), w) for i, (w, at) in enumerate(zip(widths, starts, strict=False)))
        )
    total = layout.extent_bytes(rows)
    offset = data.draw(st.integers(0, total - 1))
    length = data.draw(st.integers(1, total - offset))
    touched = [
        r
        for r in range(rows)
        for f in layout.fields
        if f.offset + r * f.stride < offset + length and offset < f.offset + r * f.stride + f.bytes
    ]
    assert layout.rows_within(rows, offset, length) == (min(touched), max(touched))


def test_a_block_of_padding_names_the_rows_around_it() -> None:
    layout = RowLayout((Field("f", "uint8", 8, 0, 64),))
    assert layout.rows_within(3, 72, 8) == (1, 2)
    assert layout.rows_within(3, 136, 8) == (2, 2)
