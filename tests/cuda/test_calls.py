# SPDX-License-Identifier: Apache-2.0
"""Arrays on the GPU are brought into the form of a launch, or refused, without being looked into."""

from __future__ import annotations

import numpy as np
import pytest

import engramdax
from engramdax.bench.pattern import PatternSource
from engramdax.cuda.calls import Calls
from engramdax.cuda.formats import Formats
from engramdax.cuda.memory import View
from engramdax.cuda.part import Part
from engramdax.cuda.plans import Plans
from engramdax.errors import ParameterError
from engramdax.format.layout import V41_ROW, RowLayout
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer

BASE, IDS, OUT, STREAM = 1 << 30, 1 << 31, 1 << 32, 77


@pytest.fixture
def calls_of(make_pool):
    def make(layout=V41_ROW, most_rows=1 << 20, **part):
        path = make_pool()
        with Writer(path) as writer:
            load_tables(writer, [Load(PatternSource(100, layout.row_bytes, layout=layout), "t")])
        table = engramdax.open(path)["t"]
        formats = Formats(table, BASE)
        chosen = Part(table, **{"heads": None, "padded_heads": None, "rows": None} | part)
        plans = Plans(table, BASE, chosen, formats.float8_dim)
        # In the place of each route its kernels' name.
        return Calls(table, 0, chosen, formats, plans, formats.kernels(), most_rows)

    return make


def like(address: int, array: np.ndarray) -> View:
    """What a library would show of such an array, were it on a GPU."""
    return View(address, array.shape, array.dtype.str, array.strides)


def launch(calls, ids, out, *, at=OUT, format="raw", per_head=False):  # noqa: A002
    return calls.prepare(like(IDS, ids), like(at, out), STREAM, format=format, per_head=per_head).launch


def test_dense_arrays(calls_of):
    found = launch(calls_of(), np.zeros((5, 3), np.int32), np.zeros((5, 3, 264), np.uint8))
    assert found[1:] == ("raw_8", IDS, False, 3, 5, OUT, 3 * 264, 264, STREAM)
    assert (found.plan.first_column, found.plan.columns, found.plan.out_columns) == (0, 3, 3)
    assert (found.plan.base, found.plan.stride, found.plan.row_high) == (BASE, 264, 100)


def test_strided_arrays_and_a_range_of_heads(calls_of):
    ids, out = np.zeros((5, 2, 3), np.int64)[:, 1], np.zeros((5, 6, 272), np.uint8)[:, 1:5, :264]
    found = launch(calls_of(heads=(1, 2), padded_heads=4), ids, out)
    assert found[1:] == ("raw_8", IDS, True, 6, 5, OUT, 6 * 272, 272, STREAM)
    assert (found.plan.first_column, found.plan.columns, found.plan.out_columns) == (1, 2, 4)


@pytest.mark.parametrize(("shape", "outer"), [((), 1), ((7,), 7), ((0,), 0), ((4, 0), 0), ((2, 3, 4), 6), ((0, 4), 0)])
def test_rows_are_counted(calls_of, shape, outer):
    found = launch(calls_of(), np.zeros(shape, np.int64), np.zeros((*shape, 264), np.uint8))
    assert found.outer == outer


@pytest.mark.parametrize(("width", "at", "unit"), [(320, 0, 16), (264, 0, 8), (320, 4, 4), (20, 2, 2), (7, 0, 1)])
def test_kernels_move_as_much_as_places_and_rows_allow(calls_of, width, at, unit):
    calls = calls_of(RowLayout.packed(("row", "uint8", width)))
    found = launch(calls, np.zeros(9, np.int64), np.zeros((9, width), np.uint8), at=OUT + at)
    assert found.route == f"raw_{unit}"


def test_dequantised_rows_lie_at_multiples_of_16_bytes(calls_of):
    calls = calls_of()
    ids, out = np.zeros((5, 3), np.int32), np.zeros((5, 3, 256), np.uint16)
    assert launch(calls, ids, out, format="bf16").route == "float8_bf16"
    with pytest.raises(ParameterError, match="multiples of 16 bytes"):
        launch(calls, ids, out, at=OUT + 8, format="bf16")


IDS_OF = np.zeros((5, 3), np.int64)
ROWS_OF = np.zeros((5, 3, 264), np.uint8)


@pytest.mark.parametrize(
    ("ids", "out", "message"),
    [
        (IDS_OF.astype(np.uint32), ROWS_OF, "ids are uint32"),
        (np.zeros((5, 6), np.int64)[:, ::2], ROWS_OF, "last dimension of ids is strided"),
        (np.zeros((5, 4, 3), np.int64)[:, :2], np.zeros((5, 2, 3, 264), np.uint8), "leading dimensions of ids"),
        (IDS_OF, ROWS_OF[:, :2], r"out has shape \(5, 2, 264\); give \(5, 3, 264\)"),
        (IDS_OF, np.zeros((5, 3, 528), np.uint8)[..., ::2], "last dimension of out is strided"),
        (IDS_OF, ROWS_OF.astype(np.uint16)[..., :131], "out has shape"),
    ],
)
def test_arrays_that_do_not_do_are_refused(calls_of, ids, out, message):
    with pytest.raises(ParameterError, match=message):
        launch(calls_of(), ids, out)


def test_more_rows_than_a_call_may_have_are_refused(calls_of):
    with pytest.raises(ParameterError, match="15 rows in one call; gather at most 14"):
        launch(calls_of(most_rows=14), IDS_OF, ROWS_OF)


def test_ids_within_heads_of_a_table_that_has_none_are_refused(calls_of):
    with pytest.raises(ParameterError, match="has no heads"):
        launch(calls_of(), IDS_OF, ROWS_OF, per_head=True)


@pytest.mark.parametrize(
    "ids",
    [
        View(IDS, (5,), "<i4", (6,)),
        View(IDS, (5,), "<i8", (12,)),
        View(IDS + 2, (5,), "<i4"),
        View(IDS, (5, 3), "<i4", (14, 4)),
    ],
)
def test_ids_between_the_places_of_ids_are_refused(calls_of, ids):
    """A column of records, say: with a stride rounded down the kernel would read others."""
    out = np.zeros((*ids.__cuda_array_interface__["shape"], 264), np.uint8)
    with pytest.raises(ParameterError, match=r"ids do not lie at multiples of their \d bytes; give an aligned array"):
        calls_of().prepare(ids, like(OUT, out), STREAM, format="raw", per_head=False)


def test_one_token_may_have_any_stride(calls_of):
    ids = View(IDS, (1, 3), "<i4", (7, 4))
    found = calls_of().prepare(ids, like(OUT, np.zeros((1, 3, 264), np.uint8)), STREAM, format="raw", per_head=False)
    assert (found.launch.outer, found.launch.plan.columns) == (1, 3)
