# SPDX-License-Identifier: Apache-2.0
"""The two sets behind the page cache manners, each against a plain set of numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from engramdax.ingest.absent import PIECE_PAGES, AbsentPages
from engramdax.ingest.spans import Spans

RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 12)), min_size=1, max_size=20)


@given(RANGES)
def test_spans_give_the_whole_range_around_each_new_one(ranges: list[tuple[int, int]]) -> None:
    spans, plain = Spans(), set[int]()
    for begin, length in ranges:
        plain.update(range(begin, begin + length))
        got_begin, got_end = spans.add(begin, begin + length)
        assert got_begin <= begin
        assert got_end >= begin + length
        assert plain.issuperset(range(got_begin, got_end))
        assert got_begin - 1 not in plain
        assert got_end not in plain


def test_ranges_that_touch_become_one() -> None:
    spans = Spans()
    assert spans.add(0, 10) == (0, 10)
    assert spans.add(20, 30) == (20, 30)
    assert spans.add(10, 20) == (0, 30)


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.lists(st.booleans(), max_size=30))),
    st.integers(0, 3 * PIECE_PAGES),
    st.integers(0, PIECE_PAGES + 50),
)
def test_runs_are_those_of_a_plain_set(added: list[tuple[int, int, list[bool]]], first: int, length: int) -> None:
    pages, plain = AbsentPages(), set[int]()
    for piece, place, absent in added:
        begin = piece * PIECE_PAGES + place
        pages.add(begin, np.array(absent, dtype=np.bool_))
        plain.update(begin + i for i, one in enumerate(absent) if one)
    runs = list(pages.runs(first, first + length))
    assert {page for begin, end in runs for page in range(begin, end)} == {
        page for page in plain if first <= page < first + length
    }


def test_whole_pieces_take_no_room_of_their_own() -> None:
    pages = AbsentPages()
    for piece in range(2):
        pages.add(piece * PIECE_PAGES, np.ones(PIECE_PAGES, dtype=np.bool_))
    assert pages._pieces[0] is pages._pieces[1]
    assert list(pages.runs(5, 2 * PIECE_PAGES)) == [(5, PIECE_PAGES), (PIECE_PAGES, 2 * PIECE_PAGES)]
