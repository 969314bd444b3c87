# SPDX-License-Identifier: Apache-2.0
"""Gathered rows against plain numpy indexing: row sizes, id types, shapes, heads, threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import engramdax
from engramdax.errors import RowIdError
from engramdax.table import Table

ROW_SIZES = [1, 2, 3, 7, 8, 63, 64, 65, 127, 128, 264, 272, 320, 512, 1024, 5120, 8192]
HEADS = (100, 1, 0, 250, 649)


def content(rows: int, width: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(width).integers(0, 256, (rows, width), dtype=np.uint8)


def reference(rows: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Rows by plain indexing; every id that is no row gives zeros."""
    valid = (ids >= 0) & (ids < len(rows))
    found = rows[np.where(valid, ids, 0)]
    found[~valid] = 0
    return found


@pytest.fixture
def table_of(make_pool: Callable[..., Path], load_array: Callable[..., object]) -> Callable[..., Table]:
    """Give a function that makes a table of an array, in a pool of its own."""

    def make(array: np.ndarray[Any, Any], heads: tuple[int, ...] | None = None) -> Table:
        path = make_pool(48 << 20)
        load_array(path, "t", array, heads)
        return engramdax.open(path)["t"]

    return make


@pytest.mark.parametrize("width", ROW_SIZES)
def test_rows_equal_plain_indexing(table_of: Callable[..., Table], width: int) -> None:
    rows = content(1000, width)
    table = table_of(rows)
    chance = np.random.default_rng(0)
    for dtype in (np.int32, np.int64):
        for shape in ((), (0,), (1,), (255,), (257,), (2000,), (3, 0), (7, 5), (2, 3, 4), (60, 3, 5)):
            ids = chance.integers(-1, 1000, shape, dtype=dtype)
            for threads in (None, 1, 2, 7):
                found = table.gather(ids, threads=threads)
                assert found.shape == (*shape, width)
                assert (found == reference(rows, ids)).all()
                assert found.flags.owndata or found.base is not None
    assert (table.gather(np.arange(1000)) == rows).all()
    assert (table.gather(np.full(500, 999)) == rows[999]).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint16", "float64", "int8"])
def test_rows_of_a_type_that_numpy_has_come_back_as_it(table_of: Callable[..., Table], dtype: str) -> None:
    rows = np.arange(600).reshape(100, 6).astype(dtype)
    table = table_of(rows)
    assert table.dtype == np.dtype(dtype)
    found = table.gather(np.array([[5, -1], [99, 0]]))
    assert found.dtype == np.dtype(dtype)
    assert found.shape == (2, 2, 6)
    assert (found[1, 0] == rows[99]).all()
    assert not found[0, 1].any()
    out = bytearray(4 * 6 * table.dtype.itemsize)
    assert table.gather([1, 2, 3, 4], out).dtype == np.dtype(dtype)
    assert bytes(out) == rows[1:5].tobytes()


def test_lists_and_scalars_are_ids_too(table_of: Callable[..., Table]) -> None:
    rows = content(10, 4)
    table = table_of(rows)
    assert (table.gather([3, 4]) == rows[[3, 4]]).all()
    assert (table.gather(3) == rows[3]).all()
    assert table.gather([]).shape == (0, 4)
    assert table.gather([[], []]).shape == (2, 0, 4)
    assert table.gather(()).shape == (0, 4)


def test_ids_of_any_alignment_are_fine(table_of: Callable[..., Table]) -> None:
    rows = content(1000, 64)
    table = table_of(rows)
    ids = np.random.default_rng(1).integers(-1, 1000, 700)
    for dtype in (np.int32, np.int64):
        for shift in (1, 2, 3, 5):
            raw = bytes(shift) + ids.astype(dtype).tobytes()
            shifted = np.frombuffer(raw, dtype, offset=shift)
            assert (table.gather(shifted) == reference(rows, ids)).all()


def test_read_only_ids_are_fine(table_of: Callable[..., Table]) -> None:
    rows = content(10, 4)
    ids = np.arange(10)
    ids.flags.writeable = False
    assert (table_of(rows).gather(ids) == rows).all()


@pytest.fixture
def headed(table_of: Callable[..., Table]) -> tuple[Table, np.ndarray[Any, Any]]:
    rows = content(1000, 16)
    return table_of(rows, HEADS), rows


