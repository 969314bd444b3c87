# SPDX-License-Identifier: Apache-2.0
"""Making a pool in memory that is there, in a new file or in huge pages, and unmaking it."""

from __future__ import annotations

import os
import stat
import syslog
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from engramdax import hugepages
from engramdax.backing import Backing, Kind, inspect
from engramdax.errors import (
    BackingError,
    FormatError,
    ParameterError,
    RefusedError,
)
from engramdax.format.directory import Directory, Host
from engramdax.format.geometry import standard
from engramdax.format.superblock import Superblock, check_pool_name
from engramdax.host import host_id, host_name, run_dir
from engramdax.locks import WriterLock, who_reads
from engramdax.pool.attachment import Opened, open_media
from engramdax.pool.contents import State, contents
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
    from engramdax.media import Media

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


def new_superblock(name: str, size: int, *, shared: bool) -> Superblock:
    """Give the superblock of a fresh pool of `size` bytes."""
    pool = uuid4()
    return Superblock(
        pool, uuid4(), check_pool_name(name), size, standard(size), shared=shared, created=int(time.time())
    )


def plan_file(path: Path, size: int, *, name: str, consent: Consent) -> Plan:
    """Make a pool in a file of its own, on a disk or a tmpfs; all its space is taken at once."""
    superblock = new_superblock(name, size, shared=False)
    exists = path.exists()
    if exists:
        backing = inspect(path)
        if backing.size:
            _check_contents(path, consent)
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
    record = Record(str(superblock.pool), name, str(path.resolve()))
    steps = [
        Step(
            f"{'fill' if exists else 'create'} {path} with {size} bytes",
            lambda: _create(path, size),
            None if exists else path.unlink,
        ),
        *_pool_steps(path, superblock, record),
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
    record = Record(str(superblock.pool), name, str(path), page_bytes, missing, str(place) if place == ours else "")
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
        Step(f"create {path} with {size} bytes", lambda: _create(path, size), path.unlink),
        *_pool_steps(path, superblock, record),
    ]
    return Plan(path, name, record.uuid, size, steps)


def plan_device(path: Path, *, name: str, shared: bool, consent: Consent) -> Plan:
    """Make a pool on a devdax device that is there."""
    backing = inspect(path)
    if backing.kind is not Kind.DEVDAX:
        raise ParameterError(f"{path} is a {backing.kind}, no devdax device", remedy="use --file for a file")
    _check_contents(path, consent)
    superblock = new_superblock(name, backing.size, shared=shared)
    record = Record(str(superblock.pool), name, str(path))
    return Plan(path, name, record.uuid, backing.size, _pool_steps(path, superblock, record))


def plan_removal(path: Path, *, force: bool) -> Plan:
    """Unmake a pool and give back what provisioning took: its file, huge pages, mount."""
    opened = open_media(path, writable=True)
    try:
        superblock = read_superblock(opened.media).value
        try:
            tables = read_directory(opened.media, superblock).value.published()
        except FormatError:
            tables = []
    except FormatError as e:
        raise e.at(path) from None
    finally:
        os.close(opened.fd)
    if tables and not force:
        raise RefusedError(
            f"pool {superblock.name} on {path} holds {len(tables)} tables: {', '.join(t.name for t in tables[:8])}",
            remedy="remove them (`engramdax rm`), or say --force",
        )
    WriterLock(opened.backing, superblock.pool).release()
    if not force:
        _check_readers(opened.backing, superblock, remedy=UNREAD)
    record = record_of(superblock.pool)
    steps = [Step(f"make {path} a pool no more", lambda: _void(path, superblock, force=force))]
    if opened.backing.kind is not Kind.DEVDAX:
        steps.append(Step(f"remove {path} ({superblock.size} bytes)", path.unlink))
    if record and record.mount:
        steps.append(Step(f"unmount {record.mount}", lambda: hugepages.unmount(Path(record.mount))))
    if record and record.huge_pages:
        steps.append(
            Step(
                f"give {record.huge_pages} huge pages of {record.huge_page_bytes} bytes back",
                lambda: hugepages.drop_pages(record.huge_page_bytes, record.huge_pages),
            )
        )
    steps.append(Step("forget the pool", lambda: forget_record(superblock.pool)))
    return Plan(path, superblock.name, str(superblock.pool), superblock.size, steps)


