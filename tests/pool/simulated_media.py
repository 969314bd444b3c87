# SPDX-License-Identifier: Apache-2.0
"""Media that are a bytearray and remember every operation, so that a crash can be put anywhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


LINE = 64


@dataclass
class SimulatedMedia:
    """The Media protocol over bytes in this process. `log` holds (offset, data) of a store, None of a fence."""

    content: bytearray
    log: list[tuple[int, bytes] | None] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.content)

    def store(self, offset: int, data: ReadableBuffer) -> None:
        stored = bytes(data)
        assert offset % LINE == 0
        assert len(stored) % LINE == 0
        assert 0 <= offset <= offset + len(stored) <= self.size
        self.content[offset : offset + len(stored)] = stored
        self.log.append((offset, stored))

    def fence(self) -> None:
        self.log.append(None)

    def invalidate(self, offset: int, length: int) -> None:
        assert 0 <= offset <= offset + length <= self.size

    def load(self, offset: int, length: int) -> bytes:
        assert 0 <= offset <= offset + length <= self.size
        return bytes(self.content[offset : offset + length])

    def stores(self) -> list[tuple[int, int] | None]:
        """Give the operations as (offset, length) and None for a fence."""
        return [None if entry is None else (entry[0], len(entry[1])) for entry in self.log]


def crashes(before: bytes, log: list[tuple[int, bytes] | None], *, torn: int = 3) -> Iterator[bytes]:
    """Give what the media may hold if the writer died anywhere in `log`.

    All lines in front of the last fence are there. Of the lines behind it, a prefix of any length, and
    `torn` random subsets of each such prefix, because nothing orders lines without a fence.
    """
    chance = random.Random(len(log))
    settled = bytearray(before)
    pending: list[tuple[int, bytes]] = []
    yield bytes(settled)
    for entry in log:
        if entry is None:
            for offset, line in pending:
                settled[offset : offset + LINE] = line
            pending.clear()
            yield bytes(settled)
            continue
        offset, data = entry
        for at in range(0, len(data), LINE):
            pending.append((offset + at, data[at : at + LINE]))
            for subset in [pending, *(chance.sample(pending, chance.randint(0, len(pending))) for _ in range(torn))]:
                image = bytearray(settled)
                for place, line in subset:
                    image[place : place + LINE] = line
                yield bytes(image)
