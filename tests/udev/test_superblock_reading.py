# SPDX-License-Identifier: Apache-2.0
"""The helper believes the superblocks that the package believes, and no others."""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest
from compiled import ENVIRONMENT, UDEV
from crc32c import crc32c

from engramdax.errors import EngramdaxError
from engramdax.format.geometry import SUPERBLOCK_BYTES, Geometry, standard, superblock_places
from engramdax.format.superblock import Superblock

MIB = 1 << 20
SEED = 20_261_129
IMAGES = 6000
Image = tuple[int, bytes]

FIELDS = ((0, 8), (8, 4), (12, 4), (32, 8), (40, 16), (72, 4), (76, 4), (80, 8), (88, 64), (152, 4), (168, 24),
          (192, 4), (200, 16), (216, 8), (224, 8), (232, 8))  # fmt: skip
"""Offset and length of what a change can decide on."""


@pytest.fixture(scope="module")
def verdicts(build: Callable[..., Path]) -> Callable[[list[Image]], list[str]]:
    """Give a function that lets the helper's code read superblocks, under the sanitizers."""
    program = build("read_superblocks", Path(__file__).with_name("read_superblocks.c"), UDEV / "superblock.c")

    def read(images: list[Image]) -> list[str]:
        data = b"".join(struct.pack("<Q", size) + image for size, image in images)
        done = subprocess.run([program], input=data, capture_output=True, check=False, env=ENVIRONMENT)
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode().splitlines()

    return read


def expected(image: Image) -> str:
    size, data = image
    try:
        found = Superblock.from_bytes(data, media_bytes=size)
    except EngramdaxError:
        return "-"
    return f"{found.pool} {'' if found.name in ('.', '..') else found.name}"


def sealed(data: bytes) -> bytes:
    return data[:-4] + struct.pack("<I", crc32c(data[:-4]))


def superblock(name: str = "pool", size: int = 32 * MIB, geometry: Geometry | None = None) -> bytes:
    pool = UUID("00112233-4455-6677-8899-aabbccddeeff")
    return Superblock(pool, pool, name, size, geometry or standard(size), shared=True, created=1).to_bytes()


def changed(source: random.Random) -> Iterator[Image]:
    """Give superblocks with some of their fields changed, most with a right checksum."""
    interesting = [0, 1, 63, 64, 128, 4095, 4096, 2 * MIB, 4 * MIB, 8 * MIB, 32 * MIB, 1 << 31, 1 << 63, (1 << 64) - 1,
                   (1 << 64) - 64, (1 << 64) - 4096]  # fmt: skip
    while True:
        size = source.choice([16 * MIB, 32 * MIB, 100 * MIB + 4096, 2048 * MIB, 5 << 40])
        data = bytearray(superblock("".join(source.choices("abcXYZ019._-", k=source.randint(1, 64))), size))
        for _ in range(source.choice([0, 1, 1, 1, 2, 5])):
            offset, length = source.choice(FIELDS)
            if source.random() < 0.5 and length % 8 == 0:
                at = offset + 8 * source.randrange(length // 8)
                data[at : at + 8] = struct.pack(
                    "<Q", source.choice(interesting) + source.choice([0, 0, 64]) & (1 << 64) - 1
                )
            else:
                at = offset + source.randrange(length)
                data[at] = source.choice([0, 1, 3, 4, 46, 47, 65, 128, 255, source.randrange(256)])
        image = bytes(data) if source.random() < 0.1 else sealed(bytes(data))
        yield source.choice([size, size, size, size - 1, size + 4096, 0, (1 << 64) - 1]), image


def test_it_agrees_with_the_package_on_thousands_of_changed_superblocks(
    verdicts: Callable[[list[Image]], list[str]],
) -> None:
    source = random.Random(SEED)
    images = [image for image, _ in zip(changed(source), range(IMAGES), strict=False)]
    images += [(32 * MIB, source.randbytes(SUPERBLOCK_BYTES)) for _ in range(200)]
    images += [(32 * MIB, sealed(b"ENGRMDAX" + source.randbytes(SUPERBLOCK_BYTES - 8))) for _ in range(200)]
    wanted = [expected(image) for image in images]
    assert verdicts(images) == wanted, f"seed {SEED}"
    # The changes reach both answers, and deeper than the checksum.
    assert 500 < wanted.count("-") < IMAGES - 500


@pytest.mark.parametrize("name", [".", "..", "a", "-", "...", "x" * 64, "..a"])
def test_names_that_are_files_of_their_own_are_given(verdicts: Callable[[list[Image]], list[str]], name: str) -> None:
    (answer,) = verdicts([(32 * MIB, superblock(name))])
    assert answer == f"00112233-4455-6677-8899-aabbccddeeff {'' if name in ('.', '..') else name}"


@pytest.mark.parametrize(
    "raw", [b"", b"a/b", b"../x", b"a b", b"a\nB=c", b"a\0b", b"\0a", b"\xff", b"$x", b"%p", b"a=b"]
)
def test_names_that_would_be_more_than_a_name_make_no_pool(
    verdicts: Callable[[list[Image]], list[str]], raw: bytes
) -> None:
    data = bytearray(superblock())
    data[88:152] = raw.ljust(64, b"\0")
    image = (32 * MIB, sealed(bytes(data)))
    assert verdicts([image]) == [expected(image)] == ["-"]


def test_any_flipped_bit_is_noticed(verdicts: Callable[[list[Image]], list[str]]) -> None:
    good = superblock()
    images = []
    for bit in range(0, SUPERBLOCK_BYTES * 8, 7):
        data = bytearray(good)
        data[bit // 8] ^= 1 << bit % 8
        images.append((32 * MIB, bytes(data)))
    assert set(verdicts(images)) == {"-"}


def test_copies_are_looked_for_where_the_package_does(build: Callable[..., Path], tmp_path: Path) -> None:
    source = tmp_path / "places.c"
    source.write_text("""
#include "superblock.h"
#include <inttypes.h>
#include <stdio.h>
int main(void)
{
    uint64_t size, places[MAX_COPIES];
    while (scanf("%" SCNu64, &size) == 1) {
        const int count = superblock_places(size, places);
        for (int i = 0; i < count; i++)
            printf("%" PRIu64 " ", places[i]);
        puts("");
    }
    return 0;
}
""")
    program = build("places", source, UDEV / "superblock.c")
    sizes = [0, 4096, 16 * MIB - 1, 16 * MIB, 33 * MIB, 2048 * MIB - 1, 2048 * MIB, 2049 * MIB + 4096, (3 << 40) + MIB]
    done = subprocess.run(
        [program], input="\n".join(map(str, sizes)), capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert found == [superblock_places(size) for size in sizes]
