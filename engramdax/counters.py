# SPDX-License-Identifier: Apache-2.0
"""What this process gathers, in a small file of its own that others may read while it runs.

A page of counters lies in the run directory (/run/engramdax/counters), is written by one process through a shared
mapping, and costs a gather one relaxed atomic addition. Little-endian, of a fixed size: a header and SLOTS slots, one
for each table that the process holds.

The process holds an flock on its page for as long as it lives. A page that nobody locks is a dead process's: whoever
makes a page, or reads them, removes it; reading leaves what is in the folders of users (/run/user).
"""

from __future__ import annotations

import atexit
import fcntl
import os
import re
import secrets
import stat
import struct
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engramdax._core import ffi, lib
from engramdax.backing import NETWORK_MAGICS, file_system
from engramdax.errors import EngramdaxError
from engramdax.host import make_dir, run_dir
from engramdax.mapping import Mapping

if TYPE_CHECKING:
    from uuid import UUID

    from engramdax.format.directory import TableEntry

MAGIC: Final = b"ENGRMCNT"
VERSION: Final = 1
SLOT_BYTES: Final = 256
SLOTS: Final = 255
PAGE_BYTES: Final = SLOT_BYTES * (1 + SLOTS)
FOLDER: Final = "counters"
"""Of the pages, in a run directory."""

PAGE_NAME: Final = re.compile(r"\d+-[0-9a-f]{8}")
MODE: Final = 0o644
TRIES: Final = 8

HEADER: Final = struct.Struct("<8s I I I 4x d 16s")
"""Magic, version, slots, process id, when the page was made (seconds since 1970), name of the command."""

COUNTS: Final = struct.Struct("<Q Q")
"""First line of a slot: calls and rows in one number, rows that could not be read."""
UNREADABLE: Final = struct.Struct("<Q")
UNREADABLE_AT: Final = 8

TABLE_AT: Final = 64
TABLE: Final = struct.Struct("<16s 16s Q 24x 128s")
"""Second line on: pool uuid, load id, bytes of a row (0: the slot is free), name padded with zeros."""

CALLS_SHIFT: Final = int(lib.ED_CALLS_SHIFT)
CALLS_BITS: Final = 64 - CALLS_SHIFT


def counters_dir() -> Path:
    """Where this user's processes keep their pages."""
    return run_dir() / FOLDER


class Counter:
    """The slot of a table in this process's page, kept while a Table of that load lives."""

    def __init__(self, page: Page, slot: int) -> None:
        self._page = page
        self._slot = slot
        self.address: Any = ffi.cast("uint64_t *", page.mapping.address + SLOT_BYTES * (1 + slot))

    def add_unreadable(self, rows: int) -> None:
        """Count rows that could not be read."""
        self._page.add_unreadable(self._slot, rows)


