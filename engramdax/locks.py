# SPDX-License-Identifier: Apache-2.0
"""Locks between the processes of one host: one writer, and the pins of readers.

The writer's lock is an flock. A reader's pin is an open-file-description lock on one byte of a range that
stands for generations: byte PINS + g locked means "I may still touch what generation g names". The kernel
drops both when the process dies, however it dies.

For a pool in a file both lie on that file, which every process that can reach the pool also shares. For
a device they lie on files of the host, because a device node can have twins (mknod, containers) that
exclude nobody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from weakref import WeakSet

from engramdax.backing import Backing, Kind, open_fd
from engramdax.errors import BackingError, BusyError
from engramdax.format.directory import MAX_GENERATION
from engramdax.host import make_dir, run_dir, state_dir
from engramdax.processes import shared_mappings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from uuid import UUID

PINS: Final = 1 << 62
"""First byte of the range of pins: no pool reaches that far."""

ASKING_SECONDS: Final = 0.5
"""Longer than a question whether somebody writes takes the lock, on a host whose processors are all busy, too."""

ASKING_PAUSE: Final = 0.01

_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux


def writer_lock_path(backing: Backing, pool: UUID) -> Path:
    """Where the writers of this pool exclude each other."""
    return make_dir(state_dir()) / f"{pool}.lock" if backing.kind is Kind.DEVDAX else backing.path


def pin_path(backing: Backing, pool: UUID) -> Path:
    """Where the readers of this pool pin generations."""
    return make_dir(run_dir()) / f"{pool}.pins" if backing.kind is Kind.DEVDAX else backing.path


def _open_lock(path: Path, backing: Backing, of: int | None = None) -> int:
    """Open the lock's file; `of` is the pool's own descriptor, whose file the path may not name any more."""
    if path == backing.path:
        return open_fd(path if of is None else Path(f"/proc/self/fd/{of}"), writable=False)
    try:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o660)
    except OSError as e:
        raise BackingError(
            f"cannot open {path}: {e.strerror}",
            remedy="run as root or as a member of the group that owns it (ls -l tells)",
        ) from None


class WriterLock:
    """The right to write a pool, held from construction to `release`; BusyError if another has it."""

    def __init__(self, backing: Backing, pool: UUID, *, of: int | None = None) -> None:
        path = writer_lock_path(backing, pool)
        self._fd = _open_lock(path, backing, of)
        try:
            self._take()
        except OSError as e:
            os.close(self._fd)
            if e.errno != errno.EWOULDBLOCK:
                raise BackingError(f"cannot lock {path}: {e.strerror}") from None
            raise BusyError(
                f"{backing.path} is being written by another process{_named(holders(path, 'FLOCK'))}",
                remedy="try again when it has finished",
            ) from None

    def _take(self) -> None:
        end = time.monotonic() + ASKING_SECONDS
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # by a writer, or for a moment by `is_written` of another process
                if time.monotonic() >= end:
                    raise
                time.sleep(ASKING_PAUSE)
            else:
                return

    def release(self) -> None:
        """Let others write. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Pins:
    """The generations of a pool that this process may still touch. Thread-safe.

    A forked child holds pins of its own for what it inherits, taken by the parent before the fork: with
    one shared description, the first of both to unpin would unpin for the other.

    `unpin` and `close` are what finalizers call, and the garbage collector may run those in the middle of
    any method here, on the same thread. So they never wait for the mutex: they note what to do, and
    whoever holds the mutex does it.
    """

    def __init__(self, backing: Backing, pool: UUID, *, of: int | None = None) -> None:
        self._path = pin_path(backing, pool)
        self._fd = _open_lock(self._path, backing, of)
        self._child_fd = -1
        self._held: Counter[int] = Counter()
        self._given_back: deque[int] = deque()
        self._closing = False
        self._shared = False
        self._mutex = threading.Lock()
        _live_pins.add(self)

    def pin(self, generation: int) -> None:
        """Hold a generation; counted."""
        try:
            with self._mutex:
                if not self._held[generation]:
                    self._lock(self._fd, fcntl.F_RDLCK, generation)
                self._held[generation] += 1
        finally:
            self._settle()

    def unpin(self, generation: int) -> None:
        """Give one hold of it back."""
        self._given_back.append(generation)
        self._settle()

    def close(self) -> None:
        """Give everything back."""
        self._closing = True
        self._settle()

    def _settle(self) -> None:
        while (self._given_back or (self._closing and self._fd >= 0)) and self._mutex.acquire(blocking=False):
            try:
                while self._given_back:
                    self._drop(self._given_back.popleft())
                if self._closing and self._fd >= 0:
                    os.close(self._fd)
                    self._fd = -1
            finally:
                self._mutex.release()

    def _drop(self, generation: int) -> None:
        self._held[generation] -= 1
        if not self._held[generation]:
            del self._held[generation]
            if self._fd >= 0 and not self._shared:
                self._lock(self._fd, fcntl.F_UNLCK, generation)

    def before_fork(self) -> None:
        """Take for the child what this process holds; the lock is kept until `after_fork`."""
        self._mutex.acquire()
        _forking.append(self)
        if self._fd < 0:
            return
        try:
            self._child_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
            for generation in self._held:
                self._lock(self._child_fd, fcntl.F_RDLCK, generation)
        except (OSError, BackingError):
            # Out of descriptors or locks: parent and child share one description, and neither unlocks it.
            self._shared = True
            if self._child_fd >= 0:
                os.close(self._child_fd)
                self._child_fd = -1

    def after_fork(self, *, child: bool) -> None:
        """Keep the descriptor that belongs to this process, drop the other's."""
        if self._child_fd >= 0:
            if child:
                self._fd, self._child_fd = self._child_fd, self._fd
                self._shared = False
            os.close(self._child_fd)
            self._child_fd = -1
        self._mutex.release()
        self._settle()

    def _lock(self, fd: int, kind: int, generation: int) -> None:
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, PINS + generation, 1, 0))
        except OSError as e:
            raise BackingError(
                f"cannot pin generation {generation} in {self._path}: {e.strerror}",
                remedy="the file system must support POSIX locks",
            ) from None


