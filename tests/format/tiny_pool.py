# SPDX-License-Identifier: Apache-2.0
"""A pool of 32 KiB: its geometry, its superblock, directories that fit it."""

from __future__ import annotations

import struct
from typing import Any
from uuid import UUID

from crc32c import crc32c

from engramdax.format.directory import (
    LOADING,
    PUBLISHED,
    Directory,
    Host,
    HotList,
    Retired,
    TableEntry,
    from_slot,
    payload_bytes,
)
from engramdax.format.geometry import Extent, Geometry
from engramdax.format.layout import RowLayout
from engramdax.format.superblock import Superblock

SIZE = 32 << 10
GEOMETRY = Geometry(superblocks=(0, 4096), slots=(8192, 12288), slot_bytes=4096, unit=1024, block=256)
POOL = UUID("00112233-4455-6677-8899-aabbccddeeff")
OWNER = UUID("f0e1d2c3-b4a5-9687-7869-5a4b3c2d1e0f")


def superblock(**changes: Any) -> Superblock:
    values: dict[str, Any] = {
        "pool": POOL,
        "device": UUID(int=1 << 100),
        "name": "tiny",
        "size": SIZE,
        "geometry": GEOMETRY,
        "shared": False,
        "created": 1_700_000_000,
    }
    return Superblock(**values | changes)


def entry(name: str = "t", at: int = 16 << 10, **changes: Any) -> TableEntry:
    """A table of 10 rows of 64 bytes at `at`, its checksums in the unit behind it."""
    values: dict[str, Any] = {
        "name": name,
        "load": UUID(int=at),
        "state": PUBLISHED,
        "rows": 10,
        "layout": RowLayout.packed(("row", "uint8", 64)),
        "extent": Extent(at, 1024),
        "checksums": Extent(at + 1024, 1024),
        "checksums_crc": 7,
        "heads": (4, 6),
        "source": {"kind": "raw"},
    }
    return TableEntry(**values | changes)


def directory(**changes: Any) -> Directory:
    """Two tables, one of them loading, and one retired: a bit of everything."""
    values: dict[str, Any] = {
        "pool": POOL,
        "generation": 5,
        "epoch": 2,
        "owner": OWNER,
        "hosts": (Host(OWNER, "alpha"), Host(UUID(int=3), "beta")),
        "tables": (
            entry("a/b"),
            entry("c", 18 << 10, state=LOADING, heads=None),
            entry("d", 20 << 10, hot=HotList(Extent(22 << 10, 1024), 3, 4, 7, ((1, 0.5), (3, 0.75)))),
        ),
        "retired": (Retired("gone", UUID(int=9), 4, (Extent(24 << 10, 2048),)),),
    }
    return Directory(**values | changes)


def header_for(payload: bytes, *, generation: int = 5, epoch: int = 2, pool: UUID = POOL) -> bytes:
    """A right header line for any payload, made field by field as the format says."""
    checked = b"ENGRMDIR" + struct.pack("<Q", generation) + pool.bytes + OWNER.bytes
    checked += struct.pack("<III", epoch, len(payload), crc32c(payload))
    return checked + struct.pack("<I", crc32c(checked))


def read(header: bytes, payload: bytes) -> Directory:
    """Read a slot as the pool does: the header first, then as much payload as it says."""
    length = payload_bytes(header, pool=POOL, slot_bytes=GEOMETRY.slot_bytes)
    return from_slot(header, payload[:length], size=SIZE, geometry=GEOMETRY)


def reread(written: Directory) -> Directory:
    return read(*written.to_slot(GEOMETRY.slot_bytes))
