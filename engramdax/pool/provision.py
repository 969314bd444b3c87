# SPDX-License-Identifier: Apache-2.0
"""Making a pool in memory that is there, in a new file or in huge pages, and unmaking it."""

from __future__ import annotations

import os
import stat
import syslog
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID, uuid4

from engramdax import hugepages
from engramdax.backing import Backing, Kind, inspect
from engramdax.devices import udev
from engramdax.errors import (
    BackingError,
    EngramdaxError,
    FormatError,
    ParameterError,
    RefusedError,
    UnreadableError,
)
from engramdax.format.directory import Directory, Host
from engramdax.format.geometry import standard
from engramdax.format.superblock import Superblock, check_pool_name
from engramdax.host import host_id, host_name, run_dir
from engramdax.locks import WriterLock, who_reads
from engramdax.pool.access import LocalAccess
from engramdax.pool.contents import Contents, State, contents, write_tombstone
from engramdax.pool.proof import other_hosts
from engramdax.pool.records import Record, forget_record, record_of, write_record
from engramdax.pool.steps import Step
from engramdax.pool.volume import (
    publish,
    read_directory,
    read_superblock,
    void_slots,
    void_superblocks,
    write_superblock,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.media import Media
    from engramdax.pool.peers import Peers
    from engramdax.pool.records import Assembly

FILE_MODE: Final = 0o640
UNREAD: Final = "end its readers, or say --force: they keep the memory until they end"


@dataclass(frozen=True, slots=True)
class Consent:
    """What of the contents of a device may be lost."""

    force: bool = False
    """Also something recognised: a pool, a file system."""
    unknown: bool = False
    """Also bytes that nobody recognises."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What provisioning would do: the steps, and the pool that stands at `path` afterwards."""

    path: Path
    name: str
    uuid: str
    size: int
    steps: list[Step]


def initialise(media: Media, superblock: Superblock, owner: Host) -> None:
    """Write an empty pool, so that nothing half made is ever one: old copies voided, superblock last."""
    void_superblocks(media, superblock)
    void_slots(media, superblock)
    publish(media, superblock, Directory(superblock.pool, 1, 1, owner.id, (owner,)))
    write_superblock(media, superblock)


def new_superblock(name: str, size: int, *, shared: bool, pool: UUID | None = None) -> Superblock:
    """Give the superblock of a fresh pool of `size` bytes, with this uuid where one is given."""
    return Superblock(
        pool or uuid4(), uuid4(), check_pool_name(name), size, standard(size), shared=shared, created=int(time.time())
    )


def plan_file(path: Path, size: int, *, name: str, consent: Consent) -> Plan:
    """Make a pool in a file of its own, on a disk or a tmpfs; all its space is taken at once."""
    superblock = new_superblock(name, size, shared=False)
    if path.is_symlink() and not os.path.exists(path):  # noqa: PTH110 (raises less)
        raise BackingError(f"{path} is a link into nothing", remedy="name the file itself")
    path = Path(os.path.realpath(path))  # the file itself, also when this process or a link goes elsewhere
    exists = path.exists()
    forgotten = None
    if exists:
        backing = inspect(path)
        if backing.size:
            forgotten = _check_contents(path, consent)
        if backing.size not in (0, size):
            raise RefusedError(
                f"{path} exists and has {backing.size} bytes, not {size}",
                remedy="remove it, or give its own size",
            )
    elif not path.parent.is_dir():
        raise BackingError(f"{path.parent} is no directory", remedy="make it first")
    free = os.statvfs(path.parent)
    if not exists and free.f_bavail * free.f_frsize < size:
        raise BackingError(
            f"{path.parent} has {free.f_bavail * free.f_frsize} bytes free, the pool needs {size}",
            remedy="free space, or give a smaller --size",
        )
    record = Record(str(superblock.pool), name, str(path), size=size)
    file = _File(path, size, exists=exists)
    steps = [
        Step(f"{'fill' if exists else 'create'} {path} with {size} bytes", file.fill, file.undo),
        *_pool_steps(path, superblock, record, consent, forgotten),
    ]
    return Plan(path, name, record.uuid, size, steps)


def plan_hugepages(page: str, size: int, *, name: str) -> Plan:
    """Make a pool in huge pages of 2M or 1G: reserve what is missing, a file of them on a hugetlbfs."""
    if page not in hugepages.PAGE_SIZES:
        raise ParameterError(f"huge pages of {page!r} are unknown", remedy="say 2M or 1G")
    page_bytes = hugepages.PAGE_SIZES[page]
    count = -(-size // page_bytes)
    size = count * page_bytes
    superblock = new_superblock(name, size, shared=False)
    missing = max(0, count - hugepages.available(page_bytes))
    found = hugepages.find_mount(page_bytes)
    ours = run_dir() / f"hugepages-{page}"
    place = found or ours
    path = place / f"engramdax-{name}"
    if found and path.exists():
        raise RefusedError(f"{path} exists", remedy="deprovision that pool, or give another --name")
    mount = str(place) if place == ours else ""
    record = Record(str(superblock.pool), name, str(path), page_bytes, missing, mount, size=size)
    file = _File(path, size, exists=False)
    steps = []
    if missing:
        steps.append(
            Step(
                f"reserve {missing} huge pages of {page} ({missing * page_bytes} bytes)",
                lambda: hugepages.add_pages(page_bytes, missing),
                lambda: hugepages.drop_pages(page_bytes, missing),
            )
        )
    if not found:
        steps.append(
            Step(
                f"mount a hugetlbfs of {page} pages at {place}",
                lambda: hugepages.mount(place, page_bytes),
                lambda: hugepages.unmount(place),
            )
        )
    steps += [
        Step(f"create {path} with {size} bytes", file.fill, file.undo),
        *_pool_steps(path, superblock, record, Consent(), None),
    ]
    return Plan(path, name, record.uuid, size, steps)


def plan_device(
    path: Path,
    *,
    name: str,
    shared: bool,
    consent: Consent,
    assembly: Assembly | None = None,
    pool: UUID | None = None,
    look: bool = True,
) -> Plan:
    """Make a pool on a devdax device that is there; `assembly` is remembered with it, `pool` its uuid if chosen.

    Without `look` this plan looks at nothing that stands there: its steps do, before they write.
    """
    backing = inspect(path)
    if backing.kind is not Kind.DEVDAX:
        raise ParameterError(f"{path} is a {backing.kind}, no devdax device", remedy="use --file for a file")
    forgotten = _check_contents(path, consent, look=look)
    superblock = new_superblock(name, backing.size, shared=shared, pool=pool)
    record = Record(str(superblock.pool), name, str(path), assembly=assembly)
    steps = [*_pool_steps(path, superblock, record, consent, forgotten), _udev_step(path)]
    return Plan(path, name, record.uuid, backing.size, steps)


def _udev_step(path: Path) -> Step:
    """Let links and access follow what the device holds now; a host without udev has none that could."""
    return Step(f"let udev look at {path}", partial(udev.trigger, path))


def plan_removal(path: Path, *, force: bool, give_back: Sequence[Step] = (), peers: Peers | None = None) -> Plan:
    """Unmake a pool and give back what provisioning took: its file, huge pages, mount, and by `give_back` its device.

    Refused on a host that does not own the pool, and unless forced while other hosts are admitted that have not
    answered, by `peers` or the configured channel, that nobody there has the pool open.
    """
    opened = LocalAccess(path, writable=True, peers=peers)
    path = Path(os.path.realpath(path))
    try:
        superblock = read_superblock(opened.media).value
        try:
            directory = read_directory(opened.media, superblock).value
        except FormatError:
            directory = None
    except FormatError as e:
        raise e.at(path) from None
    finally:
        opened.close()
    if superblock.shared and directory:
        _check_ours(path, superblock, directory)
        if not force:
            _check_elsewhere(opened, superblock, directory)
    tables = directory.published() if directory else []
    if tables and not force:
        raise _still_holds(path, superblock, [t.name for t in tables])
    WriterLock(opened.backing, superblock.pool).release()
    if not force:
        _check_readers(opened.backing, superblock, remedy=UNREAD)
    record = record_of(superblock.pool)
    stays = opened.backing.kind is Kind.DEVDAX
    steps = [
        Step(
            f"make {path} a pool no more",
            lambda: _void(path, superblock, force=force, peers=peers, ended=stays),
        ),
    ]
    if stays:
        steps.append(_udev_step(path))
    else:
        steps.append(Step(f"remove {path} ({superblock.size} bytes)", path.unlink))
    steps += [*(reserve_steps(record) if record else []), *give_back]
    steps.append(Step("forget the pool", lambda: forget_record(superblock.pool)))
    return Plan(path, superblock.name, str(superblock.pool), superblock.size, steps)


def reserve_steps(record: Record) -> list[Step]:
    """Plan to give back the mount and the huge pages that provisioning took."""
    steps = []
    if record.mount:
        steps.append(Step(f"unmount {record.mount}", lambda: hugepages.unmount(Path(record.mount))))
    if record.huge_pages:
        steps.append(
            Step(
                f"give {record.huge_pages} huge pages of {record.huge_page_bytes} bytes back",
                lambda: hugepages.drop_pages(record.huge_page_bytes, record.huge_pages),
            )
        )
    return steps


def _check_ours(path: Path, superblock: Superblock, directory: Directory) -> None:
    """Refuse to unmake another host's pool."""
    if directory.owner != host_id():
        owner = directory.short_name(directory.owner)
        raise RefusedError(
            f"{path}: pool {superblock.name} is owned by {owner} ({directory.owner}), not by this host",
            remedy=f"run this on {owner}",
        )


def _check_elsewhere(access: LocalAccess, superblock: Superblock, directory: Directory) -> None:
    """Refuse to unmake a pool under other hosts, unless each has answered that nobody there has it open.

    A reader that comes behind its host's answer finds no table that it could lose.
    """
    others = other_hosts(directory, access)
    answers = access.peers.ask(others, superblock.pool) if others else {}
    what = f"pool {superblock.name} on {access.path}"
    if silent := [host.name for host, answer in answers.items() if answer is None]:
        said = "".join(f"; {problem}" for problem in access.peers.problems)
        raise RefusedError(
            f"{what} has other hosts admitted: {', '.join(host.name for host in others)}, and {', '.join(silent)} did "
            f"not answer that nobody has it open there{said}",
            remedy="`engramdax deprovision` there and `engramdax hosts forget` here, or say --force",
        )
    if used := [host.name for host, answer in answers.items() if answer and (answer.pinned or answer.writing)]:
        raise RefusedError(f"{what} is open on {', '.join(used)}", remedy="end its readers there, or say --force")


def _still_holds(path: Path, superblock: Superblock, names: list[str]) -> RefusedError:
    listed = ", ".join(names[:8]) + (" and more" if len(names) > 8 else "")
    return RefusedError(
        f"pool {superblock.name} on {path} holds {len(names)} tables: {listed}",
        remedy="remove them (`engramdax rm`), or say --force",
    )


def _pool_steps(
    path: Path, superblock: Superblock, record: Record, consent: Consent, forgotten: UUID | None
) -> list[Step]:
    """Give the last steps; `forgotten` is the pool that stood there before and is to be destroyed."""
    forget = [Step("forget the pool that was there", lambda: forget_record(forgotten))] if forgotten else []
    return [
        Step(
            f"write the superblock and an empty directory of pool {superblock.name} to {path}",
            lambda: _initialise(path, superblock, consent),
            lambda: _void(path, superblock, force=True),
        ),
        *forget,
        Step(
            "remember the pool on this host",
            lambda: write_record(record),
            lambda: forget_record(superblock.pool),
        ),
    ]


def _check_contents(path: Path, consent: Consent, *, look: bool = True) -> UUID | None:
    """Refuse what must not be overwritten; give the uuid of a pool that may be."""
    opened = LocalAccess(path, writable=False)
    try:
        if look:
            check_consent(path, contents(opened.media, opened.fd), consent)
        return _check_not_in_use(opened)
    finally:
        opened.close()


def check_consent(path: Path | str, found: Contents, consent: Consent) -> None:
    """Refuse to overwrite what was found at `path` unless that is agreed to."""
    if found.state is State.UNKNOWN and not consent.unknown:
        raise RefusedError(
            f"{path} is not empty: {found.what}",
            remedy="if nobody needs them, say --overwrite-unknown",
        )
    if found.state in (State.POOL, State.RECOGNISED) and not consent.force:
        raise RefusedError(f"{path} holds {found.what}", remedy="if nobody needs it, say --force to destroy it")


def _check_not_in_use(opened: LocalAccess) -> UUID | None:
    try:
        superblock = read_superblock(opened.media).value
    except FormatError:
        return None
    WriterLock(opened.backing, superblock.pool).release()
    _check_readers(opened.backing, superblock, remedy="end its readers first")
    return superblock.pool


def _check_readers(backing: Backing, superblock: Superblock, *, remedy: str) -> None:
    if who := who_reads(backing, superblock.pool):
        raise RefusedError(f"pool {superblock.name} on {backing.path} is open in {who}", remedy=remedy)


class _File:
    """The file of a new pool. Two that provision one path at once must not take it from each other."""

    def __init__(self, path: Path, size: int, *, exists: bool) -> None:
        self._path = path
        self._size = size
        self._exists = exists
        self._before = 0
        self._inode: tuple[int, int] | None = None
        """Device and inode, once this object has made or grown the file."""

    def fill(self) -> None:
        """Make the file, or take it as it is, and have all its space."""
        flags = os.O_RDWR | os.O_CLOEXEC | (0 if self._exists else os.O_CREAT | os.O_EXCL)
        try:
            fd = os.open(self._path, flags, FILE_MODE)
        except FileExistsError:
            raise RefusedError(f"{self._path} was made by somebody else meanwhile", remedy="look at it first") from None
        except OSError as e:
            raise BackingError(f"cannot open {self._path}: {e.strerror}", remedy="give another --file") from None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                raise BackingError(f"{self._path} is no regular file", remedy="give another --file")
            self._before, self._inode = status.st_size, (status.st_dev, status.st_ino)
            os.ftruncate(fd, self._size)
            # tmpfs decides on huge pages at the first touch of a mapping that asks for them.
            backing = inspect(self._path)
            if backing.kind is Kind.TMPFS:
                backing.map(fd, writable=True).populate(0, self._size)
            os.posix_fallocate(fd, 0, self._size)
        except BaseException as e:
            self.undo()
            if isinstance(e, OSError):
                raise BackingError(
                    f"cannot have {self._size} bytes in {self._path}: {e.strerror}",
                    remedy="free space or huge pages, or give a smaller --size",
                ) from None
            raise
        finally:
            os.close(fd)

    def undo(self) -> None:
        """Leave the file as it was, if it still is the one that this object made or grew."""
        try:
            status = self._path.stat()
        except OSError:
            return
        # An inode's number is used again. What this object wrote is voided by now, so a pool is somebody else's.
        if (status.st_dev, status.st_ino) != self._inode or _holds_a_pool(self._path):
            return
        if not self._exists:
            self._path.unlink(missing_ok=True)
        elif self._before < self._size:
            os.truncate(self._path, self._before)


def _holds_a_pool(path: Path) -> bool:
    try:
        opened = LocalAccess(path, writable=False)
    except EngramdaxError:
        return False
    try:
        return bool(read_superblock(opened.media).value)
    except FormatError:
        return False
    finally:
        opened.close()


def _initialise(path: Path, superblock: Superblock, consent: Consent) -> None:
    opened = LocalAccess(path, writable=True)
    try:
        with WriterLock(opened.backing, superblock.pool, of=opened.fd):
            # Whoever had the lock before may have made a pool here since the contents were looked at.
            check_consent(path, contents(opened.media, opened.fd), consent)
            initialise(opened.media, superblock, Host(host_id(), host_name()))
    finally:
        opened.close()
    log(f"provisioned pool {superblock.name} ({superblock.pool}) on {path}")


def _void(path: Path, superblock: Superblock, *, force: bool, peers: Peers | None = None, ended: bool = False) -> None:
    """Make it a pool no more; one that `ended`, and was no failed attempt, leaves what may be overwritten."""
    opened = LocalAccess(path, writable=True, peers=peers)
    try:
        with WriterLock(opened.backing, superblock.pool, of=opened.fd):
            # Somebody may have come meanwhile: another pool, a table, a reader.
            found = read_superblock(opened.media).value
            if found.pool != superblock.pool:
                raise RefusedError(f"{path} holds another pool now, {found.name} ({found.pool})", remedy="look again")
            if not force:
                _check_unneeded(opened, superblock, path)
            void_superblocks(opened.media, superblock)
            void_slots(opened.media, superblock)
            if ended:
                with suppress(UnreadableError):  # what cannot be read cannot be known again
                    write_tombstone(opened.media, superblock)
    finally:
        opened.close()
    log(f"voided pool {superblock.name} ({superblock.pool}) on {path}")


def _check_unneeded(opened: LocalAccess, superblock: Superblock, path: Path) -> None:
    try:
        directory = read_directory(opened.media, superblock).value
    except FormatError:
        directory = None
    if directory and (tables := directory.published()):
        raise _still_holds(path, superblock, [t.name for t in tables])
    _check_readers(opened.backing, superblock, remedy=UNREAD)
    if directory and superblock.shared:
        _check_elsewhere(opened, superblock, directory)


def log(message: str) -> None:
    """Leave a line in the system's log, as each destructive act does."""
    # A path may be no UTF-8, which syslog takes no other text than.
    text = message.encode("utf-8", "backslashreplace").decode()
    syslog.openlog("engramdax", syslog.LOG_PID)
    syslog.syslog(syslog.LOG_NOTICE, text)
