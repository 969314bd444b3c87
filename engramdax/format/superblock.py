# SPDX-License-Identifier: Apache-2.0
"""The superblock: 4 KiB that say what this memory is, before anything else of it is believed."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from crc32c import crc32c

from engramdax.errors import FormatError, NotAPoolError, ParameterError
from engramdax.format.geometry import SUPERBLOCK_BYTES, Geometry

MAGIC: Final = b"ENGRMDAX"
VERSION: Final = 1
NAME_CHARACTERS: Final = "A-Za-z0-9._-"
"""What names of pools and of tables consist of, as it stands in the brackets of a regular expression."""

MAX_POOL_NAME: Final = 64
POOL_NAME: Final = re.compile(rf"[{NAME_CHARACTERS}]{{1,{MAX_POOL_NAME}}}")

# docs/format.md holds the same as a table; tests/format compares both.
_BEFORE_POOL: Final = "<8sIIQQQ"
_POOL_OFFSET: Final = struct.calcsize(_BEFORE_POOL)
_HEAD: Final = struct.Struct(f"{_BEFORE_POOL}16s16sIIQ64sIIQ3QI4x2QQQQ")
_CRC: Final = struct.Struct("<I")
_CRC_OFFSET: Final = SUPERBLOCK_BYTES - _CRC.size

FLAG_SHARED: Final = 1


class TornSuperblockError(FormatError):
    """One that is damaged, or that somebody is about to write at this moment."""


@dataclass(frozen=True, slots=True)
class Superblock:
    """What every copy of the superblock holds.

    `size` and the geometry are bytes, `created` is seconds since 1970. An unknown bit in `incompat`
    forbids any use of the pool, in `ro_compat` any writing, in `compat` nothing.
    """

    pool: UUID
    device: UUID
    name: str
    size: int
    geometry: Geometry
    shared: bool
    created: int
    device_index: int = 0
    device_count: int = 1
    compat: int = 0
    ro_compat: int = 0
    incompat: int = 0

    def to_bytes(self) -> bytes:
        """Give the 4096 bytes, checksum last."""
        g = self.geometry
        copies = (*g.superblocks, 0, 0)[:3]
        head = _HEAD.pack(
            MAGIC,
            VERSION,
            SUPERBLOCK_BYTES,
            self.compat,
            self.ro_compat,
            self.incompat,
            self.pool.bytes,
            self.device.bytes,
            self.device_index,
            self.device_count,
            self.size,
            self.name.encode(),
            FLAG_SHARED if self.shared else 0,
            0,
            self.created,
            *copies,
            len(g.superblocks),
            *g.slots,
            g.slot_bytes,
            g.unit,
            g.block,
        )
        body = head.ljust(_CRC_OFFSET, b"\0")
        return body + _CRC.pack(crc32c(body))

    @classmethod
    def from_bytes(cls, data: bytes, *, media_bytes: int) -> Superblock:
        """Read one copy from media of `media_bytes`; FormatError says what is wrong with it."""
        if data[: len(MAGIC)] != MAGIC:
            raise NotAPoolError("there is no engramdax superblock")
        if _CRC.unpack_from(data, _CRC_OFFSET)[0] != crc32c(data[:_CRC_OFFSET]):
            raise TornSuperblockError("the superblock's checksum is wrong")
        (
            _,
            version,
            own_bytes,
            compat,
            ro_compat,
            incompat,
            pool,
            device,
            index,
            count,
            size,
            raw_name,
            flags,
            _,
            created,
            *rest,
        ) = _HEAD.unpack_from(data)
        copies, copy_count, slots, (slot_bytes, unit, block) = rest[:3], rest[3], rest[4:6], rest[6:]
        if version != VERSION or own_bytes != SUPERBLOCK_BYTES or incompat:
            raise FormatError(
                f"the pool is of version {version} with incompatible features {incompat:#x}, "
                f"this engramdax knows version {VERSION} without any",
                remedy="use a newer engramdax",
            )
        name = raw_name.rstrip(b"\0").decode("ascii", "replace")
        if not POOL_NAME.fullmatch(name):
            raise FormatError(f"the superblock's pool name is impossible: {name!r}")
        if size > media_bytes:
            raise FormatError(
                f"the superblock says {size} bytes, the media has {media_bytes}",
                remedy="the file was truncated or the device shrank: restore its size, what is left is as it was",
            )
        if (index, count) != (0, 1):
            raise FormatError(f"this is device {index} of {count}; pools of several devices come later")
        if not 1 <= copy_count <= len(copies):
            raise FormatError(f"the superblock counts {copy_count} copies of itself")
        geometry = Geometry(tuple(copies[:copy_count]), (slots[0], slots[1]), slot_bytes, unit, block)
        geometry.check(size)
        return cls(
            UUID(bytes=pool),
            UUID(bytes=device),
            name,
            size,
            geometry,
            bool(flags & FLAG_SHARED),
            created,
            index,
            count,
            compat,
            ro_compat,
            incompat,
        )


def is_beginning(data: bytes, pool: UUID) -> bool:
    """Tell whether `data` begin as a superblock of this pool does, as far as they go.

    For files that were cut short or damaged: magic and uuid say whose they are, and nothing else is believed.
    """
    return all(
        data[at : at + len(part)] == part[: max(len(data) - at, 0)]
        for at, part in ((0, MAGIC), (_POOL_OFFSET, pool.bytes))
    )


def check_pool_name(name: str) -> str:
    """Give `name` back; ParameterError unless it can name a pool."""
    if not POOL_NAME.fullmatch(name) or name in (".", ".."):
        raise ParameterError(
            f"{name!r} cannot name a pool",
            remedy=f"use 1 to {MAX_POOL_NAME} letters, digits, dots, underscores and hyphens",
        )
    return name
