# SPDX-License-Identifier: Apache-2.0
"""Mutated metadata open right, or fail with a FormatError: no other error, no crash, no hang, no access outside the
device. In two thirds of the images the checksums are made right again.
"""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any
from uuid import UUID

from spoilt_metadata import spoil
from survival import IMAGES, report, survive

from engramdax._core import ffi
from engramdax.errors import FormatError, SpaceError
from engramdax.format.directory import Claim, Directory, Host, HotList, Retired, TableEntry
from engramdax.format.geometry import LINE, Extent, Geometry
from engramdax.format.layout import V41_ROW, RowLayout
from engramdax.format.superblock import Superblock
from engramdax.media import MappedMedia
from engramdax.pool.space import free_extents
from engramdax.pool.volume import newest, publish, read_directory, read_superblock, repair_superblocks

GEOMETRY = Geometry((0, 4096), (8192, 16384), slot_bytes=8192, unit=1024, block=256)
SIZE = 48 << 10
POOL = UUID(int=5)
OWNER = Host(UUID(int=7), "alpha")
GUARD = 64 << 20
"""Address space in front of the device and behind it that nobody may touch."""


class Device:
    """A mapping of as many bytes as an image has, whose end is the last before memory that nobody may touch.

    As of a file the last page is whole, with zeros behind the end; that nobody asks for those is checked as well.
    """

    path = "the image"
    writable = True

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, GUARD + SIZE + GUARD, flags=mmap.MAP_PRIVATE)
        begin = int(ffi.cast("uintptr_t", ffi.from_buffer(self._memory)))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for address in (begin, begin + GUARD + SIZE):
            assert protect(address, GUARD, 0) == 0
        self._begin = begin
        self.address = self.length = 0

    def hold(self, content: bytes) -> None:
        """Become the device of an image."""
        self.length = len(content)
        pages = -(-len(content) // mmap.PAGESIZE) * mmap.PAGESIZE
        at = GUARD + SIZE - pages
        self._memory[at : at + pages] = content.ljust(pages, b"\0")
        self.address = self._begin + at

    def content(self) -> bytes:
        """Give what it holds."""
        at = self.address - self._begin
        return self._memory[at : at + self.length]

    def check(self, offset: int, length: int) -> None:
        """Fail, where a Mapping would refuse."""
        assert 0 <= offset <= offset + length <= self.length, f"{length} bytes at {offset} of {self.length}"


@cache
def device() -> Device:
    return Device()


def table(name: str, at: int, **changes: Any) -> TableEntry:
    values: dict[str, Any] = {
        "name": name,
        "load": UUID(int=at),
        "state": "published",
        "rows": 4,
        "layout": V41_ROW if name == "a" else RowLayout.packed(("row", "uint8", 64)),
        "extent": Extent(at, 2048),
        "checksums": Extent(at + 2048, 1024),
        "checksums_crc": 9,
        "heads": (1, 3),
        "source": {"kind": "npy", "files": [{"path": "x"}]},
    }
    return TableEntry(**{**values, **changes})


@cache
def whole() -> tuple[bytes, Superblock, Directory]:
    """Give an image with everything in it that metadata can hold, and what stands in it."""
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
    image = bytearray(SIZE)
    header, payload = directory.to_slot(GEOMETRY.slot_bytes)
    parts = [(place, superblock.to_bytes()) for place in GEOMETRY.superblocks]
    for place in GEOMETRY.slots:
        parts.append((place, header + payload))
        parts.append((place + GEOMETRY.slot_bytes - LINE, Claim(3, UUID(int=8)).to_bytes(POOL)))
    for place, data in parts:
        image[place : place + len(data)] = data
    return bytes(image), superblock, directory


@dataclass(frozen=True)
class Mutant:
    """A mutated image."""

    content: bytes
    right: bool
    """Its checksums are right."""
    written: bool
    """A writer is to open it, too, which takes as long as several readers."""


def mutant(image: bytes, chance: random.Random) -> Mutant:
    data = bytearray(image)
    right = spoil(data, whole()[1], chance)
    if chance.random() < 0.05:
        del data[chance.randrange(len(data)) :]
    return Mutant(bytes(data), right, written=chance.random() < 1 / 8)


def opened(image: Mutant) -> str:
    """Open an image as a reader and a writer would; give what came of it."""
    says = "right checksums" if image.right else "wrong ones"
    memory = device()
    memory.hold(image.content)
    media = MappedMedia(memory)  # type: ignore[arg-type]
    try:
        superblock = read_superblock(media, GEOMETRY.superblocks).value
        directory = read_directory(media, superblock, patient=False).value
    except FormatError:
        return f"refused with {says}"
    newest(media, superblock)
    if not image.right:
        # A good copy was found, or the change hit none: what is believed is what was written.
        assert (superblock, directory) == whole()[1:]
    examine_space(superblock, directory)
    if image.written:
        try:
            write_again(media, superblock, directory)
        except SpaceError:
            assert directory != whole()[2]  # one that is longer in the form in which it is written
        assert without_metadata(memory.content(), superblock) == without_metadata(image.content, superblock)
    return f"opened with {says}"


def without_metadata(content: bytes, superblock: Superblock) -> bytes:
    """Give all that is for tables."""
    rest = bytearray(content)
    for extent in superblock.geometry.metadata():
        rest[extent.offset : extent.end] = bytes(extent.length)
    return bytes(rest)


def examine_space(superblock: Superblock, directory: Directory) -> None:
    """Check that what was believed lies apart and inside, by rules of its own, and that it can be used."""
    taken = sorted([*directory.taken(), *superblock.geometry.metadata()])
    free = free_extents(superblock.geometry, superblock.size, directory.taken())
    for before, after in pairwise(sorted([*taken, *free])):
        assert before.offset + before.length <= after.offset
    assert taken[-1].end <= superblock.size <= device().length
    assert all(extent.offset >= 0 and extent.length > 0 for extent in taken)
    unit = superblock.geometry.unit
    assert not any(extent.offset % unit or extent.length % unit for extent in directory.taken())
    for entry in directory.tables:
        assert entry.rows * entry.layout.row_bytes <= entry.extent.length
        assert entry.hot is None or entry.hot.rows * entry.hot.id_bytes <= entry.hot.extent.length
        first, last = entry.layout.rows_within(max(entry.rows, 1), 0, 64)
        assert first <= last


def write_again(media: MappedMedia, superblock: Superblock, directory: Directory) -> None:
    """Do what a writer does, and read what it wrote."""
    repair_superblocks(media, superblock)
    publish(media, superblock, directory)
    again = read_superblock(media, superblock.geometry.superblocks)
    assert (again.value, again.problems) == (superblock, ())
    found = read_directory(media, superblock, patient=False)
    assert (found.value, found.problems) == (directory, ())


def test_mutated_metadata_open_right_or_are_refused(figure: Callable[[str], None]) -> None:
    image = whole()[0]
    assert opened(Mutant(image, right=False, written=True)) == "opened with wrong ones"
    outcomes = survive(IMAGES, lambda chance: mutant(image, chance), opened)
    right = sum(count for outcome, count in outcomes.items() if "right" in outcome)
    report(figure, "metadata images", IMAGES, {**outcomes, "in all with right checksums": right})
    if IMAGES >= 1000:
        assert right * 2 > IMAGES
        assert len(outcomes) == 4
