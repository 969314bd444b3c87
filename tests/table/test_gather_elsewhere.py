# SPDX-License-Identifier: Apache-2.0
"""Gathers out of arrays side by side, and beyond every 32-bit offset."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from crc32c import crc32c

import engramdax
from engramdax.errors import RowIdError
from engramdax.format.directory import PUBLISHED, Host, TableEntry
from engramdax.format.geometry import GIB, MIB, Extent
from engramdax.format.layout import V41_ROW, Field, RowLayout
from engramdax.format.superblock import Superblock
from engramdax.host import host_id
from engramdax.pool.access import LocalAccess
from engramdax.pool.provision import initialise, new_superblock
from engramdax.pool.space import allocate
from engramdax.pool.writer import Writer


def publish_by_hand(path: Path, layout: RowLayout, rows: int, content: bytes | None) -> None:
    """Publish table `t` with this layout; `content` is its whole extent, None leaves what is there."""
    with Writer(path) as writer:
        block = writer.superblock.geometry.block
        length = layout.extent_bytes(rows)
        crcs = b""
        if content is not None:
            assert len(content) == length
            crcs = b"".join(crc32c(content[at : at + block]).to_bytes(4, "little") for at in range(0, length, block))
        extent, checksums = allocate(writer.free(), [length, -(-length // block) * 4], writer.superblock.geometry.unit)
        if content is not None:
            writer.media.store(extent.offset, content.ljust(-(-length // 64) * 64, b"\0"))
            writer.media.store(checksums.offset, crcs.ljust(-(-len(crcs) // 64) * 64, b"\0"))
            writer.media.fence()
        entry = TableEntry(
            "t", uuid4(), PUBLISHED, rows, layout, extent, checksums, crc32c(crcs), None, {"kind": "by hand"}
        )
        writer.publish(tables=(entry,))


@pytest.mark.parametrize("rows", [1, 100, 9000])
def test_two_dense_arrays_side_by_side_are_gathered_as_one_row(make_pool: Callable[..., Path], rows: int) -> None:
    chance = np.random.default_rng(rows)
    weights = chance.integers(0, 256, (rows, 256), dtype=np.uint8)
    scales = chance.integers(0, 256, (rows, 8), dtype=np.uint8)
    layout = RowLayout(
        (
            Field("weight", "float8_e4m3fn", 256, 0, 256),
            Field("scale", "float8_e8m0fnu", 8, rows * 256, 8),
        )
    )
    path = make_pool()
    publish_by_hand(path, layout, rows, weights.tobytes() + scales.tobytes())
    with engramdax.open(path) as pool:
        table = pool["t"]
    assert table.row_bytes == 264
    assert table.nbytes == rows * 264
    assert table.dtype == np.uint8
    ids = chance.integers(-1, rows, 1000)
    expected = np.concatenate([weights, scales], axis=1)[ids]
    expected[ids == -1] = 0
    assert (table.gather(ids) == expected).all()
    assert (table.gather(ids, threads=2) == expected).all()
    assert table.verify() == []
    # A bad byte among the scales names the rows whose scales stand in that block.
    at = rows * 264 - 1
    with path.open("r+b") as file:
        file.seek(table._entry.extent.offset + at)
        file.write(bytes([int(scales[-1, -1]) ^ 1]))
    (bad,) = table.verify()
    assert bad.offset == at // MIB * MIB
    assert bad.last_row == rows - 1
    assert 0 <= bad.first_row <= bad.last_row


def test_rows_with_padding_between_them_and_fields_in_another_order(make_pool: Callable[..., Path]) -> None:
    rows = 500
    content = np.random.default_rng(5).integers(0, 256, (rows, 100), dtype=np.uint8)
    layout = RowLayout(
        (Field("b", "uint8", 7, 60, 100), Field("a", "uint8", 5, 3, 100), Field("c", "uint8", 1, 8, 100))
    )
    path = make_pool()
    publish_by_hand(path, layout, rows, content.tobytes()[: layout.extent_bytes(rows)])
    with engramdax.open(path) as pool:
        table = pool["t"]
    expected = np.concatenate([content[:, 60:67], content[:, 3:8], content[:, 8:9]], axis=1)
    assert (table.gather(np.arange(rows)) == expected).all()


def test_a_table_without_rows_gives_zeros_and_refuses_every_id(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    publish_by_hand(path, RowLayout.packed(("row", "uint8", 8)), 0, b"")
    with engramdax.open(path) as pool:
        table = pool["t"]
    assert not table.gather([-1, -1]).any()
    assert not table.gather([0, 5], invalid="zero").any()
    with pytest.raises(RowIdError):
        table.gather([0])
    assert table.verify() == []


def sparse_pool(path: Path, size: int) -> Superblock:
    """A pool in a file of holes: what provisioning writes, without taking the space."""
    with path.open("wb") as file:
        file.truncate(size)
    superblock = new_superblock("sparse", size, shared=False)
    opened = LocalAccess(path, writable=True)
    initialise(opened.media, superblock, Host(host_id(), "host"))
    opened.close()
    return superblock


def test_rows_beyond_every_32_bit_offset_are_right(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    sparse_pool(path, 12 * GIB)
    rows = 11 * GIB // 264
    with Writer(path) as writer:
        largest = max(writer.free(), key=lambda e: e.length)
    assert largest.length >= rows * 264
    publish_by_hand(path, V41_ROW, rows, None)
    with engramdax.open(path) as pool:
        table = pool["t"]
    begin = table._entry.extent.offset
    boundaries = [1 << 31, 1 << 32, 3 << 31, 1 << 33, 5 << 31, rows * 264]
    # Offsets count from the table and from the file: take the rows around both.
    ids = sorted(
        {
            row
            for boundary in boundaries
            for at in (boundary, boundary - begin)
            for row in range(at // 264 - 2, at // 264 + 3)
            if 0 <= row < rows
        }
        | {0, 1, rows - 1}
    )
    assert ids[-1] * 264 > 1 << 33
    chance = np.random.default_rng(0)
    expected = chance.integers(0, 256, (len(ids), 264), dtype=np.uint8)
    with path.open("r+b") as file:
        for row, data in zip(ids, expected, strict=True):
            os.pwrite(file.fileno(), data.tobytes(), begin + row * 264)
    order = chance.integers(0, len(ids), 1000)
    wanted = np.array(ids)[order]
    for threads in (1, 2):
        assert (table.gather(wanted, threads=threads) == expected[order]).all()
        assert (table.gather(wanted.astype(np.int32), threads=threads) == expected[order]).all()
    with pytest.raises(RowIdError, match=f"is {rows}, table t has rows 0 to {rows - 1}"):
        table.gather(np.array([rows]))
    assert path.stat().st_blocks * 512 < 64 * MIB


def test_a_checkpoint_larger_than_int32_rows_needs_int64_ids(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    sparse_pool(path, 4 * GIB)
    rows = 3 * GIB
    publish_by_hand(path, RowLayout.packed(("row", "uint8", 1)), rows, None)
    with engramdax.open(path) as pool:
        table = pool["t"]
    extent: Extent = table._entry.extent
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"x", extent.offset + (1 << 31))
        os.pwrite(file.fileno(), b"y", extent.offset + rows - 1)
    assert table.gather(np.array([1 << 31, rows - 1, 0])).tobytes() == b"xy\0"
    with pytest.raises(RowIdError, match=f"is {rows}"):
        table.gather(np.array([rows]))
