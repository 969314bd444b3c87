# SPDX-License-Identifier: Apache-2.0
"""Storing whole lines, interleaving columns, and the Media over a real mapping."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engramdax._core import ffi, lib
from engramdax.errors import BackingError, UnreadableError
from engramdax.mapping import Mapping
from engramdax.media import MappedMedia


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file of 64 KiB of random bytes, open for reading and writing."""
    path = tmp_path / "media"
    path.write_bytes(np.random.default_rng(0).bytes(1 << 16))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def mapping(fd: int, *, writable: bool = True) -> Mapping:
    return Mapping(fd, 1 << 16, align=4096, writable=writable, huge=False, path="media")


@pytest.mark.parametrize("shift", range(64))
def test_whole_lines_are_stored_from_a_source_of_any_alignment(shift: int) -> None:
    lines = 5
    source = np.random.default_rng(shift).integers(0, 256, lines * 64 + 64, dtype=np.uint8)
    room = np.zeros(lines * 64 + 192, np.uint8)
    start = -room.ctypes.data % 64 + 64
    lib.ed_store_lines(
        ffi.cast("uint8_t *", room.ctypes.data + start), ffi.cast("uint8_t *", source.ctypes.data + shift), lines
    )
    lib.ed_fence()
    assert (room[start : start + lines * 64] == source[shift : shift + lines * 64]).all()
    assert not room[:start].any()
    assert not room[start + lines * 64 :].any()


def test_storing_no_lines_touches_nothing() -> None:
    lib.ed_store_lines(ffi.NULL, ffi.NULL, 0)


@given(
    widths=st.lists(st.integers(0, 300), min_size=1, max_size=5) | st.just([256, 8]),
    rows=st.integers(0, 40),
    seed=st.integers(0, 99),
)
def test_columns_are_interleaved_as_numpy_does(widths: list[int], rows: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    columns = [chance.integers(0, 256, (rows, width), dtype=np.uint8) for width in widths]
    out = np.full(rows * sum(widths) + 8, 0xEE, np.uint8)
    lib.ed_interleave(
        ffi.new("uint8_t *[]", [ffi.cast("uint8_t *", column.ctypes.data) for column in columns]),
        ffi.new("uint32_t[]", widths),
        len(widths),
        rows,
        ffi.cast("uint8_t *", out.ctypes.data),
    )
    assert (out[:-8].reshape(rows, -1) == np.concatenate(columns, axis=1)).all() if rows else True
    assert (out[-8:] == 0xEE).all()


def test_what_is_stored_is_loaded_and_reaches_the_file(file: int) -> None:
    media = MappedMedia(mapping(file), sync_fd=file)
    data = bytes(range(64)) * 3
    media.store(128, data)
    media.fence()
    media.invalidate(128, 192)
    assert media.load(128, 192) == data
    assert os.pread(file, 192, 128) == data


@pytest.mark.parametrize(
    ("offset", "length"), [(1, 64), (32, 64), (0, 63), (0, 65), (-64, 64), (1 << 16, 64), ((1 << 16) - 64, 128)]
)
def test_stores_of_partial_lines_or_outside_are_refused(file: int, offset: int, length: int) -> None:
    before = os.pread(file, 1 << 16, 0)
    with pytest.raises(BackingError, match=r"no whole lines of media|lie outside the 65536 of media"):
        MappedMedia(mapping(file)).store(offset, bytes(length))
    assert os.pread(file, 1 << 16, 0) == before


def test_a_store_to_a_read_only_mapping_is_an_error_and_not_a_signal(file: int) -> None:
    with pytest.raises(BackingError, match="mapped read-only"):
        MappedMedia(mapping(file, writable=False)).store(0, bytes(64))


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (1 << 16, 1), (0, (1 << 16) + 1)])
def test_ranges_outside_the_media_are_refused(file: int, offset: int, length: int) -> None:
    media = MappedMedia(mapping(file))
    said = f"bytes {offset} to {offset + length} lie outside the 65536 of media"
    for use in (media.load, media.invalidate, media.first_nonzero, media.mapping.view):
        with pytest.raises(BackingError, match=said):
            use(offset, length)


@pytest.mark.parametrize("length", [0, 1, 63, 64, 65, 200])
def test_first_byte_that_is_not_zero_is_found_wherever_the_range_begins_and_ends(file: int, length: int) -> None:
    media = MappedMedia(mapping(file))
    for offset in (*range(4096, 4162), (1 << 16) - length):
        for at in range(length):
            os.pwrite(file, bytes(8192), offset - 256)
            os.ftruncate(file, 1 << 16)
            os.pwrite(file, b"\1", offset - 1)
            os.pwrite(file, b"\x80", offset + at)
            assert media.first_nonzero(offset, length) == offset + at
            assert media.first_nonzero(offset, at) is None


def test_a_search_for_bytes_that_are_not_zero_ends_in_an_error_where_memory_is_gone(file: int) -> None:
    media = MappedMedia(mapping(file))
    os.pwrite(file, bytes(4096), 0)
    os.ftruncate(file, 4096)
    with pytest.raises(UnreadableError, match="bytes 4000 to 5000 of media cannot be read"):
        media.first_nonzero(4000, 1000)
    os.pwrite(file, b"\1", 4095)
    assert media.first_nonzero(4090, 6) == 4095


@given(offset=st.integers(0, (1 << 16) - 1), length=st.integers(0, 4096))
def test_invalidating_any_range_loses_nothing(offset: int, length: int) -> None:
    data = np.random.default_rng(3).integers(0, 256, (1 << 16) + 4096, dtype=np.uint8)
    before = data.copy()
    data[offset : offset + length] += 1  # dirty lines are written back, not dropped
    lib.ed_invalidate(ffi.cast("uint8_t *", data.ctypes.data + offset), length)
    before[offset : offset + length] += 1
    assert (data == before).all()


def test_views_of_a_read_only_mapping_are_read_only(file: int) -> None:
    assert mapping(file, writable=False).view(0, 10).readonly
    assert not mapping(file).view(0, 10).readonly
