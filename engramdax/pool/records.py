# SPDX-License-Identifier: Apache-2.0
"""What this host remembers of pools that were provisioned or joined on it, and how a pool is found.

A record is a small JSON file in the state directory. It holds what the media cannot say: the path, and
what provisioning took from the host and deprovisioning has to give back.
"""

from __future__ import annotations

import json
import os
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from engramdax.devices.udev import linked_pools
from engramdax.errors import BackingError, EngramdaxError, ParameterError
from engramdax.files import replace_file
from engramdax.host import SYSTEM_STATE, make_dir, state_dir
from engramdax.pool.access import LocalAccess
from engramdax.pool.volume import read_superblock

if TYPE_CHECKING:
    from engramdax.format.superblock import Superblock

ENVIRONMENT: Final = "ENGRAMDAX_POOL"
_DAX_NAME: Final = re.compile(r"dax[0-9]+\.[0-9]+")
DAX_NODE: Final = re.compile(r"/dev/dax\d")


@dataclass(frozen=True, slots=True)
class Assembly:
    """How the device under a pool comes to be, in terms that hold over boots: nothing that the host numbers."""

    origin: str
    """cxl-ram, cxl-pmem, nvdimm, hmem or other."""
    memdevs: tuple[str, ...] = ()
    """Serials (0x...) in the order of the interleave; the PCI address of one whose serial says nothing."""
    granularity: int = 0
    """Bytes of the interleave; 0 where the region was not seen."""
    region_uuid: str = ""
    """Of a pmem region."""
    namespace: str = ""
    """The uuid of an nvdimm's or pmem region's namespace."""
    resource: int = 0
    """Where firmware put memory that no CXL driver knows, in bytes; 0 unknown."""
    offset: int = 0
    """Where the device begins in its dax region."""
    size: int = 0
    """Bytes of a device that is only a part of its dax region, 0 of one that is all of it."""
    align: int = 0
    """Bytes of its pages."""
    made: tuple[str, ...] = ()
    """What engramdax made on this host and takes away again, the last first: region, namespace, slice, mode."""
    before: str = ""
    """What there was where something was made: raw or fsdax of a namespace, disabled or system-ram of a device."""

    @classmethod
    def from_json(cls, value: Any) -> Assembly:
        """Read what `asdict` gave; TypeError for what it could not have given."""
        lists = {name: tuple(value[name]) for name in ("memdevs", "made") if name in value}
        assembly = cls(**{**value, **lists})
        numbers = (assembly.granularity, assembly.resource, assembly.offset, assembly.size, assembly.align)
        texts = (assembly.origin, assembly.region_uuid, assembly.namespace, assembly.before)
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise TypeError("a number is none")
        if not all(type(t) is str for t in (*texts, *assembly.memdevs, *assembly.made)):
            raise TypeError("a text is none")
        return assembly


@dataclass(frozen=True, slots=True)
class Record:
    """One pool of this host."""

    uuid: str
    name: str
    path: str
    huge_page_bytes: int = 0
    huge_pages: int = 0
    """Huge pages that provisioning added to the kernel's reserve."""
    mount: str = ""
    """hugetlbfs that provisioning mounted."""
    joined: bool = False
    """Another host provisioned it; here it was only made visible."""
    assembly: Assembly | None = None
    """Of a pool on a devdax device."""
    size: int = 0
    """Bytes of a pool in a file, which may be cut short; 0 where an earlier version remembered it."""

    @property
    def gone(self) -> str:
        """Say that the pool is not where it was."""
        return f"pool {self.name} ({self.uuid}) was at {self.path} and is not there now"


def write_record(record: Record) -> None:
    """Remember a pool."""
    make_dir(state_dir())
    directory = make_dir(state_dir() / "pools")
    text = json.dumps(asdict(record)) + "\n"
    replace_file(
        directory / f"{record.uuid}.json",
        lambda file: file.write(text.encode()),
        remedy="run as root, or set ENGRAMDAX_STATE_DIR to a directory of your own",
    )


def read_records() -> list[Record]:
    """Give all that this user can read, those of root included."""
    found: dict[str, Record] = {}
    places = [] if os.environ.get("ENGRAMDAX_STATE_DIR") else [SYSTEM_STATE]
    with suppress(BackingError):  # a user without a home has none of his own
        places.append(state_dir())
    for place in places:
        try:
            paths = sorted((place / "pools").glob("*.json"))
        except OSError:  # another user's, who keeps it to himself
            continue
        for path in paths:
            if record := _read_record(path):
                found[record.uuid] = record
    return list(found.values())


