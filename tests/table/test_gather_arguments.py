# SPDX-License-Identifier: Apache-2.0
"""Every bad argument of a gather is refused in words, and every kind of buffer is taken."""

from __future__ import annotations

import array
import mmap
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax.errors import ParameterError, RowIdError
from engramdax.table import Table

ROWS = np.random.default_rng(0).integers(0, 256, (1000, 64), dtype=np.uint8)


@pytest.fixture
def table(make_pool: Callable[..., Path], load_array: Callable[..., object]) -> Table:
    path = make_pool()
    load_array(path, "t", ROWS, (400, 600))
    load_array(path, "plain", ROWS)
    return engramdax.open(path)["t"]


class OnlyInterface:
    """An object that has `__array_interface__` and nothing else."""

    def __init__(self, of: np.ndarray[Any, Any]) -> None:
        self._kept = of
        self.__array_interface__ = of.__array_interface__


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (np.array([1.0]), "ids are float64"),
        ([1.5], "ids are float64"),
        (np.array([], np.float64), "ids are float64"),
        (np.array([1], np.int16), "ids are int16"),
        (np.array([1], np.uint64), "ids are uint64"),
        (np.array([1], np.uint32), "ids are uint32"),
        (np.array([True]), "ids are bool"),
        (np.array([1], ">i8"), "ids are >i8"),
        (np.array([1], ">i4"), "ids are >i4"),
        (np.array([1], object), "ids are object"),
        (None, "ids are object"),
        ("3", "ids are <U1"),
        ([1 << 70], "ids are object"),
        (np.array([1], "datetime64[s]"), "ids are datetime64"),
        ([[1], [2, 3]], "ids are no array"),
        (np.arange(20)[::2], "not C-contiguous"),
        (np.arange(20).reshape(4, 5).T, "not C-contiguous"),
        (np.arange(20)[::-1], "not C-contiguous"),
    ],
)
def test_ids_of_another_kind_are_refused(table: Table, ids: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        table.gather(ids)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("bad", [1000, -2, (1 << 31) - 1, -(1 << 31)])
def test_a_bad_id_is_named_with_its_place(table: Table, dtype: Any, bad: int) -> None:
    ids = np.zeros((3, 4), dtype)
    ids[1, 2] = bad
    with pytest.raises(RowIdError, match=rf"^ids\[1, 2\] is {bad}, table t has rows 0 to 999; give -1") as caught:
        table.gather(ids)
    assert isinstance(caught.value, IndexError)
    with pytest.raises(RowIdError, match=rf"ids\[\] is {bad}"):
        table.gather(np.array(bad, dtype))


@pytest.mark.parametrize("threads", [1, 2, 8, 64])
def test_of_several_bad_ids_the_first_one_is_named(table: Table, threads: int) -> None:
    ids = np.zeros(100_000, np.int64)
    bad = np.random.default_rng(threads).choice(len(ids), 500, replace=False)
    ids[bad] = 1000 + bad
    for _ in range(20):
        with pytest.raises(RowIdError, match=rf"^ids\[{bad.min()}\] is {1000 + bad.min()},"):
            table.gather(ids, threads=threads)


def test_heads_are_checked(table: Table) -> None:
    for ids in (np.zeros((2, 3), np.int64), np.zeros((), np.int64), np.zeros(4, np.int32), np.zeros((2, 0), np.int64)):
        with pytest.raises(ParameterError, match="do not end in the 2 heads of t"):
            table.gather(ids, per_head=True)
    assert table.gather(np.zeros((0, 2), np.int64), per_head=True).shape == (0, 2, 64)
    path = table._attachment.backing.path
    with pytest.raises(ParameterError, match="table plain has no heads"):
        engramdax.open(path)["plain"].gather([0, 0], per_head=True)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(table: Table, threads: int) -> None:
    with pytest.raises(ParameterError, match=f"threads={threads} copies nothing"):
        table.gather([1], threads=threads)


def test_an_unknown_word_for_invalid_ids_is_refused(table: Table) -> None:
    with pytest.raises(ParameterError, match="invalid='ignore' is unknown"):
        table.gather([1], invalid="ignore")  # type: ignore[arg-type]


def read_only() -> np.ndarray[Any, Any]:
    out = np.empty((2, 64), np.uint8)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty((2, 63), np.uint8), "out has 126 bytes, 2 rows of 64 bytes need 128"),
        (np.empty((3, 64), np.uint8), "out has 192 bytes"),
        (np.empty(0, np.uint8), "out has 0 bytes"),
        (bytearray(127), "out has 127 bytes"),
        (bytearray(), "out has 0 bytes"),
        (read_only(), "out is read-only"),
        (bytes(128), "out is read-only"),
        (memoryview(bytes(128)), "out is read-only"),
        (OnlyInterface(read_only()), "out is read-only"),
        (np.empty((2, 128), np.uint8)[:, ::2], "not C-contiguous"),
        (np.empty((64, 2), np.uint8).T, "not C-contiguous"),
        (OnlyInterface(np.empty((2, 128), np.uint8)[:, ::2]), "not C-contiguous"),
        (memoryview(bytearray(256))[::2], "give a writable contiguous buffer"),
        (np.empty(16, object), "out is of dtype object"),
        (np.empty(16, [("a", object)]), "out is of dtype"),
        ([0] * 128, "out is a list"),
        ("x" * 128, "out is a str"),
        (5, "out is a int"),
    ],
)
def test_an_out_that_cannot_take_the_rows_is_refused(table: Table, out: Any, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        table.gather([1, 2], out)


def test_an_out_that_overlaps_the_ids_is_refused_and_untouched(table: Table) -> None:
    memory = np.zeros(24, np.int64)
    for ids, out in ((memory[:2], memory[:16]), (memory[15:17], memory[:16]), (memory[8:10], memory[1:17])):
        with pytest.raises(ParameterError, match="out overlaps ids"):
            table.gather(ids, out)
    assert not memory.any()
    table.gather(memory[:2], memory[2:18])
    assert memory[2:18].tobytes() == ROWS[[0, 0]].tobytes()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.empty((2, 64), np.uint8),
        lambda: np.empty(128, np.uint8),
        lambda: np.empty((4, 8), np.float32),
        lambda: np.empty(2, "V64"),
        lambda: np.empty(16, ">f8"),
        lambda: np.empty((1, 2, 1, 64), np.int8),
        lambda: np.empty(129, np.uint8)[1:],
        lambda: bytearray(128),
        lambda: memoryview(bytearray(128)),
        lambda: memoryview(bytearray(130))[1:129],
        lambda: memoryview(bytearray(128)).cast("B", (2, 64)),
        lambda: array.array("d", [0.0] * 16),
        lambda: OnlyInterface(np.empty((2, 64), np.uint8)),
        lambda: mmap.mmap(-1, 4096),
    ],
)
def test_every_writable_buffer_of_the_right_size_takes_the_rows(table: Table, make: Callable[[], Any]) -> None:
    out = make()
    ids = [7, 999]
    if isinstance(out, mmap.mmap):
        ids = list(range(64))
    result = table.gather(ids, out)
    assert result.shape == (len(ids), 64)
    assert result.dtype == np.uint8
    assert (result == ROWS[ids]).all()
    kept = out._kept if isinstance(out, OnlyInterface) else out
    assert bytes(kept) == ROWS[ids].tobytes()
    assert np.shares_memory(result, np.frombuffer(kept, np.uint8))


