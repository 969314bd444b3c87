# SPDX-License-Identifier: Apache-2.0
"""Superblock and directory on the media: reading what is there, writing it in the order of rule P2."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from engramdax.errors import FormatError, NotAPoolError
from engramdax.format.directory import Directory, from_slot, payload_bytes
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, SUPERBLOCK_PLACES
from engramdax.format.superblock import Superblock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.media import Media

T = TypeVar("T")

RETRY_SECONDS: Final = 5.0
"""How long a reader waits for a directory to become whole (P3)."""

SETTLE_SECONDS: Final = 0.2
"""How long one bad slot may be a publication that is under way; it takes a few lines and two fences."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """Something read in several copies, and what was wrong with the bad ones."""

    value: T
    problems: tuple[str, ...]


def read_superblock(media: Media, places: Sequence[int] = SUPERBLOCK_PLACES) -> Found[Superblock]:
    """Read the first good copy; NotAPoolError where there is none at all, FormatError where all are bad."""
    good: Superblock | None = None
    errors: dict[int, FormatError] = {}
    for place in places:
        if place + SUPERBLOCK_BYTES > media.size or (good and place not in good.geometry.superblocks):
            continue
        media.invalidate(place, SUPERBLOCK_BYTES)
        try:
            copy = Superblock.from_bytes(media.load(place, SUPERBLOCK_BYTES), media_bytes=media.size)
        except FormatError as e:
            errors[place] = e
            continue
        if good is None:
            good = copy
        elif copy != good:
            errors[place] = FormatError("the superblock differs from the first good one")
    if good is not None:
        own = {place: e for place, e in errors.items() if place in good.geometry.superblocks}
        return Found(good, tuple(f"superblock copy at {place}: {e}" for place, e in own.items()))
    damaged = {place: e for place, e in errors.items() if not isinstance(e, NotAPoolError)}
    if damaged:
        # The first copy speaks for all: they are identical when written.
        first = next(iter(damaged.values()))
        raise type(first)(f"no usable superblock: {first.problem}", remedy=first.remedy)
    raise NotAPoolError("there is no pool here", remedy="`engramdax provision` makes one")


def write_superblock(media: Media, superblock: Superblock) -> None:
    """Write all copies, the first one last: while it is missing nothing is a pool."""
    data = superblock.to_bytes()
    for place in reversed(superblock.geometry.superblocks):
        media.store(place, data)
        media.fence()


def void_superblocks(media: Media, superblock: Superblock) -> None:
    """Make this a pool no more, the first copy first."""
    for place in superblock.geometry.superblocks:
        media.store(place, bytes(SUPERBLOCK_BYTES))
        media.fence()


def void_slots(media: Media, superblock: Superblock) -> None:
    """Leave no valid directory of any pool behind."""
    for place in superblock.geometry.slots:
        media.store(place, bytes(LINE))
        media.fence()


def read_slot(media: Media, superblock: Superblock, index: int) -> Directory:
    """Read one slot past all caches; FormatError where it is not whole."""
    g = superblock.geometry
    place = g.slots[index]
    media.invalidate(place, LINE)
    header = media.load(place, LINE)
    length = payload_bytes(header, pool=superblock.pool, slot_bytes=g.slot_bytes)
    media.invalidate(place + LINE, length)
    payload = media.load(place + LINE, length)
    return from_slot(header, payload, size=superblock.size, geometry=g)


def read_directory(media: Media, superblock: Superblock, *, patient: bool = True) -> Found[Directory]:
    """Read the current directory.

    A publication under way makes one slot bad for a moment, and both for a reader that was slow: with
    `patient` they are read again, for a moment and for up to 5 s, before anything is called damaged.
    """
    started = time.monotonic()
    while True:
        slots: list[Directory] = []
        problems: list[str] = []
        for index in (0, 1):
            try:
                slots.append(read_slot(media, superblock, index))
            except FormatError as e:
                problems.append(f"directory slot {index}: {e}")
        waited = time.monotonic() - started
        limit = (SETTLE_SECONDS if slots else RETRY_SECONDS) if patient and problems else 0.0
        if waited >= limit:
            break
        time.sleep(0.01)
    if not slots:
        raise FormatError(
            f"no usable directory: {'; '.join(problems)}",
            remedy="the pool's tables are lost unless a slot is restored; provision it anew",
        )
    return Found(max(slots, key=lambda d: d.age), tuple(problems))


def publish(media: Media, superblock: Superblock, directory: Directory) -> None:
    """Write the directory to slot 0 and then to slot 1, each payload first and its header line last."""
    g = superblock.geometry
    header, payload = directory.to_slot(g.slot_bytes)
    for place in g.slots:
        media.store(place + LINE, payload)
        media.fence()
        media.store(place, header)
        media.fence()