def _pool_steps(path: Path, superblock: Superblock, record: Record) -> list[Step]:
    return [
        Step(
            f"write the superblock and an empty directory of pool {superblock.name} to {path}",
            lambda: _initialise(path, superblock),
            lambda: _void(path, superblock, force=True),
        ),
        Step(
            "remember the pool on this host",
            lambda: write_record(record),
            lambda: forget_record(superblock.pool),
        ),
    ]


def _check_contents(path: Path, consent: Consent) -> None:
    opened = open_media(path, writable=False)
    try:
        found = contents(opened.media)
        if found.state is State.EMPTY:
            return
        if found.state is State.UNKNOWN and not consent.unknown:
            raise RefusedError(
                f"{path} is not empty: {found.what}",
                remedy="if nobody needs them, say --overwrite-unknown",
            )
        if found.state in (State.POOL, State.RECOGNISED) and not consent.force:
            raise RefusedError(f"{path} holds {found.what}", remedy="if nobody needs it, say --force to destroy it")
        if found.state is State.POOL:
            _check_not_in_use(opened)
    finally:
        os.close(opened.fd)


def _check_not_in_use(opened: Opened) -> None:
    try:
        superblock = read_superblock(opened.media).value
    except FormatError:
        return
    WriterLock(opened.backing, superblock.pool).release()
    _check_readers(opened.backing, superblock, remedy="end its readers first")


def _check_readers(backing: Backing, superblock: Superblock, *, remedy: str) -> None:
    if who := who_reads(backing, superblock.pool):
        raise RefusedError(f"pool {superblock.name} on {backing.path} is open in {who}", remedy=remedy)


def _create(path: Path, size: int) -> None:
    made = not path.exists()
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    status = os.fstat(fd)
    before = status.st_size if stat.S_ISREG(status.st_mode) else size
    try:
        if not stat.S_ISREG(status.st_mode):
            raise BackingError(f"{path} is no regular file")
        os.ftruncate(fd, size)
        # tmpfs decides on huge pages at the first touch of a mapping that asks for them.
        backing = inspect(path)
        if backing.kind is Kind.TMPFS:
            backing.map(fd, writable=True).populate(0, size)
        os.posix_fallocate(fd, 0, size)
    except BaseException as e:
        if made:
            path.unlink(missing_ok=True)
        elif before < size:
            os.ftruncate(fd, before)
        if isinstance(e, OSError):
            raise BackingError(
                f"cannot have {size} bytes in {path}: {e.strerror}",
                remedy="free space or huge pages, or give a smaller --size",
            ) from None
        raise
    finally:
        os.close(fd)


def _initialise(path: Path, superblock: Superblock) -> None:
    opened = open_media(path, writable=True)
    try:
        initialise(opened.media, superblock, Host(host_id(), host_name()))
    finally:
        os.close(opened.fd)
    _log(f"provisioned pool {superblock.name} ({superblock.pool}) on {path}")


def _void(path: Path, superblock: Superblock, *, force: bool) -> None:
    opened = open_media(path, writable=True)
    try:
        with WriterLock(opened.backing, superblock.pool):
            if not force:  # somebody may have opened it meanwhile
                _check_readers(opened.backing, superblock, remedy=UNREAD)
            void_superblocks(opened.media, superblock)
            void_slots(opened.media, superblock)
    finally:
        os.close(opened.fd)
    _log(f"voided pool {superblock.name} ({superblock.pool}) on {path}")


def _log(message: str) -> None:
    syslog.openlog("engramdax", syslog.LOG_PID)
    syslog.syslog(syslog.LOG_NOTICE, message)