_live_pins: WeakSet[Pins] = WeakSet()
_forking: list[Pins] = []


def _before_fork() -> None:
    for pins in list(_live_pins):
        pins.before_fork()


def _after_fork(*, child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(child=child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(child=False),
    after_in_child=lambda: _after_fork(child=True),
)


def pinned_generations(backing: Backing, pool: UUID) -> tuple[int, ...]:
    """Give the generations that processes of this host hold, ascending; of neighbours perhaps the first and the last.

    0 is held while a directory is read.
    """
    fd = _open_lock(pin_path(backing, pool), backing)
    try:
        found: list[int] = []
        gaps = [(0, MAX_GENERATION)]
        while gaps:
            # The kernel names one lock of a range; what it says nothing of lies on both sides of that.
            first, end = gaps.pop()
            asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, PINS + first, end - first, 0)
            kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, asked))
            if kind == fcntl.F_UNLCK:
                continue
            # Neighbours held by one description are one lock to the kernel, of which both ends say enough; one that
            # reaches the largest offset has no length.
            held = range(max(first, start - PINS), min(end, start - PINS + length) if length else end)
            found += {held.start, held.stop - 1}
            gaps += [gap for gap in ((first, held.start), (held.stop, end)) if gap[0] < gap[1]]
    finally:
        os.close(fd)
    return tuple(sorted(found))


def pinned_before(backing: Backing, pool: UUID, generation: int) -> bool:
    """Tell whether any process of this host holds a generation below `generation`."""
    return any(held < generation for held in pinned_generations(backing, pool))


def is_written(backing: Backing, pool: UUID) -> bool:
    """Tell whether a process of this host holds the right to write the pool."""
    fd = _open_lock(writer_lock_path(backing, pool), backing)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def unknown_mappers(backing: Backing, pool: UUID) -> list[int] | None:
    """Give processes that map a pool's device and hold no pin of it here; None where not all can be looked at.

    Containers with a /run of their own keep their pins there, where this host's engramdax does not see them.
    Only root sees the mappings of all processes.
    """
    if os.geteuid() != 0:
        return None
    known = {os.getpid(), *readers(backing, pool), *holders(writer_lock_path(backing, pool), "FLOCK")}
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) not in known:
            maps = _maps_device(process, backing.device)
            if maps is None:
                return None
            if maps:
                found.append(int(process.name))
    return sorted(found)


def _maps_device(process: Path, device: int) -> bool | None:
    """Tell whether a process maps the character device; None where its mappings may not be followed."""
    try:
        for mapping in shared_mappings(process):
            try:
                if mapping.stat().st_rdev == device:
                    return True
            except PermissionError:
                return None
            except OSError:  # unmapped meanwhile
                continue
    except OSError:  # gone meanwhile
        return False
    return False


def readers(backing: Backing, pool: UUID) -> list[int]:
    """Give the processes of this host that have the pool open, as far as this user may see them."""
    return holders(pin_path(backing, pool), "OFDLCK")


def who_reads(backing: Backing, pool: UUID) -> str:
    """Say who has the pool open, "" if nobody has.

    The kernel's answer counts: /proc hides the processes of other users and of other containers, and
    btrfs and overlayfs show other device numbers there than stat does.
    """
    if not pinned_before(backing, pool, MAX_GENERATION):
        return ""
    processes = readers(backing, pool)
    return f"process {', '.join(map(str, processes))}" if processes else "a process that /proc does not show here"


def holders(path: Path, kind: str) -> list[int]:
    """Process ids that hold a lock of `kind` (as /proc spells it) on `path`.

    The owner of an open-file-description lock is not in /proc/locks, but in its fdinfo.
    """
    try:
        status = path.stat()
    except OSError:
        return []
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        lines = [line.split() for line in _lock_lines(process)]
        if any(kind in words and inode in words for words in lines):
            found.append(int(process.name))
    return sorted(found)


def _lock_lines(process: Path) -> Iterator[str]:
    try:
        infos = list((process / "fdinfo").iterdir())
    except OSError:  # gone meanwhile, or somebody else's
        return
    for info in infos:
        # One descriptor closed meanwhile must not hide the others.
        with suppress(OSError):
            yield from (line for line in info.read_text().splitlines() if line.startswith("lock:"))


def _named(processes: list[int]) -> str:
    return f" (pid {', '.join(map(str, processes))})" if processes else ""


def held_generations(path: Path) -> dict[int, list[int]]:
    """Give the generations that each process of this host holds by pins on `path`, as far as this user may see.

    0 is held while a directory is read.
    """
    try:
        status = path.stat()
    except OSError:
        return {}
    inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        for words in map(str.split, _lock_lines(process)):
            # lock: 1: OFDLCK ADVISORY READ -1 00:2a:7 FIRST LAST
            if "OFDLCK" in words and inode in words:
                first = words[words.index(inode) + 1]
                if first.isdigit() and int(first) >= PINS:
                    found.setdefault(int(process.name), []).append(int(first) - PINS)
    return found
