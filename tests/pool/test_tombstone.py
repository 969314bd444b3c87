# SPDX-License-Identifier: Apache-2.0
"""What a deprovisioned pool left may be overwritten, as long as it is that and nothing else. Files stand in."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from engramdax.errors import FormatError, RefusedError
from engramdax.format.geometry import GIB, LINE, MIB
from engramdax.format.tombstone import MAGIC, Tombstone
from engramdax.pool import provision
from engramdax.pool.access import LocalAccess
from engramdax.pool.contents import Contents, State, contents
from engramdax.pool.volume import read_superblock

SIZE = 24 * MIB
PLACES = (0, 9, LINE, 2 * MIB, 4 * MIB + LINE, 13 * MIB, SIZE - 1)
"""In the tombstone, behind it, where the second superblock was, in the directory, in the table, at the end."""


def look(path: Path) -> Contents:
    opened = LocalAccess(path, writable=False)
    try:
        return contents(opened.media, opened.fd)
    finally:
        opened.close()


def end(path: Path, *, ended: bool = True) -> UUID:
    """Make it a pool no more, as deprovisioning a device does: a file would be removed."""
    opened = LocalAccess(path, writable=True)
    superblock = read_superblock(opened.media).value
    opened.close()
    provision._void(path, superblock, force=True, ended=ended)
    return superblock.pool


@pytest.fixture
def ended(make_pool: Callable[..., Path], load_array: Callable[..., object]) -> Path:
    """Give what a pool with a table left."""
    path = make_pool(SIZE, "was")
    load_array(path, "t", np.random.default_rng(1).integers(1, 256, (4000, 264), np.uint8))
    end(path)
    return path


def change(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, at)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), at)


def test_what_a_pool_left_counts_as_empty(ended: Path) -> None:
    assert look(ended) == (State.EMPTY, "what a pool left that was deprovisioned")
    assert ended.read_bytes()[:8] == MAGIC
    assert any(ended.read_bytes()[12 * MIB : 13 * MIB])  # the table's bytes are there still


@pytest.mark.parametrize("place", PLACES)
def test_one_byte_that_somebody_wrote_since_makes_it_unknown(ended: Path, place: int) -> None:
    change(ended, place)
    assert look(ended).state is State.UNKNOWN
    with pytest.raises(RefusedError, match="--overwrite-unknown"):
        provision.plan_file(ended, SIZE, name="next", consent=provision.Consent())


def test_pool_that_failed_to_be_made_leaves_what_was_there_unknown(make_pool: Callable[..., Path]) -> None:
    path = make_pool(SIZE)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"somebody's, whom --overwrite-unknown was said of", 20 * MIB)
    end(path, ended=False)
    assert look(path).state is State.UNKNOWN


@pytest.mark.parametrize(("before", "behind"), [(2 * MIB, 0), (2 * MIB, MIB), (0, 4 * MIB)])
def test_raw_view_of_a_namespace_has_it_further_behind(ended: Path, tmp_path: Path, before: int, behind: int) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(bytes(before) + ended.read_bytes() + bytes(behind))
    assert look(raw).state is State.EMPTY
    for place in (before - 1, before + SIZE):
        if 0 <= place < raw.stat().st_size:
            change(raw, place)
            assert look(raw) == (State.UNKNOWN, f"unknown bytes at {min(before, place)}")
            change(raw, place)


def test_device_that_shrank_is_unknown(ended: Path) -> None:
    os.truncate(ended, SIZE - 2 * MIB)
    assert look(ended).state is State.UNKNOWN


def test_of_a_large_pool_the_places_are_compared_that_are_looked_at(make_pool: Callable[..., Path]) -> None:
    size = GIB + 256 * MIB
    path = make_pool(SIZE)
    os.truncate(path, size)
    opened = LocalAccess(path, writable=True)
    superblock = read_superblock(opened.media).value
    opened.close()
    # Sparse: making such a pool would take all its space.
    pool = provision.new_superblock("large", size, shared=False)
    opened = LocalAccess(path, writable=True)
    provision.initialise(opened.media, pool, provision.Host(superblock.pool, "h"))
    opened.close()
    for place in (64 * MIB, 80 * MIB + 5, size - MIB):
        change(path, place)
    end(path)
    assert look(path).state is State.EMPTY
    for place in (63 * MIB, 66 * MIB + 1, 80 * MIB + 6, size - 64 * MIB):
        change(path, place)
        assert look(path).state is State.UNKNOWN, place
        change(path, place)
    assert look(path).state is State.EMPTY


def test_next_pool_has_no_tombstone(ended: Path) -> None:
    for step in provision.plan_file(ended, SIZE, name="next", consent=provision.Consent()).steps:
        step.do()
    assert look(ended).state is State.POOL
    assert end(ended, ended=False)
    assert ended.read_bytes()[:LINE] == bytes(LINE)


def test_line_is_read_as_it_was_written_and_no_other() -> None:
    stone = Tombstone(UUID(int=7 << 90), SIZE, 1_800_000_000, 0xDEADBEEF)
    line = stone.to_bytes()
    assert len(line) == LINE
    assert Tombstone.from_bytes(line, media_bytes=SIZE) == stone
    for bit in range(LINE * 8):
        spoilt = bytearray(line)
        spoilt[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            Tombstone.from_bytes(bytes(spoilt), media_bytes=SIZE)
    for size in (SIZE - 1, 0):
        with pytest.raises(FormatError):
            Tombstone.from_bytes(line, media_bytes=size)
