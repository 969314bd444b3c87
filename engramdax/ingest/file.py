# SPDX-License-Identifier: Apache-2.0
"""A source file: read at any offset by any thread, watched for change, and polite to the page cache.

A load reads each byte once. Left alone, the kernel would keep all of it and push out pages that others
still use. So pages that were in the page cache before the load stay there, and the pages that the load
itself brought in are dropped behind the reader.
"""

from __future__ import annotations

import mmap
import os
import stat
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

import numpy as np

from engramdax._core import ffi, lib
from engramdax.errors import ClosedError, SourceError
from engramdax.ingest.absent import PIECE_PAGES, AbsentPages
from engramdax.ingest.naming import shown
from engramdax.ingest.spans import Spans

PIECE_BYTES: Final = PIECE_PAGES * mmap.PAGESIZE

# What a snapshot looks at, at some 10 ms per GiB. Only a sparse file is larger, and it could be of 2**63.
SNAPSHOT_BYTES: Final = 16 << 40

# The kernel caches in folios of several pages and drops only those that lie whole in the range it is
# given. Reaching back and ahead by more than the largest folio catches those across two calls' border.
REACH_BYTES: Final = 8 << 20


def byte_view(buffer: memoryview | np.ndarray) -> memoryview:
    """Give the bytes of a C-contiguous buffer of any shape and type."""
    view = buffer if isinstance(buffer, memoryview) else buffer.data
    return view.cast("B") if view.nbytes else memoryview(b"")  # a view of nothing cannot be cast


def _reason(error: OSError) -> str:
    return error.strerror or type(error).__name__