def test_ids_count_within_their_head(headed: tuple[Table, np.ndarray[Any, Any]]) -> None:
    table, rows = headed
    assert table.heads == HEADS
    starts = np.cumsum([0, *HEADS[:-1]])
    chance = np.random.default_rng(2)
    for dtype in (np.int32, np.int64):
        for shape in ((), (3,), (200,), (4, 50)):
            ids = np.stack([chance.integers(-1, n, shape, dtype=dtype) for n in HEADS], axis=-1)
            ids = np.ascontiguousarray(ids)
            expected = reference(rows, np.where(ids < 0, -1, ids + starts))
            assert (table.gather(ids, per_head=True) == expected).all()
    # Without per_head the same table takes plain rows.
    assert (table.gather([999]) == rows[999]).all()


def test_an_id_of_the_next_head_is_refused_and_names_the_head(headed: tuple[Table, np.ndarray[Any, Any]]) -> None:
    table, _ = headed
    ids = np.array([[0, 0, -1, 0, 0], [0, 1, -1, 0, 0]])
    with pytest.raises(RowIdError, match=r"ids\[1, 1\] is 1, head 1 of table t has rows 0 to 0"):
        table.gather(ids, per_head=True)
    assert not table.gather(ids, per_head=True, invalid="zero")[1, 1].any()


def test_bad_ids_give_zeros_when_asked(table_of: Callable[..., Table]) -> None:
    rows = content(100, 24)
    table = table_of(rows)
    for dtype, extremes in (
        (np.int32, [-(1 << 31), (1 << 31) - 1]),
        (np.int64, [-(1 << 63), (1 << 63) - 1, 1 << 32, (1 << 32) + 5, -(1 << 32)]),
    ):
        ids = np.array([0, 99, 100, -1, -2, *extremes, 5] * 100, dtype=dtype)
        for threads in (1, 4):
            out = np.full((len(ids), 24), 0xEE, np.uint8)
            table.gather(ids, out, invalid="zero", threads=threads)
            assert (out == reference(rows, ids)).all()


@pytest.fixture(scope="module")
def shared_content() -> np.ndarray[Any, Any]:
    return content(500, 40)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_any_ids_give_what_plain_indexing_gives(table_of: Callable[..., Table], data: st.DataObject) -> None:
    if not hasattr(table_of, "made"):
        table_of.made = table_of(content(500, 40))  # type: ignore[attr-defined]
    rows, table = content(500, 40), table_of.made  # type: ignore[attr-defined]
    dtype = data.draw(st.sampled_from([np.int32, np.int64]))
    values = data.draw(st.lists(st.integers(-3, 503), max_size=400))
    ids = np.array(values, dtype)
    threads = data.draw(st.integers(1, 4))
    bad = [i for i, value in enumerate(values) if not -1 <= value < 500]
    assert (table.gather(ids, invalid="zero", threads=threads) == reference(rows, ids)).all()
    if bad:
        with pytest.raises(RowIdError, match=rf"ids\[{bad[0]}\] is {values[bad[0]]}, table t has rows 0 to 499"):
            table.gather(ids, threads=threads)
    else:
        assert (table.gather(ids, threads=threads) == reference(rows, ids)).all()


def test_many_threads_gather_at_once(table_of: Callable[..., Table]) -> None:
    rows = content(5000, 264)
    table = table_of(rows)
    wrong: list[int] = []

    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        out = np.empty((3000, 264), np.uint8)
        for turn in range(20):
            ids = chance.integers(-1, 5000, 3000)
            table.gather(ids, out, threads=1 + turn % 4)
            if not (out == reference(rows, ids)).all():
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_far_more_threads_than_cpus_are_no_harm(table_of: Callable[..., Table]) -> None:
    rows = content(1000, 8)
    ids = np.arange(1000)
    for threads in (1000, 100_000, (1 << 31) - 1, 1 << 40):
        assert (table_of(rows).gather(ids, threads=threads) == rows).all()


def test_what_is_gathered_belongs_to_the_caller(table_of: Callable[..., Table]) -> None:
    table = table_of(content(10, 4))
    first, second = table.gather([1, 2]), table.gather([1, 2])
    assert not np.shares_memory(first, second)
    first[:] = 0
    assert (table.gather([1, 2]) == second).all()
