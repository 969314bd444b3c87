# SPDX-License-Identifier: Apache-2.0
"""The tombstone: one line at the place of a pool's first superblock, from its deprovisioning until somebody writes.

A pool's bytes stay behind it, and to whoever looks next they are like anybody's data. The tombstone says what they
were, so that who finds them unchanged knows that they are nobody's.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from crc32c import crc32c

from engramdax.errors import FormatError
from engramdax.format.geometry import LINE

MAGIC: Final = b"ENGRMEND"

# docs/format.md holds the same as a table; tests/format compares both.
_LINE: Final = struct.Struct("<8s16sQQI16xI")
_CHECKED: Final = LINE - 4
"""Bytes of the line that its checksum covers."""


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Of a pool of `size` bytes that ended `ended` seconds after 1970; `crc` is of what it left (docs/format.md)."""

    pool: UUID
    size: int
    ended: int
    crc: int

    def to_bytes(self) -> bytes:
        """Give the 64 bytes, checksum last."""
        checked = _LINE.pack(MAGIC, self.pool.bytes, self.size, self.ended, self.crc, 0)[:_CHECKED]
        return checked + crc32c(checked).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, line: bytes, *, media_bytes: int) -> Tombstone:
        """Read the line, from media that have `media_bytes` from there on; FormatError where it is none."""
        magic, pool, size, ended, crc, check = _LINE.unpack(line)
        if magic != MAGIC or check != crc32c(line[:_CHECKED]) or not LINE <= size <= media_bytes:
            raise FormatError("there is no tombstone of a pool")
        return cls(UUID(bytes=pool), size, ended, crc)
