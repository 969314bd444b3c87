# SPDX-License-Identifier: Apache-2.0
"""Pools in files that this host remembers and that cannot be opened any more, and giving back what is left of them.

The file may be gone, cut short or damaged, or another one may stand in its place, which is not ours to remove. Devices
come back with a boot, so none of theirs is lost.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from engramdax import hugepages
from engramdax.backing import inspect, inspect_fd, open_fd
from engramdax.errors import EngramdaxError, FormatError, ParameterError, RefusedError
from engramdax.format.geometry import SUPERBLOCK_BYTES, superblock_places
from engramdax.format.superblock import is_beginning
from engramdax.locks import WriterLock
from engramdax.media import MappedMedia
from engramdax.pool.access import LocalAccess
from engramdax.pool.provision import Plan, log, reserve_steps
from engramdax.pool.records import DAX_NODE, ENVIRONMENT, forget_record, known_pools, read_records
from engramdax.pool.steps import Step
from engramdax.pool.volume import read_superblock

if TYPE_CHECKING:
    from engramdax.pool.records import Record


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left of a pool besides its record: nothing where there are no bytes and no problem."""

    record: Record
    ours: bool = False
    """A file stands at its path that begins as the pool does, as far as it goes."""
    size: int = 0
    """Bytes of that file."""
    problem: str = ""
    """Why what stands there cannot be opened as that pool."""
    remedy: str = ""
    """What would let it be opened again, if anything would."""
    another: bool = False
    """What stands there is another pool, which can be opened."""


def lost_pool(target: str | os.PathLike[str] | None) -> Remains | None:
    """Give what is left of the pool that `target` means; None where it means one that can be opened, or no record.

    target: as for `resolve`; None means it where no other pool is there. Raises ParameterError where it means several.
    """
    text = os.fspath(target) if target is not None else os.environ.get(ENVIRONMENT, "")
    known = known_pools()
    lost = [found for r in read_records() if not r.joined and not DAX_NODE.match(r.path) and (found := _look(r))]
    if not text:
        if target is not None or len(known) > 1:
            return None
        meant = [one for one in lost if not known or one.record.uuid == known[0].uuid]
        return meant[0] if len(meant) == 1 else None
    if "\0" in text:
        return None
    uuids = {one.record.uuid for one in lost}
    exists = os.path.exists(text)  # noqa: PTH110 (raises less)
    if not exists and text in {pool.name for pool in known if pool.uuid not in uuids}:
        return None
    place = os.path.realpath(text)
    meant = [
        one
        for one in lost
        if (not exists and text in (one.record.name, one.record.uuid))
        or (os.path.realpath(one.record.path) == place and not one.another)
    ]
    if len(meant) > 1:
        raise ParameterError(
            f"{len(meant)} pools that are gone are meant by {text}: {', '.join(one.record.uuid for one in meant)}",
            remedy="name one by its uuid",
        )
    return meant[0] if meant else None


def plan_forgetting(left: Remains, *, force: bool) -> Plan:
    """Give back what is left of a pool, and forget it; RefusedError unless forced. A file that is not its own stays.

    BusyError while a process writes to what is left, whose lock is asked for here and taken as the file is removed.

    A boot ends mounts and reserves, so huge pages are given back only where the file's hugetlbfs is still there: after
    one, the reserve is somebody else's.
    """
    record = left.record
    path = _file(record) if left.ours else Path(record.path)
    if left.ours:
        WriterLock(inspect(path), UUID(record.uuid)).release()
    if not force:
        raise _refusal(left)
    steps = []
    if left.ours:
        steps.append(Step(f"remove {path} ({left.size} bytes), what is left of the pool", lambda: _remove(record)))
    if hugepages.is_mount(Path(record.path).parent):
        steps += reserve_steps(record)
    stays = f", and leave {path} as it is" if left.problem and not left.ours else ""
    steps.append(Step(f"forget the pool{stays}", lambda: forget_record(UUID(record.uuid))))
    return Plan(path, record.name, record.uuid, left.size, steps)


def _look(record: Record) -> Remains | None:
    """Give what is left of a pool; None where it can be opened, or where this user may not look."""
    path = Path(record.path)
    try:
        status = path.stat()
    except PermissionError:
        return None
    except OSError:
        return Remains(record)
    if not stat.S_ISREG(status.st_mode):
        return Remains(record, problem="it is no regular file")
    size = status.st_size
    begin = b""
    try:
        opened = LocalAccess(path, writable=False)
        try:
            begin = opened.media.load(0, min(opened.backing.size, SUPERBLOCK_BYTES))
            found = read_superblock(opened.media).value
        finally:
            opened.close()
    except FormatError as e:
        ours = (bool(begin) or not size) and is_beginning(begin, UUID(record.uuid))
        if ours and size < record.size:
            problem = f"the file has {size} bytes, the pool {record.size}"
            return Remains(record, ours, size, problem, "restore its size (what is left is as it was)" if size else "")
        return Remains(record, ours, size if ours else 0, e.problem, e.remedy)
    except EngramdaxError:
        return None
    if str(found.pool) == record.uuid:
        return None
    return Remains(record, problem=f"it is pool {found.name} ({found.pool})", another=True)


def _refusal(left: Remains) -> RefusedError:
    record = left.record
    what = f"pool {record.name} ({record.uuid})"
    if left.ours:
        other = f"{left.remedy}, or " if left.remedy else ""
        return RefusedError(
            f"{what} on {record.path} cannot be opened: {left.problem}",
            remedy=f"{other}say --force to remove the file and forget the pool",
        )
    if left.problem and not left.another:
        return RefusedError(
            f"{what} was at {record.path}, and what stands there now is not it: {left.problem}",
            remedy="--force forgets the pool and leaves that as it is",
        )
    return RefusedError(
        record.gone,
        remedy="if it is not merely out of reach, on a file system that is not mounted say, --force forgets it",
    )


def _file(record: Record) -> Path:
    """Give the place of the file itself, where the record names a link."""
    return Path(os.path.realpath(record.path))


def _stands_at(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.lstat())
    except OSError:
        return False


def _remove(record: Record) -> None:
    """Remove the file, if it still is what is left of the pool; by another name it is no pool afterwards either."""
    path, pool = _file(record), UUID(record.uuid)
    fd = open_fd(path, writable=True)
    try:
        backing = inspect_fd(fd, path)
        with WriterLock(backing, pool, of=fd):
            # At the file that is open: another may come to stand there at any time.
            left = _look(replace(record, path=f"/proc/self/fd/{fd}"))
            changed = RefusedError(
                f"{path} is something else now", remedy="look at what stands there before you say --force again"
            )
            if left is None or not left.ours:
                raise changed
            if backing.size:
                media = MappedMedia(backing.map(fd, writable=True), sync_fd=backing.sync_fd(fd))
                for place in superblock_places(record.size or backing.size):
                    # A hole stays one: a full file system has no block for it, nor one to map for a look.
                    if place + SUPERBLOCK_BYTES <= backing.size and any(os.pread(fd, SUPERBLOCK_BYTES, place)):
                        media.store(place, bytes(SUPERBLOCK_BYTES))
                        media.fence()
            if not _stands_at(path, fd):
                raise changed
            path.unlink()
    finally:
        os.close(fd)
    log(f"removed {path}, what was left of pool {record.name} ({record.uuid})")
