# SPDX-License-Identifier: Apache-2.0
"""Superblock and directory on the media: reading what is there, writing it so that no crash shows half of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from engramdax.errors import FormatError, NotAPoolError
from engramdax.format.directory import Directory, from_slot, payload_bytes
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, superblock_places
from engramdax.format.superblock import Superblock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.media import Media

T = TypeVar("T")

RETRY_SECONDS: Final = 5.0
"""How long a reader waits for a directory to become whole: a writer may be between the two slots."""

SETTLE_SECONDS: Final = 0.2
"""How long one bad slot may be a publication that is under way; it takes a few lines and two fences."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """Something read in several copies, and what was wrong with the bad ones."""

    value: T
    problems: tuple[str, ...]


def read_superblock(media: Media, places: Sequence[int] | None = None) -> Found[Superblock]:
    """Read the first good copy; NotAPoolError where there is none at all, FormatError where all are bad.

    `places` is where to look, by default where a pool of the standard geometry has them.
    """
    good: Superblock | None = None
    errors: dict[int, FormatError] = {}
    for place in superblock_places(media.size) if places is None else places:
        copy = _read_copy(media, place)
        if isinstance(copy, Superblock):
            good = copy
            break
        errors[place] = copy
    if good is None:
        damaged = [e for e in errors.values() if not isinstance(e, NotAPoolError)]
        if not damaged:
            raise NotAPoolError("there is no pool here", remedy="`engramdax provision` makes one")
        # The first copy speaks for all: they are identical when written.
        raise type(damaged[0])(
            f"no usable superblock: {damaged[0].problem}",
            remedy=damaged[0].remedy or "the pool's tables are lost unless a copy is restored; provision it anew",
        )
    problems = []
    for place in good.geometry.superblocks:
        copy = errors.get(place) or _read_copy(media, place)
        if copy != good:
            what = copy if isinstance(copy, FormatError) else "it is another pool's"
            problems.append(f"superblock copy at {place}: {what}")
    return Found(good, tuple(problems))


def _read_copy(media: Media, place: int) -> Superblock | FormatError:
    if place + SUPERBLOCK_BYTES > media.size:
        return NotAPoolError("it would lie behind the end")
    media.invalidate(place, SUPERBLOCK_BYTES)
    try:
        return Superblock.from_bytes(media.load(place, SUPERBLOCK_BYTES), media_bytes=media.size)
    except FormatError as e:
        # Its traceback would hold the frames, and they the mapping, until the garbage collector comes by.
        return e.with_traceback(None)


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
    """Write the directory to slot 0 and then to slot 1, each payload first and its header line last.

    Where slot 0 alone holds the current directory, after a writer that died or a bad line, slot 1 comes
    first: at no moment is the current directory in no slot.
    """
    g = superblock.geometry
    header, payload = directory.to_slot(g.slot_bytes)
    ages = [_slot_age(media, superblock, index) for index in (0, 1)]
    for place in g.slots if ages[0] <= ages[1] else reversed(g.slots):
        media.store(place + LINE, payload)
        media.fence()
        media.store(place, header)
        media.fence()


def _slot_age(media: Media, superblock: Superblock, index: int) -> tuple[int, int]:
    try:
        return read_slot(media, superblock, index).age
    except FormatError:
        return -1, -1
