# SPDX-License-Identifier: Apache-2.0
"""The superblock: its bytes, what is accepted, what is refused and with which words."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from tiny_pool import GEOMETRY, POOL, SIZE, superblock

from engramdax.errors import FormatError, NotAPoolError, ParameterError
from engramdax.format.geometry import GIB, MIB, Geometry, standard
from engramdax.format.superblock import Superblock, check_pool_name, is_beginning

U64 = st.integers(0, (1 << 64) - 1)

# The format, version 1, as offset, struct code and value: a change here is a new version.
FIELDS = [
    ("magic", 0, "8s", b"ENGRMDAX"),
    ("version", 8, "<I", 1),
    ("own bytes", 12, "<I", 4096),
    ("compat", 16, "<Q", 0x11),
    ("ro_compat", 24, "<Q", 0x22),
    ("incompat", 32, "<Q", 0x33),
    ("pool uuid", 40, "16s", POOL.bytes),
    ("device uuid", 56, "16s", UUID(int=1 << 100).bytes),
    ("device index", 72, "<I", 0),
    ("device count", 76, "<I", 1),
    ("size", 80, "<Q", SIZE),
    ("name", 88, "64s", b"tiny".ljust(64, b"\0")),
    ("flags", 152, "<I", 1),
    ("reserved", 156, "<I", 0),
    ("created", 160, "<Q", 1_700_000_000),
    ("superblock 0", 168, "<Q", 0),
    ("superblock 1", 176, "<Q", 4096),
    ("superblock 2", 184, "<Q", 0),
    ("superblock count", 192, "<I", 2),
    ("padding", 196, "<I", 0),
    ("slot 0", 200, "<Q", 8192),
    ("slot 1", 208, "<Q", 12288),
    ("slot bytes", 216, "<Q", 4096),
    ("unit", 224, "<Q", 1024),
    ("block", 232, "<Q", 256),
]


def damaged(offset: int, data: bytes) -> bytes:
    """Our superblock with `data` at `offset` and a right checksum."""
    body = bytearray(superblock().to_bytes())
    body[offset : offset + len(data)] = data
    return bytes(body[:-4]) + struct.pack("<I", crc32c(bytes(body[:-4])))


def refusal(data: bytes, media_bytes: int = SIZE) -> FormatError:
    with pytest.raises(FormatError) as caught:
        Superblock.from_bytes(data, media_bytes=media_bytes)
    return caught.value


def test_every_field_stands_where_version_1_puts_it() -> None:
    data = superblock(shared=True, compat=0x11, ro_compat=0x22, incompat=0x33).to_bytes()
    assert len(data) == 4096
    for name, offset, code, value in FIELDS:
        assert struct.unpack_from(code, data, offset) == (value,), name
    assert not any(data[240:4092])
    assert struct.unpack_from("<I", data, 4092) == (crc32c(data[:4092]),)


def test_fields_leave_no_gap_and_do_not_overlap() -> None:
    at = 0
    for name, offset, code, _ in FIELDS:
        assert offset == at, name
        at += struct.calcsize(code)
    assert at == 240


@given(
    pool=st.uuids(),
    device=st.uuids(),
    name=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    shared=st.booleans(),
    created=U64,
    compat=U64,
    ro_compat=U64,
    size=st.sampled_from([16 * MIB, 2 * GIB - 2 * MIB, 2 * GIB, 3 << 40, (1 << 62)]),
)
def test_what_is_written_is_read_back(size: int, **fields: Any) -> None:
    written = Superblock(size=size, geometry=standard(size), **fields)
    assert Superblock.from_bytes(written.to_bytes(), media_bytes=size) == written


def test_media_larger_than_the_pool_are_fine() -> None:
    assert Superblock.from_bytes(superblock().to_bytes(), media_bytes=SIZE * 2) == superblock()


def test_any_flipped_bit_is_refused() -> None:
    data = superblock().to_bytes()
    for bit in [*range(260 * 8), *range(260 * 8, 4092 * 8, 97), *range(4092 * 8, 4096 * 8)]:
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        refusal(bytes(flipped))


@pytest.mark.parametrize("data", [bytes(4096), b"\xff" * 4096, b"ENGRMDAY".ljust(4096, b"\0")])
def test_without_the_magic_there_is_no_pool(data: bytes) -> None:
    with pytest.raises(NotAPoolError, match="there is no engramdax superblock"):
        Superblock.from_bytes(data, media_bytes=SIZE)


def test_a_wrong_checksum_is_damage_and_not_absence() -> None:
    error = refusal(superblock().to_bytes()[:-1] + b"\xaa")
    assert "checksum is wrong" in str(error)
    assert not isinstance(error, NotAPoolError)


@pytest.mark.parametrize(
    ("offset", "data", "words"),
    [
        (8, struct.pack("<I", 2), "version 2"),
        (8, struct.pack("<I", 0), "version 0"),
        (12, struct.pack("<I", 8192), "version 1"),
        (32, struct.pack("<Q", 1), "incompatible features 0x1"),
        (32, struct.pack("<Q", 1 << 63), "incompatible features 0x8000000000000000"),
        (72, struct.pack("<I", 1), "device 1 of 1"),
        (76, struct.pack("<I", 2), "device 0 of 2"),
        (80, struct.pack("<Q", SIZE + 1), f"says {SIZE + 1} bytes, the media has {SIZE}"),
        (80, struct.pack("<Q", (1 << 64) - 1), "the media has"),
        (80, struct.pack("<Q", 0), "behind the end 0"),
        (80, struct.pack("<Q", 16383), "behind the end 16383"),
        (88, bytes(64), "name is impossible"),
        (88, b"a b", "name is impossible"),
        (88, b"a\0b", "name is impossible"),
        (88, b"\xff", "name is impossible"),
        (88, b"tiny\n", "name is impossible"),
        (168, struct.pack("<Q", 64), "own places"),
        (176, struct.pack("<Q", 4095), "geometry is impossible"),
        (176, struct.pack("<Q", 4032), "areas overlap"),
        (176, struct.pack("<Q", 0), "areas overlap"),
        (176, struct.pack("<Q", 1 << 63), "behind the end"),
        (192, struct.pack("<I", 0), "counts 0 copies"),
        (192, struct.pack("<I", 4), "counts 4 copies"),
        (192, struct.pack("<I", 3), "areas overlap"),
        (200, struct.pack("<Q", 8200), "geometry is impossible"),
        (200, struct.pack("<Q", 12288), "areas overlap"),
        (208, struct.pack("<Q", SIZE), "behind the end"),
        (216, struct.pack("<Q", 64), "geometry is impossible"),
        (216, struct.pack("<Q", 4160), "areas overlap"),
        (216, struct.pack("<Q", 1 << 62), "areas overlap"),
        (224, struct.pack("<Q", 0), "geometry is impossible"),
        (224, struct.pack("<Q", 32), "geometry is impossible"),
        (224, struct.pack("<Q", 1536), "geometry is impossible"),
        (232, struct.pack("<Q", 0), "geometry is impossible"),
        (232, struct.pack("<Q", 63), "geometry is impossible"),
        (232, struct.pack("<Q", 100), "geometry is impossible"),
    ],
)
def test_an_impossible_superblock_is_refused_though_its_checksum_is_right(offset: int, data: bytes, words: str) -> None:
    error = refusal(damaged(offset, data))
    assert words in str(error)
    assert not isinstance(error, NotAPoolError)


def test_truncated_media_are_told_with_a_way_back() -> None:
    assert "what is left is as it was" in refusal(superblock().to_bytes(), SIZE - 1).remedy


def test_a_beginning_is_known_wherever_it_is_cut_off() -> None:
    data = superblock().to_bytes()
    other = UUID(int=POOL.int ^ 1 << 127)  # which differs in the first byte
    assert all(is_beginning(data[:length], POOL) for length in range(len(data) + 1))
    assert not any(is_beginning(data[:length], other) for length in range(41, len(data) + 1))
    assert not any(is_beginning(bytes(length), POOL) for length in range(1, len(data) + 1))


def test_a_newer_format_names_its_remedy() -> None:
    assert refusal(damaged(8, struct.pack("<I", 2))).remedy == "use a newer engramdax"


@pytest.mark.parametrize("offset", [16, 24])
def test_unknown_compatible_features_do_not_hinder_reading(offset: int) -> None:
    read = Superblock.from_bytes(damaged(offset, struct.pack("<Q", 0xF0)), media_bytes=SIZE)
    assert (read.compat, read.ro_compat) == ((0xF0, 0) if offset == 16 else (0, 0xF0))


@given(data=st.binary(min_size=1, max_size=64), offset=st.integers(8, 239))
def test_random_bytes_under_a_right_checksum_give_a_superblock_or_a_format_error(data: bytes, offset: int) -> None:
    try:
        read = Superblock.from_bytes(damaged(offset, data[: 4092 - offset]), media_bytes=SIZE)
    except FormatError:
        return
    read.geometry.check(read.size)
    assert read.size <= SIZE


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 64])
def test_pool_names_are_given_back(name: str) -> None:
    assert check_pool_name(name) == name


@pytest.mark.parametrize("name", ["", "x" * 65, "a/b", "a b", "ä", "a\n", "\0"])
def test_what_cannot_name_a_pool_is_refused(name: str) -> None:
    with pytest.raises(ParameterError, match="cannot name a pool"):
        check_pool_name(name)


def test_no_two_copies_share_a_page() -> None:
    for size in (16 * MIB, GIB, 2 * GIB, 1 << 40):
        g = standard(size)
        g.check(size)
        pages = [offset // (2 * MIB) for offset in (*g.superblocks, *g.slots)]
        assert len(set(pages)) == len(pages)
    g = standard(2 * GIB)
    # One lost 1 GiB page leaves a superblock and a directory.
    assert {offset // GIB for offset in g.superblocks} == {0, 1} == {offset // GIB for offset in g.slots}


def test_geometry_of_three_copies_round_trips() -> None:
    geometry = Geometry((0, 4096, 16384), GEOMETRY.slots, 4096, 1024, 256)
    written = superblock(geometry=geometry)
    assert Superblock.from_bytes(written.to_bytes(), media_bytes=SIZE).geometry == geometry
