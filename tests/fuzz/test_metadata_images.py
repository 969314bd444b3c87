# SPDX-License-Identifier: Apache-2.0
"""Mutated metadata open right, or fail with a FormatError: no other error, no hang, no access outside the device.

ENGRAMDAX_FUZZ sets how many images (20,000 if unset; `make fuzz` takes a million), ENGRAMDAX_SEED the first one's seed
(another choice each time if unset). In two thirds of the images the checksums are made right again.
"""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections import Counter
from typing import Any
from uuid import UUID

import pytest
from crc32c import crc32c

from engramdax.errors import FormatError
from engramdax.format.directory import Claim, Directory, Header, Host, HotList, Retired, TableEntry
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, Extent, Geometry
from engramdax.format.layout import V41_ROW, RowLayout
from engramdax.format.superblock import Superblock
from engramdax.pool.space import free_extents
from engramdax.pool.volume import newest, read_directory, read_superblock

IMAGES = int(os.environ.get("ENGRAMDAX_FUZZ", "20000"))
SEED = int(os.environ.get("ENGRAMDAX_SEED") or random.SystemRandom().randrange(1 << 40))

GEOMETRY = Geometry((0, 4096), (8192, 16384), slot_bytes=8192, unit=1024, block=256)
SIZE = 48 << 10
POOL = UUID(int=5)
OWNER = Host(UUID(int=7), "alpha")
NUMBERS = (
    0,
    1,
    2,
    63,
    64,
    255,
    256,
    1024,
    SIZE,
    SIZE + 1,
    (1 << 31) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
JUNK: tuple[Any, ...] = (None, True, -1, 1.5, 1e308, "", "x" * 300, "../..", [], [1], {}, {"a": 1}, "\ud800", *NUMBERS)


class Image:
    """Media in this process that nobody may leave."""

    def __init__(self, content: bytes) -> None:
        self.content = bytearray(content)

    @property
    def size(self) -> int:
        return len(self.content)

    def load(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size
        return bytes(self.content[offset : offset + length])

    def invalidate(self, offset: int, length: int) -> None:
        assert 0 <= offset <= offset + length <= self.size

    def store(self, offset: int, data: bytes) -> None:
        self.content[offset : offset + len(data)] = data

    def fence(self) -> None:
        pass


def table(name: str, at: int, **changes: Any) -> TableEntry:
    values: dict[str, Any] = {
        "name": name,
        "load": UUID(int=at),
        "state": "published",
        "rows": 4,
        "layout": V41_ROW if at % 2048 else RowLayout.packed(("row", "uint8", 64)),
        "extent": Extent(at, 2048),
        "checksums": Extent(at + 2048, 1024),
        "checksums_crc": 9,
        "heads": (1, 3),
        "source": {"kind": "npy", "files": [{"path": "x"}]},
    }
    return TableEntry(**{**values, **changes})


def whole() -> tuple[bytes, Superblock]:
    """Give an image with everything in it that metadata can hold."""
    superblock = Superblock(POOL, UUID(int=6), "pool", SIZE, GEOMETRY, shared=True, created=1)
    hot = HotList(Extent(24576 + 3072, 1024), 3, 4, 1, ((3, 0.5),))
    directory = Directory(
        POOL,
        9,
        2,
        OWNER.id,
        (OWNER, Host(UUID(int=8), "beta")),
        (table("a", 24576, hot=hot, addressing={"layer_id": 1}), table("b", 24576 + 4096, state="loading")),
        (Retired("c", UUID(int=1), 8, (Extent(24576 + 8192, 1024),)),),
        released=True,
        heir=UUID(int=8),
    )
    image = Image(bytes(SIZE))
    for place in GEOMETRY.superblocks:
        image.store(place, superblock.to_bytes())
    header, payload = directory.to_slot(GEOMETRY.slot_bytes)
    for place in GEOMETRY.slots:
        image.store(place, header + payload)
        image.store(place + GEOMETRY.slot_bytes - LINE, Claim(3, UUID(int=8)).to_bytes(POOL))
    return bytes(image.content), superblock


def flip(data: bytearray, first: int, length: int, chance: random.Random) -> None:
    """Change a few bytes, or put a telling number somewhere."""
    for _ in range(chance.randint(1, 4)):
        at = first + chance.randrange(length)
        if chance.random() < 0.5:
            data[at] ^= 1 << chance.randrange(8)
        else:
            piece = (chance.choice(NUMBERS) & ((1 << 64) - 1)).to_bytes(8, "little")[: max(0, first + length - at)]
            data[at : at + len(piece)] = piece


def mutate_value(value: Any, chance: random.Random) -> Any:
    """Change, drop or double a part of a JSON value."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            del value[key]
        elif kind < 0.15:
            value["unknown"] = copy.deepcopy(value[key])
        else:
            value[key] = mutate_value(value[key], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        if chance.random() < 0.15:
            value.append(copy.deepcopy(value[index]))
        else:
            value[index] = mutate_value(value[index], chance)
        return value
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice((-1024, -1, 1, 64, 1024))
    return copy.deepcopy(chance.choice(JUNK))


def mutant(image: bytes, chance: random.Random) -> tuple[bytes, bool]:
    """Give a mutated image, and whether its checksums are right."""
    data = bytearray(image)
    right = chance.random() < 2 / 3
    places = GEOMETRY.slots if chance.random() < 0.7 else (chance.choice(GEOMETRY.slots),)
    kind = chance.random()
    if kind < 0.35:
        for place in GEOMETRY.superblocks if chance.random() < 0.7 else (0,):
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
            claim = place + GEOMETRY.slot_bytes - LINE
            flip(data, claim, LINE, chance)
            if right:
                struct.pack_into("<I", data, claim + 60, crc32c(bytes(data[claim : claim + 60])))
    else:
        header = Header.from_bytes(image[places[0] : places[0] + LINE], pool=POOL)
        text = image[places[0] + LINE : places[0] + LINE + header.payload_bytes]
        if chance.random() < 0.25:
            mutated = bytearray(text)
            flip(mutated, 0, len(mutated), chance)
            payload = bytes(mutated)
        else:
            value = json.loads(text)
            for _ in range(chance.randint(1, 3)):
                value = mutate_value(value, chance)
            payload = json.dumps(value, separators=(",", ":")).encode()
        payload = payload[: GEOMETRY.slot_bytes - 2 * LINE]
        line = header._replace(payload_bytes=len(payload), payload_crc=crc32c(payload) if right else 0)
        for place in places:
            data[place : place + LINE] = line.to_bytes(POOL)
            data[place + LINE : place + LINE + len(payload)] = payload
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return bytes(data), right


def opened(image: bytes) -> str:
    """Open an image as a reader and a writer would; give what came of it."""
    media = Image(image)
    try:
        superblock = read_superblock(media, GEOMETRY.superblocks).value
        directory = read_directory(media, superblock, patient=False).value
    except FormatError:
        return "refused"
    newest(media, superblock)
    # What was believed can be used, and written again.
    free_extents(superblock.geometry, superblock.size, directory.taken())
    assert all(extent.end <= superblock.size <= media.size for extent in directory.taken())
    for entry in directory.tables:
        assert entry.bytes <= entry.extent.length
        first, last = entry.layout.rows_within(max(entry.rows, 1), 0, 64)
        assert first <= last
    directory.to_slot(1 << 20)
    return "opened"


@pytest.mark.unsanitized
@pytest.mark.timeout(120 + IMAGES // 500)
def test_mutated_metadata_open_right_or_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    image, _ = whole()
    assert opened(image) == "opened"
    outcomes: Counter[str] = Counter()
    for number in range(IMAGES):
        chance = random.Random(SEED + number)
        mutated, right = mutant(image, chance)
        outcomes["with right checksums"] += right
        try:
            outcomes[opened(mutated)] += 1
        except Exception as e:
            raise AssertionError(f"image of seed {SEED + number}: {e!r}") from e
    with capsys.disabled():
        print(f"\n{IMAGES} images, seed {SEED}: {dict(outcomes)}")
    assert outcomes["with right checksums"] * 2 > IMAGES
    assert outcomes["opened"]
    assert outcomes["refused"]
