# SPDX-License-Identifier: Apache-2.0
"""Ids of the host ask for the rows that `Table.gather` gives for them, but for those of other ranks."""

from __future__ import annotations

import numpy as np
import pytest

import engramdax
from engramdax.cuda.part import Part
from engramdax.errors import ParameterError

HEADS = (10, 20, 30)
ROWS = sum(HEADS)


@pytest.fixture
def table(make_pool, load_array):
    path = make_pool()
    load_array(path, "t", np.arange(ROWS, dtype=np.uint8).reshape(ROWS, 1) + 1, HEADS)
    return engramdax.open(path)["t"]


def row_ids(part: Part, ids: np.ndarray, *, per_head: bool = False) -> np.ndarray:
    columns = part.columns(ids.shape, per_head=per_head)
    return part.row_ids(ids, columns, per_head=per_head).reshape(columns.shape)


def rows(table: engramdax.Table, ids: np.ndarray, *, per_head: bool = False) -> np.ndarray:
    """Row ids of what the CPU gathers: a row of the table holds its id and 1, one of zeros is -1."""
    return table.gather(ids, per_head=per_head, invalid="zero")[..., 0].astype(np.int64) - 1


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 3), (2, 4, 3), (0, 3), (4, 0), (0,)])
def test_a_whole_table(table, shape, dtype):
    part = Part(table, heads=None, padded_heads=None, rows=None)
    ids = np.random.default_rng(0).integers(-2, ROWS + 2, shape).astype(dtype)
    assert np.array_equal(row_ids(part, ids), rows(table, ids))


@pytest.mark.parametrize("shape", [(3,), (50, 3), (2, 25, 3), (0, 3)])
def test_ids_within_heads(table, shape):
    part = Part(table, heads=None, padded_heads=None, rows=None)
    ids = np.random.default_rng(0).integers(-1, 31, shape)
    assert np.array_equal(row_ids(part, ids, per_head=True), rows(table, ids, per_head=True))


@pytest.mark.parametrize("per_head", [True, False])
def test_a_range_of_heads_is_padded_with_zeros(table, per_head):
    part = Part(table, heads=(1, 2), padded_heads=4, rows=None)
    ids = np.random.default_rng(0).integers(-1, 31, (50, 3))
    found = row_ids(part, ids, per_head=per_head)
    assert np.array_equal(found[:, :2], rows(table, ids, per_head=per_head)[:, 1:])
    assert (found[:, 2:] == -1).all()


def test_rows_of_another_rank_are_zeros(table):
    ids = np.arange(-1, ROWS + 1)
    found = [row_ids(Part(table, heads=None, padded_heads=None, rows=r), ids) for r in ((0, 25), (25, ROWS))]
    assert ((found[0] == -1) | (found[1] == -1)).all()
    assert np.array_equal(np.maximum(*found), rows(table, ids))


def test_strided_ids(table):
    part = Part(table, heads=None, padded_heads=None, rows=None)
    ids = np.random.default_rng(0).integers(0, ROWS, (6, 8))
    assert np.array_equal(row_ids(part, ids[::2, 1::3]), rows(table, np.ascontiguousarray(ids[::2, 1::3])))


@pytest.mark.parametrize(
    ("heads", "limits", "wanted"),
    [
        (None, None, range(ROWS)),
        (None, (5, 40), range(5, 40)),
        ((1, 1), None, range(10, 30)),
        ((1, 2), (5, 40), range(10, 40)),
        ((3, 1), None, range(0)),
    ],
)
def test_hot_rows_are_those_that_can_be_asked_for(table, heads, limits, wanted):
    order = np.random.default_rng(0).permutation(ROWS)
    found = Part(table, heads=heads, padded_heads=None, rows=limits).within(order)
    assert found.tolist() == [row for row in order.tolist() if row in wanted]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": (5, ROWS + 1)}, "rows 5 to 61 are no part of 60"),
        ({"rows": (5, 4)}, "no part"),
        ({"heads": (-1, 1)}, "make no range"),
        ({"heads": (0, 0)}, "make no range"),
        ({"heads": (0, 3), "padded_heads": 2}, "make no range"),
    ],
)
def test_a_part_that_there_is_not_is_refused(table, options, message):
    with pytest.raises(ParameterError, match=message):
        Part(table, **{"heads": None, "padded_heads": None, "rows": None} | options)


def test_ids_of_a_wrong_shape_are_refused(table):
    whole = Part(table, heads=None, padded_heads=None, rows=None)
    with pytest.raises(ParameterError, match=r"\(4, 2\) do not end in 3 heads"):
        whole.columns((4, 2), per_head=True)
    with pytest.raises(ParameterError, match=r"\(4, 2\) do not hold heads 1 to 2"):
        Part(table, heads=(1, 2), padded_heads=None, rows=None).columns((4, 2), per_head=False)
