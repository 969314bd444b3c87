# SPDX-License-Identifier: Apache-2.0
"""Pools whose metadata were tampered with."""

from __future__ import annotations

import json
import mmap
import random
import struct

from crc32c import crc32c
from mutants import NUMBERS, changed_json, flip

from engramdax.format.directory import Header
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, Geometry
from engramdax.format.superblock import Superblock


def with_other_space(text: bytes, geometry: Geometry, chance: random.Random) -> bytes:
    """Let a directory's tables take other space than theirs, in units, or have more rows than fit it."""
    value = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        table = chance.choice([*value["tables"], *value["retired"]])
        if "rows" in table and chance.random() < 0.3:
            table["rows"] = chance.choice((0, 1, table["rows"] + 1, table["rows"] * 2, 1 << 40, 1 << 62))
            table["heads"] = None
            if table["hot"]:
                table["hot"]["rows"] *= chance.choice((0, 1, 100, 1 << 40))
            continue
        extents = [table[name] for name in ("extent", "checksums") if name in table] + table.get("extents", [])
        if table.get("hot"):
            extents.append(table["hot"]["extent"])
        extent, which = chance.choice(extents), chance.randrange(2)
        units = chance.choice((-4, -1, 1, 2, 16))
        extent[which] += units * geometry.unit
        if chance.random() < 0.2:
            extent[which] = chance.choice(NUMBERS) // geometry.unit * geometry.unit
    return json.dumps(value).encode()


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
        payload = with_other_space(text, geometry, chance) if chance.random() < 0.3 else changed_json(text, chance)
        payload = payload[: geometry.slot_bytes - 2 * LINE]
        line = header._replace(payload_bytes=len(payload), payload_crc=crc32c(payload) if right else 0)
        for place in places:
            data[place : place + LINE] = line.to_bytes(superblock.pool)
            data[place + LINE : place + LINE + len(payload)] = payload
    return right