class Page:
    """The page of this process. Thread-safe; a forked child gets one of its own in the same place of its memory.

    `give_back` is what finalizers call, which run in the middle of anything: it never waits for the mutex.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._used: dict[tuple[UUID, UUID], tuple[int, int]] = {}
        """By pool and load: slot, and how many Tables use it."""
        self._given_back: deque[tuple[UUID, UUID]] = deque()
        self.path, self._fd = _make_file()
        try:
            self.mapping = Mapping(
                self._fd, PAGE_BYTES, align=SLOT_BYTES, writable=True, huge=False, path=str(self.path)
            )
        except BaseException:
            self.remove()
            raise
        self._view = self.mapping.view(0, PAGE_BYTES)
        self._write_header()

    def take(self, pool: UUID, entry: TableEntry) -> Counter | None:
        """Give the slot for a table; None where all are taken."""
        self._settle()
        try:
            with self._mutex:
                slot, users = self._used.get((pool, entry.load), (-1, 0))
                if slot < 0:
                    taken = {s for s, _ in self._used.values()}
                    slot = next((s for s in range(SLOTS) if s not in taken), -1)
                    if slot < 0:
                        return None
                    self._fill(slot, pool, entry)
                self._used[pool, entry.load] = (slot, users + 1)
        finally:
            self._settle()
        return Counter(self, slot)

    def _fill(self, slot: int, pool: UUID, entry: TableEntry) -> None:
        at = SLOT_BYTES * (1 + slot)
        COUNTS.pack_into(self._view, at, 0, 0)
        TABLE.pack_into(
            self._view, at + TABLE_AT, pool.bytes, entry.load.bytes, entry.layout.row_bytes, entry.name.encode()
        )

    def give_back(self, pool: UUID, load: UUID) -> None:
        """Let go of a table's slot once."""
        self._given_back.append((pool, load))
        self._settle()

    def _settle(self) -> None:
        while self._given_back and self._mutex.acquire(blocking=False):
            try:
                while self._given_back:
                    self._drop(self._given_back.popleft())
            finally:
                self._mutex.release()

    def _drop(self, key: tuple[UUID, UUID]) -> None:
        slot, users = self._used[key]
        if users > 1:
            self._used[key] = (slot, users - 1)
            return
        del self._used[key]
        at = SLOT_BYTES * (1 + slot) + TABLE_AT
        self._view[at : at + TABLE.size] = bytes(TABLE.size)

    def add_unreadable(self, slot: int, rows: int) -> None:
        """Count rows of a slot that could not be read."""
        at = SLOT_BYTES * (1 + slot)
        with self._mutex:
            # The number before it is changed by gathers meanwhile.
            (before,) = UNREADABLE.unpack_from(self._view, at + UNREADABLE_AT)
            UNREADABLE.pack_into(self._view, at + UNREADABLE_AT, before + rows)
        self._settle()

    def remove(self) -> None:
        """Take the file away; the memory stays."""
        if self._fd >= 0:
            with suppress(OSError):
                self.path.unlink()
            os.close(self._fd)
            self._fd = -1

    def before_fork(self) -> None:
        """Keep other threads out until `after_fork`."""
        self._mutex.acquire()

    def after_fork(self, *, child: bool) -> None:
        """Give the child a page of its own: what it counts is not the parent's work."""
        try:
            if child:
                self._begin_anew()
        finally:
            self._mutex.release()
        self._settle()

    def _begin_anew(self) -> None:
        tables = bytes(self._view)
        if self._fd >= 0:
            os.close(self._fd)
        try:
            self.path, self._fd = _make_file()
        except (OSError, EngramdaxError):
            self._fd = -1
        self.mapping.replace(self._fd)
        for slot, _ in self._used.values():
            at = SLOT_BYTES * (1 + slot) + TABLE_AT
            self._view[at : at + TABLE.size] = tables[at : at + TABLE.size]
        self._write_header()

    def _write_header(self) -> None:
        command = b""
        with suppress(OSError):  # no descriptor is left, or there is no /proc
            command = Path("/proc/self/comm").read_bytes().rstrip(b"\n")
        HEADER.pack_into(self._view, 0, MAGIC, VERSION, SLOTS, os.getpid(), time.time(), command)


def _make_file() -> tuple[Path, int]:
    """Make a page of zeros that this process holds locked; gives its path and descriptor."""
    folder = make_dir(counters_dir())
    for path in folder.iterdir():
        if (fd := open_page(path)) is not None:
            os.close(fd)
    for _ in range(TRIES):
        path = folder / f"{os.getpid()}-{secrets.token_hex(4)}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE)
        try:
            magic, _ = file_system(fd)
            if magic in NETWORK_MAGICS:
                raise OSError(f"{folder} is on a network file system")
            # Really there: a store to a hole of a full file system would be a SIGBUS.
            os.posix_fallocate(fd, 0, PAGE_BYTES)
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(fd).st_nlink:
                    return path, fd
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(fd)
            raise
        # Somebody took it for a dead process's before it was locked. Not waited for: anybody may hold such a lock.
        path.unlink(missing_ok=True)
        os.close(fd)
    raise OSError(f"no page in {folder} could be locked")


def open_page(path: Path, *, remove: bool = True) -> int | None:
    """Open a living process's page for reading; None of anything else. One of a dead process is removed.

    Without `remove` it stays: where another user could let the folder's name lead elsewhere.
    """
    if not PAGE_NAME.fullmatch(path.name):
        return None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # gone meanwhile, or no file of ours
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return fd
    except OSError:
        os.close(fd)
        return None
    with suppress(OSError):  # of another user
        if remove and stat.S_ISREG(os.fstat(fd).st_mode):
            path.unlink()
    os.close(fd)
    return None


_mutex = threading.Lock()
_page: Page | None = None
_without = False


def own_page() -> Path | None:
    """Give the file of this process's page, which other processes of that pid, in other namespaces, do not have."""
    return None if _page is None else _page.path


def counter_of(pool: UUID, entry: TableEntry) -> Counter | None:
    """Give the counter of a table that this process holds, until the result is gone.

    None where there can be none, which costs nothing but that nobody sees what is gathered.
    """
    global _page, _without  # noqa: PLW0603 - one page for the process
    with _mutex:
        if _page is None:
            if _without:
                return None
            try:
                _page = Page()
                atexit.register(_page.remove)
            except (OSError, EngramdaxError):
                _without = True
                return None
        page = _page
    counter = page.take(pool, entry)
    if counter is not None:
        weakref.finalize(counter, page.give_back, pool, entry.load).atexit = False
    return counter


def _before_fork() -> None:
    _mutex.acquire()
    if _page is not None:
        _page.before_fork()


def _after_fork(*, child: bool) -> None:
    try:
        if _page is not None:
            _page.after_fork(child=child)
    finally:
        _mutex.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)
