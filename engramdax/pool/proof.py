# SPDX-License-Identifier: Apache-2.0
"""Proof that no reader holds something, from every host that may read the pool. What does not answer proves nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engramdax.format.directory import Directory, Host
    from engramdax.format.superblock import Superblock
    from engramdax.pool.access import Access
    from engramdax.pool.peers import Answer


@dataclass(frozen=True, slots=True)
class Proof:
    """What this host and the other admitted ones said of their readers."""

    here: Answer | None
    others: dict[Host, Answer | None]

    @property
    def silent(self) -> list[Host]:
        """The other hosts that did not answer."""
        return [host for host, answer in self.others.items() if answer is None]

    def pinned(self) -> list[int] | None:
        """Give all generations that readers hold; None unless everybody answered."""
        answers = [self.here, *self.others.values()]
        if any(answer is None for answer in answers):
            return None
        return [generation for answer in answers if answer for generation in answer.pinned]

    def holding(self, generation: int) -> list[Host | None]:
        """Give the hosts of which a reader is known to hold a generation below this one; None is this host."""
        answers = [(None, self.here), *self.others.items()]
        return [host for host, answer in answers if answer and any(held < generation for held in answer.pinned)]

    def none_before(self, generation: int) -> bool:
        """Tell whether it is proven that nobody holds a generation below this one."""
        pinned = self.pinned()
        return pinned is not None and all(held >= generation for held in pinned)

    def none_after(self, generation: int) -> bool:
        """Tell whether it is proven that nobody holds a generation above this one."""
        pinned = self.pinned()
        return pinned is not None and all(0 < held <= generation for held in pinned)


def other_hosts(directory: Directory, access: Access) -> list[Host]:
    """Give the admitted hosts but this one."""
    return [host for host in directory.hosts if host.id != access.host]


def ask_all(access: Access, superblock: Superblock, directory: Directory) -> Proof:
    """Ask now. What is proven holds of directories that readers attached before; ask behind the publication."""
    others = other_hosts(directory, access) if superblock.shared else []
    here = access.here(superblock.pool)
    return Proof(here, access.peers.ask(others, superblock.pool) if others else {})
