# SPDX-License-Identifier: Apache-2.0
"""Who may write a pool that hosts share, and how that changes hands.

CXL 2.0 memory has no operation that is atomic between hosts. So a host that wants to own a pool first writes a claim,
into a line that no publication touches: whoever owns the pool sees it before its next step and stops. It becomes the
owner, and writes anything else, only when it is proven that nobody else writes: the owner released the pool, or every
other admitted host has answered that no writer lives there, or an operator vouches for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engramdax.errors import FormatError, ParameterError, RefusedError
from engramdax.format.directory import MAX_EPOCH, Claim
from engramdax.pool.proof import ask_all, other_hosts
from engramdax.pool.reader import check_admitted
from engramdax.pool.volume import (
    last_generation,
    may_have_lost,
    newest,
    publish,
    read_claims,
    read_directory,
    read_superblock,
    slots_agree,
    write_claim,
)

if TYPE_CHECKING:
    from uuid import UUID

    from engramdax.format.directory import Directory, Host
    from engramdax.format.superblock import Superblock
    from engramdax.media import Media
    from engramdax.pool.access import Access
    from engramdax.pool.writer import Writer

SETTLE_SECONDS: Final = 1.0
"""How long a claim to a pool that was released to nobody stands before it counts: two hosts may claim it at once."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Who owns a pool, as this host sees it."""

    directory: Directory
    claim: Claim | None
    """A claim above the owner, which is not proven yet."""
    host: UUID
    """This host."""

    @property
    def is_owner(self) -> bool:
        """Tell whether this host may write."""
        return self.directory.owner == self.host and self.claim is None and not self.directory.released


@dataclass(frozen=True, slots=True)
class TakeOver:
    """What became of a take-over."""

    before: Standing
    proven: bool
    """Whether this host owns the pool now; if not, its claim stands and keeps the owner from writing."""
    silent: tuple[Host, ...]
    """Hosts that did not answer."""
    writing: tuple[Host, ...]
    """Hosts on which a writer lives."""


def is_released(media: Media, superblock: Superblock, directory: Directory) -> bool:
    """Tell whether the last owner has made its last store: both slots say that it gave the pool up."""
    return directory.released and slots_agree(media, superblock, directory)


def standing(access: Access, superblock: Superblock) -> Standing:
    """See who owns the pool, and who wants to."""
    directory = read_directory(access.media, superblock, clock=access.clock).value
    check_admitted(access, superblock, directory)
    claims = [c for c in read_claims(access.media, superblock) if c is not None and c.reign > directory.reign]
    return Standing(directory, max(claims, key=lambda claim: claim.reign, default=None), access.host)


def release(writer: Writer, heir: UUID | None) -> None:
    """Give the pool up, to `heir` or to any admitted host; the writer may not write any more.

    This host's last store to the pool is the header line of slot 1. Loads that nobody finished stay where they are,
    for `load --resume` on the next owner.
    """
    writer.publish(released=True, heir=heir)


def take_over(access: Access, *, fenced: bool) -> TakeOver:
    """Make this host the owner of a shared pool, or say what stands in the way; BusyError beside a writer here.

    `fenced` is an operator's word that no process of any other host writes the pool or ever will again without looking.
    """
    superblock = read_superblock(access.media, clock=access.clock).value
    if not superblock.shared:
        raise ParameterError(
            f"{access.path}: pool {superblock.name} is not shared by hosts", remedy="any process that can write it may"
        )
    lock = access.lock(superblock.pool)
    try:
        return become_owner(access, superblock, fenced=fenced)
    finally:
        lock.release()


def become_owner(access: Access, superblock: Superblock, *, fenced: bool = False) -> TakeOver:
    """Do as `take_over`, for who holds the writer's lock of this host."""
    before = standing(access, superblock)
    if before.is_owner:
        return TakeOver(before, proven=True, silent=(), writing=())
    directory = before.directory
    released = _is_given_up(access, superblock, directory)
    claim = before.claim
    if claim is None or claim.owner != access.host:
        epoch = max(directory.epoch, claim.epoch if claim else 0) + 1
        if epoch > MAX_EPOCH:
            raise FormatError(f"{access.path}: epoch {epoch - 1} is the last one there is")
        claim = Claim(epoch, access.host)
    write_claim(access.media, superblock, claim, check=lambda: _check_highest(access, superblock, claim))
    silent: list[Host] = []
    writing: list[Host] = []
    if released:
        if directory.heir is None:
            access.clock.sleep(SETTLE_SECONDS)
        # Before the claim was on the media another host may have taken it, and may be writing: its release is none.
        directory = read_directory(access.media, superblock, clock=access.clock).value
        released = _is_given_up(access, superblock, directory)
    if not released and not fenced:
        # Asked when the claim is on the media: a writer that starts after the answer sees it.
        for host, answer in access.peers.ask(other_hosts(directory, access), superblock.pool).items():
            if answer is None:
                silent.append(host)
            elif answer.writing:
                writing.append(host)
    proven = not silent and not writing
    if proven:
        _settle(access, superblock, claim)
    return TakeOver(before, proven, tuple(silent), tuple(writing))


def _is_given_up(access: Access, superblock: Superblock, directory: Directory) -> bool:
    """Tell whether the last owner released the pool, and this host may have it."""
    return is_released(access.media, superblock, directory) and directory.heir in (None, access.host)


def _check_highest(access: Access, superblock: Superblock, claim: Claim) -> None:
    found = newest(access.media, superblock)
    if found is not None and found.reign > claim.reign:
        raise _faster(access, superblock, found.owner)


def _faster(access: Access, superblock: Superblock, owner: UUID) -> RefusedError:
    return RefusedError(
        f"{access.path}: host {owner} took pool {superblock.name} over at the same time",
        remedy="see `engramdax own`",
    )


def _settle(access: Access, superblock: Superblock, claim: Claim) -> None:
    """Publish the directory as it is under the new owner. Nobody else writes, so what is bad now stays bad."""
    for found in read_claims(access.media, superblock):
        if found != claim:
            raise _faster(access, superblock, found.owner if found else claim.owner)
    current = read_directory(access.media, superblock, patient=False)
    # A bad slot may have held one generation more, which a reader saw.
    skipped = 1 if current.problems else 0
    generation = last_generation(access.media, superblock, current.value) + skipped + 1
    retired = current.value.retired
    tables = current.value.tables
    lost = may_have_lost(access.media, superblock, current.value)
    if lost and not ask_all(access, superblock, current.value).none_after(current.value.generation):
        # That generation may have published what is loading, to a reader that holds it still.
        retired += tuple(e.retirement(generation) for e in current.value.unfinished())
        tables = tuple(current.value.published())
    directory = replace(
        current.value,
        tables=tables,
        retired=retired,
        epoch=claim.epoch,
        owner=claim.owner,
        generation=generation,
        released=False,
        heir=None,
    )
    publish(access.media, superblock, directory, check=lambda: _check_highest(access, superblock, claim))
