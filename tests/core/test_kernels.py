# SPDX-License-Identifier: Apache-2.0
"""Every row-copy kernel of this CPU against numpy, on memory whose neighbours may not be touched."""

from __future__ import annotations

import numpy as np
import pytest
from raw_table import FencedMemory, RawTable, kernels

from engramdax._core import lib

KERNELS = kernels()
SIZES = [*range(1, 601), 640, 1000, 4096, 5120, 12_289, 65_537, 1 << 20]
EDGES = [1, 3, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 72, 100, 127, 128, 129, 264, 320, 512]

each_kernel = pytest.mark.parametrize("kernel", KERNELS)


def some_ids(count: int, rows: int, dtype: type = np.int64) -> np.ndarray:
    ids = np.random.default_rng(count * 1000 + rows).integers(-1, rows, count)
    return ids.astype(dtype)


def test_a_cpu_has_a_kernel_and_the_best_one_is_chosen_without_a_name():
    assert KERNELS
    assert KERNELS[-1] in ("sse2", "neon")


@each_kernel
def test_every_row_size_is_copied_and_nothing_outside_the_extent_is_read(kernel: str):
    memory = FencedMemory(12 << 20)
    for size in SIZES:
        rows = max(3, min(40, (6 << 20) // size))
        ids = np.concatenate([[0, rows - 1, -1, rows - 1, 0], some_ids(25, rows)])
        for extent in (memory.first(rows * size), memory.last(rows * size)):
            table = RawTable(extent, rows, [(0, size, size)])
            outcome, out = table.gather(ids, kernel, out_shift=size % 64)
            assert outcome == lib.ED_ALL_VALID
            assert np.array_equal(out, table.expected(ids)), f"rows of {size} bytes"


@each_kernel
@pytest.mark.parametrize("size", EDGES)
def test_every_alignment_of_rows_and_output(kernel: str, size: int):
    memory = np.random.default_rng(2).integers(0, 256, 64 * size + 256, np.uint8)
    ids = some_ids(9, 64)
    for base in range(64):
        table = RawTable(memory[(base - memory.ctypes.data) % 64 :], 64, [(0, size, size)])
        expected = table.expected(ids)
        for k in range(8):
            _, out = table.gather(ids, kernel, out_shift=(base * 5 + k * 9) % 64)
            assert np.array_equal(out, expected)


@each_kernel
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_of_both_widths_stand_anywhere(kernel: str, dtype: type):
    table = RawTable(np.random.default_rng(3).integers(0, 256, 500 * 72, np.uint8), 500, [(0, 72, 72)])
    ids = some_ids(133, 500, dtype)
    for shift in range(64):
        outcome, out = table.gather(ids, kernel, id_shift=shift)
        assert outcome == lib.ED_ALL_VALID
        assert np.array_equal(out, table.expected(ids))


@each_kernel
@pytest.mark.parametrize("size", [8, 64, 264, 320, 512, 515])
def test_every_distance_of_prefetching(kernel: str, size: int):
    memory = FencedMemory(200 * size)
    for ahead in range(64):
        table = RawTable(memory.last(200 * size), 200, [(0, size, size)], ahead=ahead)
        for count in (0, 1, 2, ahead, ahead + 1, 64, 65, 130):
            ids = some_ids(count, 200)
            outcome, out = table.gather(ids, kernel)
            assert outcome == lib.ED_ALL_VALID
            assert np.array_equal(out, table.expected(ids))


@each_kernel
@pytest.mark.parametrize("spans", [[(0, 264, 264)], [(0, 256, 256), (256 * 100, 8, 8)]], ids=["packed", "two spans"])
def test_the_lowest_bad_id_is_reported_and_the_rows_before_it_are_there(kernel: str, spans: list[tuple[int, int, int]]):
    memory = np.random.default_rng(4).integers(0, 256, 264 * 100, np.uint8)
    for ahead in (0, 1, 12, 63, lib.ED_MAX_AHEAD):
        table = RawTable(memory, 100, spans, ahead=ahead)
        for at in (0, 1, 11, 12, 13, 62, 63, 64, 89):
            for bad in (100, -2, 2**31 - 1, -(2**31), 2**62, -(2**63)):
                dtype = np.int64 if abs(bad) > 2**31 else np.int32
                ids = np.concatenate([some_ids(at, 100), [bad], some_ids(5, 100), [200]]).astype(dtype)
                outcome, out = table.gather(ids, kernel)
                assert outcome == at
                assert np.array_equal(out[:at], table.expected(ids[:at]))
                outcome, out = table.gather(ids, kernel, flags=lib.ED_INVALID_ZERO)
                assert outcome == lib.ED_ALL_VALID
                assert np.array_equal(out, table.expected(ids))


@each_kernel
def test_rows_of_two_spans_come_together_and_neither_is_overrun(kernel: str):
    for first, second in ((256, 8), (1, 1), (64, 64), (37, 100), (512, 3)):
        rows = 80
        memory = FencedMemory(rows * (first + second))
        size = rows * (first + second)
        for extent in (memory.first(size), memory.last(size)):
            spans = [(0, first, first), (rows * first, second, second)]
            for ahead in (0, 12, 63, lib.ED_MAX_AHEAD):
                table = RawTable(extent, rows, spans, ahead=ahead)
                ids = np.concatenate([[0, rows - 1, -1], some_ids(90, rows)])
                outcome, out = table.gather(ids, kernel, out_shift=first % 64)
                assert outcome == lib.ED_ALL_VALID
                assert np.array_equal(out, table.expected(ids))


@each_kernel
def test_rows_wider_apart_than_they_are_long_leave_out_what_lies_between(kernel: str):
    memory = FencedMemory(50 * 320)
    table = RawTable(memory.last(50 * 320), 50, [(56, 320, 264)])
    ids = np.arange(49, -1, -1)
    assert np.array_equal(table.gather(ids, kernel)[1], table.expected(ids))


@each_kernel
@pytest.mark.parametrize("spans", [[(0, 40, 40)], [(0, 32, 32), (32 * 60, 8, 8)]], ids=["packed", "two spans"])
def test_ids_within_heads_count_from_the_beginning_of_theirs(kernel: str, spans: list[tuple[int, int, int]]):
    heads = (10, 20, 30)
    memory = np.random.default_rng(5).integers(0, 256, 60 * 40, np.uint8)
    table = RawTable(memory, 60, spans, heads=heads)
    generator = np.random.default_rng(6)
    local = np.stack([generator.integers(-1, rows, 50) for rows in heads], axis=1)
    outcome, out = table.gather(np.ascontiguousarray(local), kernel, flags=lib.ED_PER_HEAD)
    assert outcome == lib.ED_ALL_VALID
    rows = np.where(local < 0, -1, local + np.array([0, 10, 30]))
    assert np.array_equal(out, table.expected(rows))
    local[7, 1] = 20  # a row of the table, but none of this head
    outcome, _ = table.gather(np.ascontiguousarray(local), kernel, flags=lib.ED_PER_HEAD)
    assert outcome == 7 * 3 + 1


def test_a_kernel_that_is_none_is_refused():
    table = RawTable(np.zeros(64, np.uint8), 1, [(0, 64, 64)])
    assert table.gather(np.zeros(1, np.int64), "mmx")[0] == lib.ED_NO_KERNEL
