# SPDX-License-Identifier: Apache-2.0
"""Row layouts: packed rows, arrays side by side, and the way through JSON."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from engramdax.format.layout import ITEM_SIZES, V41_ROW, Field, RowLayout

PARTS = st.lists(
    st.tuples(st.text(max_size=8), st.sampled_from(sorted(ITEM_SIZES)), st.integers(1, 4096)), min_size=1, max_size=5
)


@given(parts=PARTS)
def test_packed_fields_follow_each_other_without_a_gap(parts: list[tuple[str, str, int]]) -> None:
    layout = RowLayout.packed(*parts)
    at = 0
    for field in layout.fields:
        assert (field.offset, field.stride) == (at, layout.row_bytes)
        at += field.bytes
    assert at == layout.row_bytes
    assert layout.extent_bytes(7) == 7 * layout.row_bytes
    assert layout.extent_bytes(0) == 0


@given(parts=PARTS)
def test_layouts_survive_json(parts: list[tuple[str, str, int]]) -> None:
    layout = RowLayout.packed(*parts)
    assert RowLayout.from_json(json.loads(json.dumps(layout.to_json()))) == layout


def test_the_row_of_deepseek_v41_is_264_bytes_with_the_scales_last() -> None:
    assert V41_ROW.row_bytes == 264
    assert [(f.name, f.offset, f.stride, f.bytes) for f in V41_ROW.fields] == [
        ("weight", 0, 264, 256),
        ("scale", 256, 264, 8),
    ]


def test_arrays_side_by_side_reach_to_the_end_of_the_last() -> None:
    layout = RowLayout((Field("w", "uint8", 256, 0, 256), Field("s", "uint8", 8, 25600, 8)))
    assert layout.row_bytes == 264
    assert layout.extent_bytes(100) == 26400
    assert layout.extent_bytes(1) == 25608
