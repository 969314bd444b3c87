# SPDX-License-Identifier: Apache-2.0
"""A directory slot: the header line's bytes, and what a payload may and may not say."""

from __future__ import annotations

import copy
import json
import math
import struct
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_pool import (
    GEOMETRY,
    OWNER,
    POOL,
    SIZE,
    directory,
    entry,
    header_for,
    read,
    reread,
)

from engramdax.errors import FormatError, ParameterError, SpaceError
from engramdax.format.directory import (
    LOADING,
    PUBLISHED,
    Directory,
    Retired,
    check_table_name,
    from_slot,
    payload_bytes,
    publish_state,
)
from engramdax.format.geometry import Extent
from engramdax.format.layout import RowLayout

HOT = {"extent": [26624, 1024], "rows": 3, "id_bytes": 4, "crc": 7, "served": [[1, 0.5], [3, 0.75]]}


def payload(**changes: Any) -> Any:
    """Give the payload of a valid directory as a JSON value."""
    header, data = directory().to_slot(GEOMETRY.slot_bytes)
    value = json.loads(data[: struct.unpack_from("<I", header, 52)[0]])
    return value | changes


def read_value(value: Any) -> Directory:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return read(header_for(data), data)


def refusal(value: Any) -> str:
    with pytest.raises(FormatError) as caught:
        read_value(value)
    return str(caught.value)


def with_table(**changes: Any) -> Any:
    value = payload()
    value["tables"][0] |= changes
    return value


def test_the_header_line_holds_the_fields_of_version_1_in_64_bytes() -> None:
    header, data = directory().to_slot(GEOMETRY.slot_bytes)
    assert len(header) == 64
    length = len(data.rstrip(b"\0"))
    assert header[0:8] == b"ENGRMDIR"
    assert struct.unpack_from("<Q", header, 8) == (5,)
    assert header[16:32] == POOL.bytes
    assert header[32:48] == OWNER.bytes
    assert struct.unpack_from("<I", header, 48) == (2,)
    assert struct.unpack_from("<I", header, 52) == (length,)
    assert struct.unpack_from("<I", header, 56) == (crc32c(data[:length]),)
    assert struct.unpack_from("<I", header, 60) == (crc32c(header[:60]),)


def test_the_payload_is_padded_to_whole_lines() -> None:
    _, data = directory().to_slot(GEOMETRY.slot_bytes)
    assert len(data) % 64 == 0
    assert set(json.loads(data.rstrip(b"\0"))) == {"hosts", "tables", "retired", "released", "heir"}


def test_what_is_written_is_read_back() -> None:
    assert reread(directory()) == directory()
    empty = Directory(POOL, 1, 1, OWNER)
    assert reread(empty) == empty


def test_any_flipped_bit_of_the_header_is_refused() -> None:
    header, data = directory().to_slot(GEOMETRY.slot_bytes)
    for bit in range(64 * 8):
        flipped = bytearray(header)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            read(bytes(flipped), data)


def test_flipped_bits_of_the_payload_are_refused() -> None:
    header, data = directory().to_slot(GEOMETRY.slot_bytes)
    for bit in range(0, len(data.rstrip(b"\0")) * 8, 5):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError, match="payload is damaged"):
            read(header, bytes(flipped))


def test_an_empty_slot_says_so() -> None:
    with pytest.raises(FormatError, match="the slot is empty"):
        payload_bytes(bytes(64), pool=POOL, slot_bytes=4096)


def test_the_slot_of_another_pool_is_refused() -> None:
    header = header_for(b"{}", pool=UUID(int=5))
    with pytest.raises(FormatError, match=f"another pool, {UUID(int=5)}"):
        payload_bytes(header, pool=POOL, slot_bytes=4096)


def test_header_length_past_the_end_of_the_slot_is_refused() -> None:
    assert payload_bytes(header_for(bytes(3968)), pool=POOL, slot_bytes=4096) == 3968
    with pytest.raises(FormatError, match="longer than a slot"):
        payload_bytes(header_for(bytes(3969)), pool=POOL, slot_bytes=4096)


def test_a_short_payload_is_refused() -> None:
    header, data = directory().to_slot(GEOMETRY.slot_bytes)
    with pytest.raises(FormatError, match="payload is damaged"):
        read(header, data[:100])


def test_a_directory_that_no_slot_can_hold_is_a_space_error() -> None:
    with pytest.raises(SpaceError, match="a slot has 448"):
        directory().to_slot(512)


