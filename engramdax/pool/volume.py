# SPDX-License-Identifier: Apache-2.0
"""Superblock and directory on the media: reading what is there, writing it so that no crash shows half of it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from engramdax.errors import FormatError, NotAPoolError, UnreadableError
from engramdax.format.directory import Claim, Directory, Header, from_slot, payload_bytes
from engramdax.format.geometry import LINE, SUPERBLOCK_BYTES, superblock_places
from engramdax.format.superblock import Superblock, TornSuperblockError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engramdax.media import Media

T = TypeVar("T")


class Clock(Protocol):
    """What waiting needs; the module `time` is the real one."""

    def monotonic(self) -> float:
        """Seconds since some moment."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


RETRY_SECONDS: Final = 5.0
"""How long a reader waits for a directory to become whole: a writer may be between the two slots."""

RETRY_PAUSE: Final = 0.01

SETTLE_SECONDS: Final = 0.2
"""How long one bad slot may be a publication that is under way; it takes a few lines and two fences."""


@dataclass(frozen=True, slots=True)
class Found(Generic[T]):
    """Something read in several copies, and what was wrong with the bad ones."""

    value: T
    problems: tuple[str, ...]


def read_superblock(
    media: Media, places: Sequence[int] | None = None, *, patient: bool = False, clock: Clock = time
) -> Found[Superblock]:
    """Read the first good copy; NotAPoolError where there is none at all, FormatError where all are bad.

    `places` is where to look, by default where a pool of the standard geometry has them. With `patient`, copies whose
    checksums are wrong are read again for up to 5 s before it is believed.
    """
    started = clock.monotonic()
    while True:
        try:
            return _read_superblock(media, places)
        except TornSuperblockError:
            if not patient or clock.monotonic() - started >= RETRY_SECONDS:
                raise
        clock.sleep(RETRY_PAUSE)


def _read_superblock(media: Media, places: Sequence[int] | None) -> Found[Superblock]:
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


def repair_superblocks(media: Media, superblock: Superblock) -> None:
    """Write the copies again that are not as the one that was found good."""
    data = superblock.to_bytes()
    for place in superblock.geometry.superblocks:
        if _read_copy(media, place) != superblock:
            media.store(place, data)
            media.fence()


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


def read_header(media: Media, superblock: Superblock, index: int) -> Header | None:
    """Read one header line past all caches; None where it is no header of this pool."""
    place = superblock.geometry.slots[index]
    media.invalidate(place, LINE)
    try:
        return Header.from_bytes(media.load(place, LINE), pool=superblock.pool)
    except FormatError:
        return None


def may_have_lost(media: Media, superblock: Superblock, current: Directory) -> bool:
    """Tell whether a bad slot may have held a directory above the current one, which a reader saw.

    A header line is written last: one that is no newer than the current directory's never made a newer one visible.
    """
    for index in (0, 1):
        if _slot_age(media, superblock, index) == _NO_AGE:
            header = read_header(media, superblock, index)
            if header is None or header.age > current.age:
                return True
    return False


def last_generation(media: Media, superblock: Superblock, current: Directory) -> int:
    """Give the highest generation that either header line names, or the current directory."""
    headers = [header for index in (0, 1) if (header := read_header(media, superblock, index)) is not None]
    return max([current.generation, *(header.generation for header in headers)])


def newest(media: Media, superblock: Superblock) -> Header | Claim | None:
    """Give the highest header or claim line, whether or not its slot is whole.

    Four lines tell a writer whether it still is the owner: they are read before each step of a publication.
    """
    headers = [header for index in (0, 1) if (header := read_header(media, superblock, index)) is not None]
    claims = [claim for claim in read_claims(media, superblock) if claim is not None]
    best: Header | Claim | None = max(headers, key=lambda header: header.age, default=None)
    for claim in claims:
        if best is None or claim.reign > best.reign:
            best = claim
    return best


def slots_agree(media: Media, superblock: Superblock, directory: Directory) -> bool:
    """Tell whether both slots hold this directory, byte for byte."""
    header, payload = directory.to_slot(superblock.geometry.slot_bytes)
    length = len(header) + len(payload)
    for place in superblock.geometry.slots:
        media.invalidate(place, length)
        try:
            if media.load(place, length) != header + payload:
                return False
        except UnreadableError:
            return False
    return True


def read_directory(
    media: Media, superblock: Superblock, *, patient: bool = True, clock: Clock = time
) -> Found[Directory]:
    """Read the current directory.

    A publication under way makes one slot bad for a moment, and both for a reader that was slow: with
    `patient` they are read again, for a moment and for up to 5 s, before anything is called damaged. A slot that is
    good counts beside a bad one only when it is found the same after the bad one was seen: a reader that stood still
    between the two may hold of slot 0 what is two publications old.
    """
    started = clock.monotonic()
    ages: list[tuple[int, int, int]] | None = None
    while True:
        before = ages
        slots: list[Directory] = []
        problems: list[str] = []
        for index in (0, 1):
            try:
                slots.append(read_slot(media, superblock, index))
            except FormatError as e:
                problems.append(f"directory slot {index}: {e}")
        waited = clock.monotonic() - started
        if not patient or not problems:
            break
        ages = [slot.age for slot in slots]
        if waited >= (SETTLE_SECONDS if slots else RETRY_SECONDS) and ages == before:
            break
        clock.sleep(RETRY_PAUSE)
    if not slots:
        raise FormatError(
            f"no usable directory: {'; '.join(problems)}",
            remedy="the pool's tables are lost unless a slot is restored; provision it anew",
        )
    return Found(max(slots, key=lambda d: d.age), tuple(problems))


def publish(
    media: Media, superblock: Superblock, directory: Directory, *, check: Callable[[], None] = lambda: None
) -> None:
    """Write the directory to slot 0 and then to slot 1, each payload first and its header line last.

    Where slot 0 alone holds the current directory, after a writer that died or a bad line, slot 1 comes
    first: at no moment is the current directory in no slot.

    `check` raises when this host is the owner no more. It is asked in front of each of the four steps, so that of a
    writer that was deposed at most one step lands afterwards, which spoils at most one slot.
    """
    g = superblock.geometry
    header, payload = directory.to_slot(g.slot_bytes)
    ages = [_slot_age(media, superblock, index) for index in (0, 1)]
    for place in g.slots if ages[0] <= ages[1] else reversed(g.slots):
        check()
        media.store(place + LINE, payload)
        media.fence()
        check()
        media.store(place, header)
        media.fence()


def write_claim(media: Media, superblock: Superblock, claim: Claim, *, check: Callable[[], None]) -> None:
    """Write a claim line into both slots; `check` raises when a higher one is there."""
    for place in _claim_places(superblock):
        check()
        media.store(place, claim.to_bytes(superblock.pool))
        media.fence()


def read_claims(media: Media, superblock: Superblock) -> list[Claim | None]:
    """Read both claim lines past all caches."""
    claims: list[Claim | None] = []
    for place in _claim_places(superblock):
        media.invalidate(place, LINE)
        try:
            claims.append(Claim.from_bytes(media.load(place, LINE), pool=superblock.pool))
        except UnreadableError:
            claims.append(None)
    return claims


def _claim_places(superblock: Superblock) -> list[int]:
    g = superblock.geometry
    return [place + g.slot_bytes - LINE for place in g.slots]


_NO_AGE: Final = (-1, -1, -1)


def _slot_age(media: Media, superblock: Superblock, index: int) -> tuple[int, int, int]:
    try:
        return read_slot(media, superblock, index).age
    except FormatError:
        return _NO_AGE