def _read_record(path: Path) -> Record | None:
    """Give a record; None for a damaged one, which costs a name and not the pool."""
    try:
        value = json.loads(path.read_text())
        if value.get("assembly") is not None:
            value["assembly"] = Assembly.from_json(value["assembly"])
        record = Record(**value)
        os.fsencode(record.path)
        UUID(record.uuid)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    texts = (record.uuid, record.name, record.path, record.mount)
    counts = (record.huge_page_bytes, record.huge_pages, record.size)
    right = all(type(t) is str for t in texts) and all(type(n) is int and n >= 0 for n in counts)
    right = right and type(record.joined) is bool
    return record if right and "\0" not in record.path else None


def record_of(pool: UUID) -> Record | None:
    """Give the record of this pool."""
    return next((r for r in read_records() if r.uuid == str(pool)), None)


def forget_record(pool: UUID) -> None:
    """Remember a pool no longer."""
    (state_dir() / "pools" / f"{pool}.json").unlink(missing_ok=True)


def known_pools() -> list[Record]:
    """Give the pools that are on this host now: recorded ones that still exist, and those on dax devices.

    A recorded pool that cannot be read (no permission, damage) is there: opening it says what is wrong. The same holds
    for one that udev found on a device: a user who may not read it still learns where it is. udev's link also counts
    more than a recorded device, whose number may be another device's after a boot.
    """
    pools: dict[str, Record] = {}
    linked = {str(uuid): pool for uuid, pool in linked_pools().items()}
    for record in read_records():
        path = str(linked[record.uuid].path) if record.uuid in linked else record.path
        found = _superblock(Path(path))
        if str(found.pool) == record.uuid if found is not None else os.path.exists(path):  # noqa: PTH110
            pools[record.uuid] = replace(record, path=path)
    for node in sorted(Path("/dev").glob("dax[0-9]*.[0-9]*")):
        if found := _superblock(node):
            pools.setdefault(str(found.pool), Record(str(found.pool), found.name, str(node)))
    for uuid, pool in linked.items():
        if uuid not in pools and _superblock(pool.path) is None:
            pools[uuid] = Record(uuid, pool.name, str(pool.path))
    return list(pools.values())


def _superblock(path: Path) -> Superblock | None:
    """Give the superblock of the pool at `path`, None where there is none that can be read."""
    try:
        opened = LocalAccess(path, writable=False)
        try:
            return read_superblock(opened.media).value
        finally:
            opened.close()
    except EngramdaxError:
        return None


def resolve(target: str | os.PathLike[str] | None) -> Path:
    """Give the path of the pool that `target` means: a path, a dax device, a pool's name or uuid.

    Without a target: ENGRAMDAX_POOL, or the one pool of this host.
    """
    text = os.fspath(target) if target is not None else os.environ.get(ENVIRONMENT, "")
    if target is not None and not text:
        # What `--pool "$UNSET"` gives: taking the one pool of this host could remove the wrong one.
        raise ParameterError("the pool's name is empty", remedy="name a pool, or leave --pool out")
    if "\0" in text:
        raise ParameterError("a pool's name holds a NUL character")
    if _DAX_NAME.fullmatch(text):
        return Path("/dev") / text
    if "/" in text or (text and os.path.exists(text)):  # noqa: PTH110 (raises less)
        return Path(text)
    pools = known_pools()
    if not text:
        if len(pools) == 1:
            return Path(pools[0].path)
        gone = ", ".join(f"{r.name} ({r.uuid}) was at {r.path}" for r in read_records()[:8])
        if not pools and gone:
            raise BackingError(
                f"the pools of this host are gone: {gone}",
                remedy="`engramdax provision` makes one, load fills it again; "
                "`engramdax deprovision --force` forgets one",
            )
        names = ", ".join(f"{p.name} ({p.path})" for p in pools[:8])
        raise ParameterError(
            f"there are {len(pools)} pools on this host: {names}" if pools else "no pool is known on this host",
            remedy=f"say which with --pool or {ENVIRONMENT}" if pools else "`engramdax provision` makes one",
        )
    matches = [p for p in pools if text in (p.name, p.uuid)]
    if len(matches) > 1:
        raise ParameterError(
            f"{len(matches)} pools are named {text}: {', '.join(p.path for p in matches)}",
            remedy="name one by its path or uuid",
        )
    if not matches:
        for record in read_records():
            if text in (record.name, record.uuid):
                raise BackingError(
                    record.gone,
                    remedy="mount what it is on, if that is all; `engramdax deprovision --force` forgets it",
                )
        raise BackingError(
            f"there is no pool {text} on this host",
            remedy=f"its pools: {', '.join(p.name for p in pools)}" if pools else "name it by its path",
        )
    return Path(matches[0].path)
