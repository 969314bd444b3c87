# SPDX-License-Identifier: Apache-2.0
"""Label areas of pmem memdevs: one that Linux wrote, and what may have become of others."""

from __future__ import annotations

import struct
from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engramdax.devices.labels import Label, fletcher64, parse_labels
from engramdax.errors import FormatError

SLOTS = 0xFFA
NAMESPACE = UUID("ca7d271e-7c53-4573-9bf6-dd7bfbf8be67")
REGION = UUID("5f7a3c70-66c4-4a3e-9d53-6c1f1f0e7c11")
CXL_NAMESPACE = UUID("68bb2c0a-5a77-4937-9f85-3caf41a0f93c")


def index(number: int, sequence: int, used: tuple[int, ...], *, major: int = 1, labels: int = 0x600) -> bytes:
    """Give one of the two index blocks, 768 bytes each."""
    own, other = 0x300 * number, 0x300 * (1 - number)
    head = struct.pack(
        "<16s3sBIQQQQIHH",
        b"NAMESPACE_INDEX\0",
        bytes(3),
        1,
        sequence,
        own,
        0x300,
        other,
        labels,
        SLOTS,
        major,
        2 if major == 1 else 1,
    )
    free = (1 << SLOTS) - 1
    for slot in used:
        free &= ~(1 << slot)
    block = head + bytes(8) + free.to_bytes(512, "little")
    block = block.ljust(0x300, b"\0")
    return block[:64] + fletcher64(block).to_bytes(8, "little") + block[72:]


def label(uuid: UUID, *, ways: int = 1, position: int = 0, size: int = 256 << 20) -> bytes:
    """Give a label of version 1.2."""
    fields = struct.pack("<IHHQQQQ", 0, ways, position, 0x1C2000000E1, 512, 0, size)
    return (uuid.bytes + bytes(64) + fields).ljust(256, b"\0")


def cxl_label(uuid: UUID, region: UUID, *, ways: int = 2, position: int = 1, kind: UUID = CXL_NAMESPACE) -> bytes:
    """Give a label of version 2.1."""
    fields = struct.pack("<IHHQQII", 0, ways, position, 0, 128 << 20, 0, 0)
    return (kind.bytes + uuid.bytes + bytes(64) + fields + region.bytes).ljust(256, b"\0")


def area(first: bytes, second: bytes, *labels: bytes) -> bytes:
    return (first + second + b"".join(labels)).ljust(1 << 20, b"\0")


def test_checksum_is_the_one_that_linux_wrote() -> None:
    # From the label area of a QEMU memdev on which Linux 6.12 had made a namespace, by ndctl 81.
    assert index(0, 2, (1,))[64:72].hex() == "a55132dc3628c1fc"
    assert index(1, 1, (0,))[64:72].hex() == "a55132dc2934c1fc"


def test_label_in_use_is_read_and_the_one_given_up_is_not() -> None:
    old, new = label(UUID(int=7)), label(NAMESPACE)
    found = parse_labels(area(index(0, 2, (1,)), index(1, 1, (0,)), old, new))
    assert found == [Label(NAMESPACE, 1, 0, 256 << 20, None)]


@pytest.mark.parametrize(
    ("first", "second", "newer"), [(1, 2, 1), (2, 3, 1), (3, 1, 1), (2, 1, 0), (3, 2, 0), (1, 3, 0)]
)
def test_newer_index_block_counts(first: int, second: int, newer: int) -> None:
    uuids = (UUID(int=1), UUID(int=2))
    found = parse_labels(area(index(0, first, (0,)), index(1, second, (1,)), *(label(uuid) for uuid in uuids)))
    assert [one.namespace for one in found] == [uuids[newer]]


@pytest.mark.parametrize("damaged", [0, 1])
def test_damaged_index_block_leaves_the_other(damaged: int) -> None:
    blocks = [index(0, 1, (0,)), index(1, 2, (0,))]
    blocks[damaged] = blocks[damaged][:100] + b"\x55" + blocks[damaged][101:]
    assert len(parse_labels(area(*blocks, label(NAMESPACE)))) == 1
    blocks[damaged] = bytes(0x300)
    assert len(parse_labels(area(*blocks, label(NAMESPACE)))) == 1


def test_area_that_was_never_initialised_has_none() -> None:
    assert parse_labels(bytes(1 << 20)) == []
    assert parse_labels(b"") == []


@pytest.mark.parametrize("kept", [16, 30, 39, 40, 71, 72, 100, 0x2FF])
def test_index_block_that_is_cut_off_counts_for_nothing(kept: int) -> None:
    assert parse_labels(index(0, 1, (0,))[:kept]) == []


def test_labels_of_cxl_name_their_region() -> None:
    region = cxl_label(UUID(int=9), REGION, kind=UUID("529d7c61-da07-47c4-a93f-ecdf2c06f444"))
    data = area(index(0, 1, (0, 1), major=2), bytes(0x300), region, cxl_label(NAMESPACE, REGION))
    assert parse_labels(data) == [Label(NAMESPACE, 2, 1, 128 << 20, REGION)]


def test_slot_behind_the_end_is_an_error() -> None:
    with pytest.raises(FormatError, match="a slot behind its end"):
        parse_labels(area(index(0, 1, (0,), labels=1 << 40), bytes(0x300)))


@given(st.binary(max_size=2048), st.integers(0, 2047), st.booleans())
def test_whatever_stands_there_is_labels_or_an_error(data: bytes, place: int, checked: bool) -> None:
    whole = bytearray(area(index(0, 1, (0,)), index(1, 2, (1,)), label(NAMESPACE), label(NAMESPACE))[:4096])
    whole[place : place + len(data)] = data
    if checked:
        block = bytes(whole[:64]) + bytes(8) + bytes(whole[72:0x300])
        whole[64:72] = fletcher64(block).to_bytes(8, "little")
    with suppress(FormatError):
        parse_labels(bytes(whole))
