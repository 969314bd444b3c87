# SPDX-License-Identifier: Apache-2.0
"""Plain gathers: numpy's usual arrays are examined in C, all others in Python, and both say and do the same."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from loaded import Loaded

from engramdax import plain
from engramdax.errors import EngramdaxError, ParameterError

HEADS = (20, 30, 50)
WIDTH = 24


class Other(np.ndarray):
    """An array that C leaves to Python."""


def in_c(loaded: Loaded, ids: Any, out: Any, options: dict[str, Any]) -> Any:
    """What C says of a call, None where it leaves it to Python."""
    table = loaded.table
    whole = {"threads": None, "per_head": False, "invalid": "raise", "engine": "team"} | options
    return plain.gather(table._address, table.dtype, ids, out, *whole.values())


def outcome(loaded: Loaded, ids: Any, out: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    try:
        rows = loaded.table.gather(ids, out, **options)
    except EngramdaxError as e:
        return type(e), str(e)
    return rows.shape, rows.dtype, rows.tobytes(), rows is out


def drawn(choose: random.Random) -> tuple[Any, Any, dict[str, Any]]:
    """Ids, output and options of a call; some of them wrong."""
    shape = choose.choice([(), (7,), (5, 3), (2, 4, 3), (0,), (0, 3), (4, 0), (3,), (6, 2)])
    low, high = choose.choice([(-1, 20), (-1, 100), (0, 103), (-3, 100)])
    ids = np.random.default_rng(choose.randrange(1 << 30)).integers(low, high, shape)
    ids = ids.astype(choose.choice([np.int64, np.int64, np.int32, np.int32, np.uint32, np.float64]))
    rows = choose.choice([(*shape, WIDTH)] * 6 + [(ids.size, WIDTH), (*shape, WIDTH - 1), (ids.size + 1, WIDTH)])
    out = np.full(rows, 9, choose.choice([np.uint8] * 6 + [np.int8, np.uint16]))
    if (how := choose.random()) < 0.1:
        ids = np.repeat(ids, 2, -1)[..., ::2] if ids.ndim else ids
    elif how < 0.2:
        out = np.repeat(out, 2, -1)[..., ::2]
    elif how < 0.3:
        out.flags.writeable = False
    options = {
        "threads": choose.choice([None, 1, 2, 1 << 70, 0, np.int64(1), True]),
        "per_head": choose.choice([False, True, np.True_]),
        "invalid": choose.choice(["raise", "zero", np.str_("zero"), "none"]),
        "engine": choose.choice(["team", "openmp", "threads"]),
    }
    return ids, out, {name: value for name, value in options.items() if choose.random() < 0.15}


def test_a_call_ends_alike_whichever_side_looks_at_its_arrays(load: Callable):
    loaded = load(rows=100, row_bytes=WIDTH, heads=HEADS)
    seen = {"in C": 0, "wrong": 0}
    for seed in range(1500):
        ids, out, options = drawn(random.Random(seed))
        other = out.copy()
        other.flags.writeable = out.flags.writeable
        if not out.flags.c_contiguous:
            other = np.repeat(other, 2, -1)[..., ::2]
        found = outcome(loaded, ids, out, options)
        same = outcome(loaded, ids.view(Other), other, options)
        assert found == same, (seed, options)
        seen["in C"] += in_c(loaded, ids, out, options) is not None
        seen["wrong"] += isinstance(found[0], type)
    assert min(seen.values()) > 300, seen


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (9,), (3, 3), (0, 3)])
def test_usual_arrays_are_seen_in_c_with_all_options(load: Callable, shape: tuple[int, ...], dtype: type):
    loaded = load(rows=100, row_bytes=WIDTH, heads=HEADS)
    ids, out = np.zeros(shape, dtype), np.empty((*shape, WIDTH), np.uint8)
    for options in ({}, {"threads": 2}, {"invalid": "zero"}, {"engine": "openmp"}):
        assert in_c(loaded, ids, out, options) == 0
    assert in_c(loaded, ids, out, {"per_head": True}) == (0 if shape[-1:] == (3,) else None)


def test_an_array_that_got_other_memory_or_another_form_is_read_anew(load: Callable):
    loaded = load(rows=100)
    ids, out = np.arange(10), np.empty((10, 320), np.uint8)
    assert loaded.table.gather(ids, out) is out
    ids.resize(50)  # which would fail if a call had kept anything of them
    out.resize((50, 320))
    ids[:] = np.arange(50)[::-1]
    assert np.array_equal(loaded.table.gather(ids, out), loaded.rows[ids])
    ids.resize((5, 10))
    with pytest.raises(ParameterError, match="out has 15680 bytes, 50 rows of 320 bytes need 16000"):
        loaded.table.gather(ids, out[:49])
    out.resize((5, 10, 320))
    assert np.array_equal(loaded.table.gather(ids, out), loaded.rows[ids])
    out.flags.writeable = False
    with pytest.raises(ParameterError, match="read-only"):
        loaded.table.gather(ids, out)


def test_calls_keep_no_reference(load: Callable):
    loaded = load(rows=100, heads=HEADS)
    ids, out, wrong = np.arange(9).reshape(3, 3), np.empty((3, 3, 320), np.uint8), np.full((3, 3), 100)
    counted = (ids, out, wrong, ids.dtype, out.dtype)

    def calls() -> list[int]:
        for _ in range(100):
            loaded.table.gather(ids, out)
            loaded.table.gather(ids, out[:2].repeat(2, 0)[:3], per_head=True)
            for bad in ((wrong, out), (ids, out[:2]), (ids.T, out), (ids, out.T), (ids, "rows")):
                with pytest.raises(EngramdaxError):
                    loaded.table.gather(*bad)
        return [sys.getrefcount(each) for each in counted]

    before = calls()
    assert all(abs(now - then) < 50 for now, then in zip(calls(), before, strict=True))
