# SPDX-License-Identifier: Apache-2.0
"""Free space and the choice of extents, against a plain model of units."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engramdax.errors import SpaceError
from engramdax.format.geometry import Extent, Geometry
from engramdax.pool.space import allocate, free_extents

UNIT = 1024
UNITS = 64
GEOMETRY = Geometry((0, 4096), (8192, 10240), slot_bytes=2048, unit=UNIT, block=256)
FIRST_UNITS = 12  # what the metadata take


@st.composite
def taken_extents(draw: st.DrawFn) -> list[Extent]:
    """Disjoint extents behind the metadata, whole units."""
    cuts = sorted(draw(st.sets(st.integers(FIRST_UNITS, UNITS), max_size=20)))
    pairs = zip(cuts[::2], cuts[1::2], strict=False)
    return draw(st.permutations([Extent(a * UNIT, (b - a) * UNIT) for a, b in pairs]))


def units_of(extents: list[Extent]) -> list[int]:
    return [unit for e in extents for unit in range(e.offset // UNIT, e.end // UNIT)]


@given(taken=taken_extents(), rest=st.integers(0, UNIT - 1))
def test_free_extents_are_exactly_the_units_that_nothing_takes(taken: list[Extent], rest: int) -> None:
    free = free_extents(GEOMETRY, UNITS * UNIT + rest, taken)
    assert units_of(free) == sorted(set(range(FIRST_UNITS, UNITS)) - set(units_of(taken)))
    # Neighbours are one extent.
    assert all(a.end < b.offset for a, b in pairwise(free))


@given(taken=taken_extents(), lengths=st.lists(st.integers(0, 20 * UNIT), max_size=6))
def test_chosen_extents_are_free_disjoint_and_large_enough(taken: list[Extent], lengths: list[int]) -> None:
    free = free_extents(GEOMETRY, UNITS * UNIT, taken)
    try:
        chosen = allocate(free, lengths, UNIT)
    except SpaceError:
        left = sum(f.length for f in free)
        whole = [max(1, -(-length // UNIT)) * UNIT for length in lengths]
        needed = (
            f"{sum(whole)} bytes are needed, in units of {UNIT}, the largest piece {max(whole)}; {left} bytes are free"
        )
        with pytest.raises(SpaceError, match=needed):
            allocate(free, lengths, UNIT)
        return
    units = units_of(chosen)
    assert len(set(units)) == len(units)
    assert set(units) <= set(units_of(free))
    for extent, length in zip(chosen, lengths, strict=True):
        assert extent.offset % UNIT == 0
        assert extent.length == max(1, -(-length // UNIT)) * UNIT


@given(taken=taken_extents(), length=st.integers(1, 60 * UNIT))
def test_one_length_gets_the_smallest_gap_that_fits_or_none_fits(taken: list[Extent], length: int) -> None:
    free = free_extents(GEOMETRY, UNITS * UNIT, taken)
    fitting = [f for f in free if f.length >= length]
    if not fitting:
        with pytest.raises(SpaceError):
            allocate(free, [length], UNIT)
        return
    (chosen,) = allocate(free, [length], UNIT)
    gap = next(f for f in free if f.offset == chosen.offset)
    assert gap.length == min(f.length for f in fitting)


def test_a_small_length_does_not_break_up_what_a_large_one_needs() -> None:
    free = [Extent(0, 4 * UNIT), Extent(8 * UNIT, 2 * UNIT)]
    assert allocate(free, [1, 4 * UNIT], UNIT) == [Extent(8 * UNIT, UNIT), Extent(0, 4 * UNIT)]


def test_the_error_tells_needed_free_and_largest_with_what_whole_units_add() -> None:
    with pytest.raises(SpaceError) as caught:
        allocate([Extent(0, 2 * UNIT), Extent(8 * UNIT, 3 * UNIT)], [3 * UNIT + 1], UNIT)
    assert caught.value.problem == (
        "no room: 4096 bytes are needed, in units of 1024, the largest piece 4096; "
        "5120 bytes are free, the largest free extent has 3072"
    )


def test_a_full_pool_says_so() -> None:
    with pytest.raises(SpaceError, match="0 bytes are free, the largest free extent has 0"):
        allocate([], [1], UNIT)