def test_generations_that_cannot_be_pinned_are_refused() -> None:
    for generation in (1 << 62, (1 << 64) - 1):
        data = json.dumps(payload()).encode()
        with pytest.raises(FormatError, match="generation"):
            read(header_for(data, generation=generation), data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"state": "gone"}, "unknown state"),
        ({"state": None}, "unknown state"),
        ({"rows": -1}, "-1 where a count belongs"),
        ({"rows": 1.0}, "1.0 where a count belongs"),
        ({"rows": True}, "True where a count belongs"),
        ({"rows": 1 << 63}, "where a count belongs"),
        ({"rows": 17, "heads": None}, "does not fit its extents"),
        ({"heads": [4, 5]}, "do not add up"),
        ({"heads": [-4, 14]}, "where a count belongs"),
        ({"heads": 3}, "no directory in it"),
        ({"load": "x"}, "no directory in it"),
        ({"load": 5}, "no directory in it"),
        ({"source": 5}, "no directory in it"),
        ({"source": [["kind", "raw"]]}, "no directory in it"),
        ({"addressing": [[None, None]]}, "no directory in it"),
        ({"checksums_crc": "7"}, "where a count belongs"),
        ({"layout": {}}, "lacks a part"),
        ({"layout": None}, "lacks a part"),
        ({"extent": [16384, 0]}, "empty extent"),
        ({"extent": [16384]}, "no directory in it"),
        ({"extent": [16384, 1024, 1]}, "no directory in it"),
        ({"extent": "ab"}, "where a count belongs"),
        ({"extent": [16385, 1024]}, "outside the pool"),
        ({"extent": [16384, 1000]}, "outside the pool"),
        ({"extent": [SIZE, 1024]}, "outside the pool"),
        ({"extent": [1 << 62, 1024]}, "outside the pool"),
        ({"extent": [26624, 1 << 62]}, "outside the pool"),
        ({"extent": [18432, 1024]}, "overlapping extents"),
        ({"extent": [17408, 1024]}, "overlapping extents"),
        ({"extent": [24576, 1024]}, "overlapping extents"),
        ({"extent": [22528, 1024]}, "overlapping extents"),
        ({"extent": [0, 1024]}, "overlapping extents"),
        ({"extent": [4096, 1024]}, "overlapping extents"),
        ({"extent": [8192, 1024]}, "overlapping extents"),
        ({"extent": [15360, 1024]}, "overlapping extents"),
        ({"hot": HOT | {"extent": [16384, 1024]}}, "overlapping extents"),
        ({"hot": HOT | {"rows": 1024}}, "impossible hot list"),
        ({"hot": HOT | {"id_bytes": 5}}, "impossible hot list"),
        ({"hot": [16384, 1024]}, "no directory in it"),
        ({"hot": HOT | {"served": [[1, 10**400]]}}, "where a share belongs"),
        ({"hot": HOT | {"served": [[1, 1.5]]}}, "1.5 where a share belongs"),
        ({"hot": HOT | {"served": [[1, -0.5]]}}, "-0.5 where a share belongs"),
        ({"hot": HOT | {"served": [[1, math.nan]]}}, "nan where a share belongs"),
        ({"hot": HOT | {"served": [[1, math.inf]]}}, "inf where a share belongs"),
        ({"hot": HOT | {"served": [[1, "0.5"]]}}, "'0.5' where a share belongs"),
        ({"hot": HOT | {"served": [[1, True]]}}, "True where a share belongs"),
        ({"hot": HOT | {"served": [[10**400, 0.5]]}}, "where a count belongs"),
        ({"name": "d"}, "names a table twice"),
    ],
)
def test_an_impossible_table_is_refused_though_its_checksums_are_right(changes: dict[str, Any], words: str) -> None:
    assert words in refusal(with_table(**changes))


def test_an_extent_too_small_for_the_checksums_is_refused() -> None:
    # 160 blocks of 64 bytes have 640 bytes of checksums.
    fine = replace(GEOMETRY, unit=64, block=64)
    for length, accepted in ((640, True), (576, False)):
        table = entry("t", rows=160, heads=None, extent=Extent(16384, 10240), checksums=Extent(26624, length))
        header, data = directory(tables=(table,), retired=()).to_slot(4096)
        data = data[: payload_bytes(header, pool=POOL, slot_bytes=4096)]
        if accepted:
            assert from_slot(header, data, size=SIZE, geometry=fine).tables == (table,)
        else:
            with pytest.raises(FormatError, match="does not fit its extents"):
                from_slot(header, data, size=SIZE, geometry=fine)


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.", "a b", "ä", "a\n", "x" * 129, "a\0"]
)
def test_what_cannot_name_a_table_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="cannot name a table"):
        check_table_name(name)
    assert "impossible table name" in refusal(with_table(name=name))


