# SPDX-License-Identifier: Apache-2.0
"""Which arrays a gather takes as ids and as output, and what it says of others."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from engramdax.errors import ParameterError


def test_an_int64_type_that_is_another_object_is_still_int64(load: Callable):
    # Read as int32, an unpickled array of ids gave every second row as row 0.
    loaded = load()
    ids = np.random.default_rng(0).integers(0, 20_000, 500)
    annotated = np.dtype(np.int64, metadata={"unit": "row"})
    for same in (pickle.loads(pickle.dumps(ids)), ids.astype(np.longlong), ids.astype(annotated)):  # noqa: S301
        assert np.array_equal(loaded.table.gather(same), loaded.expected(ids))
        assert np.array_equal(loaded.table.prefetch(same).wait(), loaded.expected(ids))
        assert np.array_equal(loaded.table.gatherer(same, np.empty((500, 320), np.uint8))(), loaded.expected(ids))


def test_shapes_of_ids_are_kept(load: Callable):
    loaded = load()
    for shape in ((), (0,), (7,), (3, 5), (2, 3, 4), (1, 0, 4)):
        ids = np.random.default_rng(1).integers(0, 20_000, shape)
        rows = loaded.table.gather(ids)
        assert rows.shape == (*shape, 320)
        assert np.array_equal(rows, loaded.rows[ids])


def test_lists_and_read_only_ids_are_taken(load: Callable):
    loaded = load()
    assert np.array_equal(loaded.table.gather([[1, 2], [3, -1]]), loaded.expected([[1, 2], [3, -1]]))
    assert loaded.table.gather([]).shape == (0, 320)
    ids = np.arange(9)
    ids.flags.writeable = False
    assert np.array_equal(loaded.table.gather(ids), loaded.rows[:9])


@pytest.mark.parametrize(
    "ids",
    [
        np.arange(6, dtype=np.uint64),
        np.arange(6, dtype=np.int16),
        np.arange(6, dtype=">i8"),
        np.arange(6.0),
        np.arange(12)[::2],
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        [[1], [2, 3]],
        "1",
        None,
        [1 << 70],
    ],
    ids=repr,
)
def test_other_ids_are_refused(load: Callable, ids: object):
    loaded = load(rows=100)
    with pytest.raises(ParameterError):
        loaded.table.gather(ids)


def test_output_of_any_type_and_alignment_is_filled(load: Callable):
    loaded = load()
    ids = np.random.default_rng(2).integers(0, 20_000, 300)
    room = np.zeros(300 * 320 + 64, np.uint8)
    for shift in (0, 1, 2, 31, 63):
        out = room[shift : shift + 300 * 320]
        assert np.array_equal(loaded.table.gather(ids, out=out), loaded.expected(ids))
    for out in (np.empty((300, 40), np.float64), bytearray(300 * 320), memoryview(bytearray(300 * 320))):
        rows = loaded.table.gather(ids, out=out)
        assert np.array_equal(rows, loaded.expected(ids))
        assert np.array_equal(np.frombuffer(out, np.uint8).reshape(300, 320), rows)


@pytest.mark.parametrize(
    "out",
    [
        np.empty((10, 319), np.uint8),
        np.empty((11, 320), np.uint8),
        np.empty((10, 640), np.uint8)[:, ::2],
        np.asfortranarray(np.empty((10, 320), np.uint8)),
        bytes(3200),
        np.frombuffer(bytes(3200), np.uint8).reshape(10, 320),
        np.empty(400, object),
        3200,
    ],
    ids=lambda out: type(out).__name__,
)
def test_other_outputs_are_refused(load: Callable, out: object):
    loaded = load(rows=100)
    ids = np.arange(10)
    for call in (loaded.table.gather, loaded.table.gatherer, loaded.table.prefetch):
        with pytest.raises(ParameterError):
            call(ids, out)


def test_ids_inside_the_output_are_refused(load: Callable):
    loaded = load(rows=100)
    room = np.zeros(10 * 320 + 80, np.uint8)
    for begin in (0, 8, 80, 3200):
        ids = room[begin : begin + 80].view(np.int64)
        for call in (loaded.table.gather, loaded.table.gatherer, loaded.table.prefetch):
            with pytest.raises(ParameterError, match="overlap"):
                call(ids, room[40 : 40 + 3200])
    assert not room.any()
