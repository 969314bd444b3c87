# SPDX-License-Identifier: Apache-2.0
"""Pools whose metadata were tampered with."""

from __future__ import annotations

import json
import mmap
import random
import struct

from crc32c import crc32c
from mutants import changed_bytes, changed_value, dumped, flip

from engramdax.format.directory import Header
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES
from engramdax.format.superblock import Superblock


def spoil(data: bytearray | mmap.mmap, superblock: Superblock, chance: random.Random) -> bool:
    """Change metadata of the pool that `data` holds, which are whole; tell whether their checksums are right again."""
    geometry = superblock.geometry
    right = chance.random() < 2 / 3
    places = geometry.slots if chance.random() < 0.7 else (chance.choice(geometry.slots),)
    kind = chance.random()
    if kind < 0.35:
        for place in geometry.superblocks if chance.random() < 0.7 else (0,):
            flip(data, place + 8, 240, chance)
            if right:
                body = bytes(data[place : place + SUPERBLOCK_BYTES - 4])
                struct.pack_into("<I", data, place + SUPERBLOCK_BYTES - 4, crc32c(body))
    elif kind < 0.5:
        for place in places:
            flip(data, place, LINE, chance)
            if right:
                struct.pack_into("<I", data, place + 60, crc32c(bytes(data[place : place + 60])))
    elif kind < 0.6:
        for place in places:
            claim = place + geometry.slot_bytes - LINE
            flip(data, claim, LINE, chance)
            if right:
                struct.pack_into("<I", data, claim + 60, crc32c(bytes(data[claim : claim + 60])))
    else:
        header = Header.from_bytes(data[places[0] : places[0] + LINE], pool=superblock.pool)
        text = bytes(data[places[0] + LINE : places[0] + LINE + header.payload_bytes])
        if chance.random() < 0.25:
            payload = changed_bytes(text, chance)
        else:
            value = json.loads(text)
            for _ in range(chance.randint(1, 3)):
                value = changed_value(value, chance)
            payload = dumped(value, chance)
        payload = payload[: geometry.slot_bytes - 2 * LINE]
        line = header._replace(payload_bytes=len(payload), payload_crc=crc32c(payload) if right else 0)
        for place in places:
            data[place : place + LINE] = line.to_bytes(superblock.pool)
            data[place + LINE : place + LINE + len(payload)] = payload
    return right