class SourceFile:
    """A regular file, opened for reading.

    `path` is as the user wrote it, for messages; `absolute` survives a change of directory. `size` is
    in bytes, `mtime_ns` is the time of the last change of the content.

    All methods may be called by any thread, except that `close` may not overlap a read. Several holders
    can share one file: each `retain` asks for one more `close`.

    Raises SourceError: no such file, not a regular file, no permission, empty.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._shown = shown(path)
        self._fd = -1
        try:
            self.absolute = self.path.absolute()
            with ExitStack() as opened:
                # Looked at before it is opened: opening alone makes some devices act, and a pipe block.
                self._require_table_file(os.stat(path))  # noqa: PTH116
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
                opened.callback(os.close, fd)
                found = os.fstat(fd)
                self._require_table_file(found)
                # Until the place of the data is known, the kernel should not read ahead: its guesses
                # would be pages that nobody asked for.
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
                opened.pop_all()
        except FileNotFoundError as e:
            raise SourceError(f"{self._shown}: no such file", remedy="check the path") from e
        except PermissionError as e:
            raise SourceError(f"{self._shown}: no permission to read it", remedy="let this user read the file") from e
        except OSError as e:
            raise SourceError(
                f"{self._shown}: cannot be opened: {_reason(e)}", remedy="check the path and what is under it"
            ) from e
        except ValueError as e:  # a NUL in the path
            raise SourceError(f"{self._shown}: no such file: {e}", remedy="check the path") from e
        self._fd = fd
        self._holders = 1
        self.size = found.st_size
        self.mtime_ns = found.st_mtime_ns
        self._identity = (found.st_dev, found.st_ino)
        self._lock = threading.Lock()
        self._behind = Spans()
        self._absent = AbsentPages()

    def _require_table_file(self, found: os.stat_result) -> None:
        if not stat.S_ISREG(found.st_mode):
            kind = "a directory" if stat.S_ISDIR(found.st_mode) else "a pipe, socket or device"
            raise SourceError(f"{self._shown}: is {kind}, not a regular file", remedy="give a file that holds a table")
        if found.st_size == 0:
            raise SourceError(f"{self._shown}: the file is empty", remedy="give a file that holds a table")

    def read_into(self, offset: int, buffer: memoryview | np.ndarray) -> None:
        """Fill all of the writable `buffer` with the bytes of the file from `offset` on.

        Raises SourceError when the file ends before the buffer is full, and for each error of the
        medium or network below it. Buffers over 2 GiB are fine.
        """
        rest = byte_view(buffer)
        fd = self._open_fd()
        while rest:
            try:
                # One call gives at most 0x7ffff000 bytes, and a network file system often fewer.
                count = os.preadv(fd, [rest], offset)
            except OSError as e:
                raise SourceError(
                    f"{self._shown}: reading {len(rest)} bytes at byte {offset} failed: {_reason(e)}",
                    remedy="check the disk or the network file system under it",
                ) from e
            if count == 0:
                raise SourceError(
                    f"{self._shown}: ended early: nothing at byte {offset}, {len(rest)} bytes before the "
                    f"end of what was to be read; it had {self.size} bytes when it was opened",
                    remedy="load again when nothing writes to it",
                )
            rest = rest[count:]
            offset += count

    def read_header(self, offset: int, length: int) -> bytes:
        """Give `length` bytes of a header at `offset` and leave the page cache as it was."""
        begin = offset - offset % mmap.PAGESIZE
        end = min(offset + length + -(offset + length) % mmap.PAGESIZE, self.size)
        self.snapshot_residency(begin, end - begin)
        header = bytearray(length)
        self.read_into(offset, memoryview(header))
        self._drop(begin, end)
        with self._lock:
            # The table's first rows may share the header's last page, which then goes with them.
            self._behind.add(offset, offset + length)
        return bytes(header)

    def expect_sequential(self) -> None:
        """Tell the kernel that large reads in order follow, so that it reads ahead of them."""
        os.posix_fadvise(self._open_fd(), 0, 0, os.POSIX_FADV_SEQUENTIAL)

    def snapshot_residency(self, offset: int = 0, length: int | None = None) -> None:
        """Note which pages of a range are not in the page cache: those `drop_behind` may drop.

        Taken before the range is read. A page never looked at counts as one that was there before, and
        so does every page of a file that this user may not write to: the kernel tells nobody else.
        """
        fd = self._open_fd()
        begin = offset - offset % mmap.PAGESIZE
        end = min(self.size if length is None else offset + length, self.size, SNAPSHOT_BYTES)
        while begin < end:
            # A byte per page is what the call fills: a piece at a time keeps that small.
            piece_end = min(begin + PIECE_BYTES - begin % PIECE_BYTES, end)
            resident = bytearray(b"\1" * -(-(piece_end - begin) // mmap.PAGESIZE))
            pages = ffi.from_buffer("uint8_t[]", resident, require_writable=True)
            if lib.ed_resident_pages(fd, begin, piece_end - begin, pages) == 0:
                with self._lock:
                    self._absent.add(begin // mmap.PAGESIZE, np.frombuffer(resident, np.uint8) == 0)
            begin = piece_end

    def drop_behind(self, offset: int, length: int) -> None:
        """Let go of the cached pages of a range that has been read and is not needed any more.

        Only pages that a snapshot found absent, and that lie whole inside what this was called for so
        far, are dropped: a page across the border of two ranges goes with the later call.
        """
        if length <= 0:
            return
        with self._lock:
            begin, end = self._behind.add(offset, offset + length)
        self._drop(max(begin, offset - REACH_BYTES), min(end, offset + length + REACH_BYTES))

    def _drop(self, begin: int, end: int) -> None:
        fd = self._open_fd()
        first = -(-begin // mmap.PAGESIZE)
        last = -(-end // mmap.PAGESIZE) if end >= self.size else end // mmap.PAGESIZE
        with self._lock:
            runs = list(self._absent.runs(first, last))
        for run_first, run_last in runs:
            run = run_first * mmap.PAGESIZE, (run_last - run_first) * mmap.PAGESIZE
            os.posix_fadvise(fd, *run, os.POSIX_FADV_DONTNEED)

    def check_unchanged(self) -> None:
        """Raise SourceError if the file, or the file that its path names now, is not what was opened."""
        try:
            seen = os.fstat(self._open_fd()), self.absolute.stat()
        except OSError as e:
            raise SourceError(
                f"{self._shown}: was removed or renamed while it was read: {_reason(e)}",
                remedy="load again when nothing touches it",
            ) from e
        for now in seen:
            if (now.st_dev, now.st_ino) != self._identity:
                change = "another file took its place"
            elif now.st_size != self.size:
                change = f"its size went from {self.size} to {now.st_size} bytes"
            elif now.st_mtime_ns != self.mtime_ns:
                change = "it was written to"
            else:
                continue
            raise SourceError(
                f"{self._shown}: changed while it was read: {change}",
                remedy="load again when nothing touches it",
            )

    def describe(self) -> dict[str, str | int]:
        """Give path, size and time of last change, as the directory holds them."""
        return {"path": str(self.absolute), "size": self.size, "mtime_ns": self.mtime_ns}

    def _open_fd(self) -> int:
        if self._fd < 0:
            raise ClosedError(f"{self._shown}: the source was closed before")
        return self._fd

    def retain(self) -> Self:
        """Add a holder, who closes the file once more."""
        self._open_fd()
        with self._lock:
            self._holders += 1
        return self

    def close(self) -> None:
        """End one holder's use; the last one's closes the file. Closing a closed file does nothing."""
        with self._lock:
            if self._fd < 0:
                return
            self._holders -= 1
            if self._holders == 0:
                os.close(self._fd)
                self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