@pytest.mark.parametrize("name", ["a", "deepseek-v4.1-flash/layers.1", "...", ".a", "a/..b", "x" * 128, "_/-/0"])
def test_table_names_are_given_back(name: str) -> None:
    assert check_table_name(name) == name
    assert read_value(with_table(name=name)).tables[0].name == name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("offset", -1),
        ("offset", 1 << 63),
        ("stride", 63),
        ("stride", 1 << 70),
        ("stride", None),
        ("count", 0),
        ("count", 1.0),
        ("count", True),
        ("count", 1 << 40),
        ("dtype", "complex128"),
        ("dtype", 5),
    ],
)
@pytest.mark.parametrize("rows", [0, 1, 10])
def test_an_impossible_field_of_a_row_is_refused(field: str, value: Any, rows: int) -> None:
    changed = with_table(rows=rows, heads=None)
    changed["tables"][0]["layout"]["fields"][0][field] = value
    refusal(changed)


def test_a_row_layout_must_match_its_row_bytes() -> None:
    changed = with_table()
    changed["tables"][0]["layout"]["row_bytes"] = 63
    assert "does not match its fields" in refusal(changed)
    changed["tables"][0]["layout"] = {"row_bytes": 0, "fields": []}
    assert "does not match its fields" in refusal(changed)


def test_a_row_of_more_than_a_mib_is_refused() -> None:
    layout = RowLayout.packed(("row", "uint8", (1 << 20) + 1))
    with pytest.raises(FormatError, match="does not match its fields"):
        RowLayout.from_json(layout.to_json())


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[]", b"{}", b"null", b"\xff\xfe", b"[" * 3000, b'{"hosts":' * 300, b"1" * 3900],
)
def test_payloads_that_are_no_directory_are_refused(data: bytes) -> None:
    assert "no directory in it" in refusal(data)


@pytest.mark.parametrize("generation", [6, 1 << 62])
def test_space_retired_in_the_future_is_refused(generation: int) -> None:
    value = payload()
    value["retired"][0]["generation"] = generation
    refusal(value)


ATOMS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 1 << 64),
    st.sampled_from([0, 1, 1024, 16384, SIZE, 1 << 62, 1 << 63, 10**100]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([LOADING, PUBLISHED, "", "a/b", "uint8", "ff" * 16]),
)
JUNK = st.recursive(ATOMS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner))


def nodes(value: Any) -> list[tuple[Any, Any]]:
    """Give (container, key) of every value in the tree."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    return [pair for key in keys for pair in [(value, key), *nodes(value[key])]]


@pytest.mark.unsanitized  # none of it is in C
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])  # the first draw builds tables
@given(data=st.data())
def test_any_payload_under_right_checksums_is_a_directory_or_a_format_error(data: st.DataObject) -> None:
    value = copy.deepcopy(payload())
    for _ in range(data.draw(st.integers(1, 3))):
        places = nodes(value)
        if not places:
            break
        container, key = data.draw(st.sampled_from(places))
        if data.draw(st.integers(0, 4)) == 0:
            del container[key]
        else:
            container[key] = data.draw(JUNK)
    text = json.dumps(value).encode()
    if len(text) > GEOMETRY.slot_bytes - 128:
        return
    try:
        found = read_value(text)
    except FormatError:
        return
    # What was believed can be written, read and used again.
    assert reread(found) == found
    for table in found.tables:
        assert table.bytes <= table.extent.length
        assert all(f.stride < 1 << 63 and f.offset < 1 << 63 for f in table.layout.fields)
    for extent in found.taken():
        assert extent.end <= SIZE
        assert not any(extent.overlaps(area) for area in GEOMETRY.metadata())


@given(ages=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=2))
def test_directories_are_ordered_by_epoch_and_then_generation(ages: list[tuple[int, int]]) -> None:
    a, b = (directory(epoch=epoch, generation=generation) for epoch, generation in ages)
    assert (a.age < b.age) == (ages[0] < ages[1])


def test_only_published_tables_are_seen() -> None:
    d = directory()
    assert [t.name for t in d.published()] == ["a/b", "d"]
    assert d.table("c") is None
    ready = publish_state(d, {d.tables[1].load}, {d.tables[1].load: 99})
    found = ready.table("c")
    assert found is not None
    assert found.checksums_crc == 99
    assert ready.tables[0] == d.tables[0]


def test_all_extents_of_loading_and_retired_tables_are_taken() -> None:
    assert len(directory().taken()) == 8


def test_a_loading_table_may_share_its_name_with_the_published_one() -> None:
    d = directory(tables=(entry("a"), entry("a", 18 << 10, state=LOADING)))
    assert reread(d) == d
    with pytest.raises(FormatError, match="twice"):
        reread(replace(d, tables=tuple(replace(t, state=PUBLISHED) for t in d.tables)))


def test_retired_space_must_not_overlap_a_table() -> None:
    d = directory(retired=(Retired("x", UUID(int=1), 3, (Extent(16 << 10, 1024),)),))
    with pytest.raises(FormatError, match="overlapping"):
        reread(d)
