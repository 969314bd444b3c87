# SPDX-License-Identifier: Apache-2.0
"""The one way in which metadata and rows reach a pool's media.

Four operations, small enough that a simulated memory with an adversarial cache can stand in for the
real one under the same pool code. The real one is the C core over a mapping (c/media.h).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, Protocol

from engramdax._core import ffi, lib
from engramdax.errors import BackingError, UnreadableError
from engramdax.format.geometry import LINE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from engramdax.mapping import Mapping


class Media(Protocol):
    """A range of bytes that other hosts may read and write.

    Offsets are in bytes from its start. Only the owner host stores, and only multiples of
    LINE at multiples of LINE.
    """

    @property
    def size(self) -> int:
        """Bytes of the media."""

    def store(self, offset: int, data: ReadableBuffer) -> None:
        """Store whole lines past the caches; ordered only by `fence`."""

    def fence(self) -> None:
        """Let all lines stored before reach the media in front of any later one."""

    def invalidate(self, offset: int, length: int) -> None:
        """Make the next `load` of [offset, offset + length) read the media and not a cache."""

    def load(self, offset: int, length: int) -> bytes:
        """Give a private copy of [offset, offset + length)."""


_uncleared: Final[Any] = ffi.new_allocator(should_clear_after_alloc=False)


class MappedMedia:
    """The media behind a mapping.

    `sync_fd` is a file on a disk, whose lines also have to outlive the page cache: each fence is an
    fdatasync there. Thread-safe; a fence orders the stores of the calling thread, and on a disk of all.
    """

    def __init__(self, mapping: Mapping, *, sync_fd: int | None = None) -> None:
        self.mapping = mapping
        self._base = ffi.cast("uint8_t *", mapping.address)
        self._sync_fd = sync_fd

    @property
    def size(self) -> int:
        """Bytes of the media."""
        return self.mapping.length

    def store(self, offset: int, data: ReadableBuffer) -> None:
        """Store whole lines past the caches; BackingError where the memory faults, and some may be stored."""
        source = ffi.from_buffer(data)
        length = len(source)
        self.mapping.check(offset, length)
        if offset % LINE or length % LINE:
            raise BackingError(f"{length} bytes at {offset} are no whole lines of {self.mapping.path}")
        if not self.mapping.writable:
            raise BackingError(f"{self.mapping.path} is mapped read-only", remedy="open it for writing")
        begin = self._base
        if lib.ed_store_guarded(begin + offset, source, length // LINE, begin, begin + self.size):
            raise BackingError(
                f"bytes {offset} to {offset + length} of {self.mapping.path} cannot be written",
                remedy="the device may be gone, its memory poisoned (`ndctl clear-errors`), or the disk full",
            )

    def fence(self) -> None:
        """Order and, on a disk, make durable."""
        lib.ed_fence()
        if self._sync_fd is not None:
            os.fdatasync(self._sync_fd)

    def invalidate(self, offset: int, length: int) -> None:
        """Forget what this CPU holds of the range. Of memory that faults it holds nothing; a `load` says so."""
        self.mapping.check(offset, length)
        begin = self._base
        lib.ed_invalidate_guarded(begin + offset, length, begin, begin + self.size)

    def load(self, offset: int, length: int) -> bytes:
        """Copy the range out; UnreadableError where its memory faults."""
        self.mapping.check(offset, length)
        copy = _uncleared("uint8_t[]", max(length, 1))
        begin = self._base
        if lib.ed_copy_guarded(copy, begin + offset, length, begin, begin + self.size):
            raise self._unreadable(offset, length)
        return bytes(ffi.buffer(copy, length))

    def first_nonzero(self, offset: int, length: int) -> int | None:
        """Give the offset of the first byte of the range that is not zero, if any; UnreadableError as for `load`."""
        self.mapping.check(offset, length)
        found = ffi.new("uint64_t *")
        begin = self._base
        if lib.ed_find_nonzero_guarded(begin + offset, length, begin, begin + self.size, found):
            raise self._unreadable(offset, length)
        return offset + int(found[0]) if found[0] < length else None

    def _unreadable(self, offset: int, length: int) -> UnreadableError:
        return UnreadableError(
            f"bytes {offset} to {offset + length} of {self.mapping.path} cannot be read",
            remedy="the device may be gone, its memory poisoned, or the file truncated",
        )
