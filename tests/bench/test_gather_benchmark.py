# SPDX-License-Identifier: Apache-2.0
"""Gathers from a small table under pytest-benchmark, to compare one build with another (`make bench`).

`engramdax bench cpu` is what compares with other libraries, on tables that no cache holds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pytest_benchmark.fixture import BenchmarkFixture

import engramdax
from engramdax.table import Table

TABLE_BYTES = 16 << 20
CALLS = {1: 500, 16: 500, 384: 200, 4096: 50, 24_576: 10}


@pytest.fixture(params=[64, 264, 320, 5120])
def table(
    request: pytest.FixtureRequest, make_pool: Callable[..., Path], load_array: Callable[..., object]
) -> tuple[Table, np.ndarray]:
    row_bytes = request.param
    rows = np.random.default_rng(row_bytes).integers(0, 256, (TABLE_BYTES // row_bytes, row_bytes), np.uint8)
    path = make_pool(TABLE_BYTES + (32 << 20))
    load_array(path, "t", rows)
    return engramdax.open(path)["t"], rows


@pytest.mark.parametrize("rows", CALLS)
@pytest.mark.parametrize("way", ["plain", "prepared", "openmp"])
def test_gather(benchmark: BenchmarkFixture, table: tuple[Table, np.ndarray], way: str, rows: int) -> None:
    t, expected = table
    ids = np.random.default_rng(rows).integers(0, t.rows, rows)
    out = np.empty((rows, t.row_bytes), np.uint8)
    calls = {
        "plain": lambda: t.gather(ids, out=out),
        "prepared": t.gatherer(ids, out),
        "openmp": lambda: t.gather(ids, out=out, engine="openmp"),
    }
    benchmark.pedantic(calls[way], rounds=CALLS[rows], warmup_rounds=3)
    assert np.array_equal(out, expected[ids])