@pytest.mark.parametrize(
    "way",
    [
        lambda table, ids, out: table.gather(ids, out),
        lambda table, ids, out: table.gatherer(ids, out)(),
        lambda table, ids, out: table.prefetch(ids, out).wait(),
        lambda table, ids, out: engramdax.gather_many([(table, ids, None), (table, ids, out)])[1],
    ],
    ids=["gather", "gatherer", "prefetch", "gather_many"],
)
def test_out_itself_comes_back_where_it_is_an_array_of_the_rows(table: Table, tmp_path: Path, way: Any) -> None:
    ids = np.array([7, 999])
    arrays = (
        np.empty((2, 64), np.uint8),
        np.memmap(tmp_path / "rows", np.uint8, "w+", shape=(2, 64)),
        pickle.loads(pickle.dumps(np.empty((2, 64), np.uint8))),  # noqa: S301 - whose type is another object
    )
    for out in arrays:
        assert way(table, ids, out) is out
        assert (out == ROWS[ids]).all()
    flat = np.empty(128, np.uint8)
    result = way(table, ids, flat)
    assert result.shape == (2, 64)
    assert np.shares_memory(result, flat)


def test_nothing_fits_into_nothing(table: Table) -> None:
    for out in (bytearray(), np.empty((0, 64), np.uint8), np.empty((5, 0))):
        assert table.gather([], out).shape == (0, 64)


def test_bytes_around_out_stay(table: Table) -> None:
    for shift in range(9):
        room = np.full(300 * 64 + 32, 0xEE, np.uint8)
        out = room[8 + shift : 8 + shift + 300 * 64]
        table.gather(np.arange(300), out)
        assert (out.reshape(300, 64) == ROWS[:300]).all()
        assert (room[: 8 + shift] == 0xEE).all()
        assert (room[8 + shift + 300 * 64 :] == 0xEE).all()


def test_a_bad_call_writes_nothing(table: Table) -> None:
    out: Any = np.full((2, 64), 0xEE, np.uint8)
    bad: list[tuple[list[Any], dict[str, Any]]] = [
        ([1.0, 2.0], {}),
        ([1, 2], {"threads": 0}),
        ([1, 2, 3], {}),
        ([1, 2], {"invalid": "x"}),
        ([1, 2, 3], {"per_head": True}),
    ]
    for ids, options in bad:
        with pytest.raises(ParameterError):
            table.gather(ids, out, **options)
    assert (out == 0xEE).all()
