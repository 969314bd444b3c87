# SPDX-License-Identifier: Apache-2.0
"""The directory: one 64-byte header line and a JSON payload that name everything in the pool.

Two slots hold it; the current one is the valid slot of this pool with the highest (epoch, generation).
Nothing read here is believed before it was checked: checksums first, then every name, number and extent
against the superblock.
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from crc32c import crc32c

from engramdax.errors import FormatError, ParameterError, SpaceError, TableNotFoundError
from engramdax.format.geometry import LINE, Extent, Geometry
from engramdax.format.layout import RowLayout
from engramdax.format.superblock import NAME_CHARACTERS

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = int.from_bytes(b"ENGRMDIR", "little")
_HEADER: Final = struct.Struct("<QQ16s16sIIII")
_CHECKED: Final = _HEADER.size - 4  # the header's own checksum is its last field
CHECKSUM_BYTES: Final = 4

_PART: Final = rf"(?!\.\.?(?:/|$))[{NAME_CHARACTERS}]+"
TABLE_NAME: Final = re.compile(rf"{_PART}(?:/{_PART})*")
MAX_TABLE_NAME: Final = 128
MAX_GENERATION: Final = 1 << 62
"""Generations stay below: a reader pins one by a lock on a byte of its own, and file offsets end at 2**63."""

MAX_EPOCH: Final = (1 << 32) - 1

CLAIM_MAGIC: Final = int.from_bytes(b"ENGRMCLM", "little")
_CLAIM: Final = struct.Struct("<QI4x16s16s12xI")

LOADING: Final = "loading"
PUBLISHED: Final = "published"


class Header(NamedTuple):
    """The header line of a slot, whatever its payload is worth."""

    epoch: int
    owner: UUID
    generation: int
    payload_bytes: int
    payload_crc: int

    @property
    def reign(self) -> tuple[int, int]:
        """What orders owners: the epoch, and the host id between two that took over at once."""
        return self.epoch, self.owner.int

    @property
    def age(self) -> tuple[int, int, int]:
        """What orders directories of one pool."""
        return *self.reign, self.generation

    def to_bytes(self, pool: UUID) -> bytes:
        """Give the 64 bytes, checksum last."""
        checked = _HEADER.pack(
            MAGIC,
            self.generation,
            pool.bytes,
            self.owner.bytes,
            self.epoch,
            self.payload_bytes,
            self.payload_crc,
            0,
        )[:_CHECKED]
        return checked + crc32c(checked).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, line: bytes, *, pool: UUID) -> Header:
        """Read a header line; FormatError if it is none of `pool`."""
        magic, generation, uuid, owner, epoch, length, payload_crc, crc = _HEADER.unpack(line)
        if not any(line):
            raise FormatError("the slot is empty")
        if magic != MAGIC or crc != crc32c(line[:_CHECKED]):
            raise FormatError("the slot's header line is damaged")
        if uuid != pool.bytes:
            raise FormatError(f"the slot belongs to another pool, {UUID(bytes=uuid)}")
        return cls(epoch, UUID(bytes=owner), generation, length, payload_crc)


class Claim(NamedTuple):
    """The claim line of a slot: the last host that wanted to become the owner.

    It counts while it is above the owner in the directory: that one writes no more, and the claimant not yet. It
    stands in a line of its own, so that claiming spoils no directory, whoever else writes meanwhile.
    """

    epoch: int
    owner: UUID

    @property
    def reign(self) -> tuple[int, int]:
        """What orders owners."""
        return self.epoch, self.owner.int

    def to_bytes(self, pool: UUID) -> bytes:
        """Give the 64 bytes, checksum last."""
        checked = _CLAIM.pack(CLAIM_MAGIC, self.epoch, pool.bytes, self.owner.bytes, 0)[:_CHECKED]
        return checked + crc32c(checked).to_bytes(4, "little")

    @classmethod
    def from_bytes(cls, line: bytes, *, pool: UUID) -> Claim | None:
        """Read a claim line; None where there is no claim to this pool."""
        magic, epoch, uuid, owner, crc = _CLAIM.unpack(line)
        if magic != CLAIM_MAGIC or uuid != pool.bytes or crc != crc32c(line[:_CHECKED]):
            return None
        return cls(epoch, UUID(bytes=owner))


@dataclass(frozen=True, slots=True)
class HotList:
    """Which rows of a table are read most: `rows` ids of `id_bytes` (4 or 8) each, by falling frequency.

    `crc` is the crc32c of the ids. `served` are points (rows, share of the trace's reads that the first so
    many rows serve), in ascending order.
    """

    extent: Extent
    rows: int
    id_bytes: int
    crc: int
    served: tuple[tuple[int, float], ...]

    @property
    def bytes(self) -> int:
        """Bytes of the extent that hold ids."""
        return self.rows * self.id_bytes

    def to_json(self) -> dict[str, Any]:
        """Give the form that the payload holds."""
        return {
            "extent": list(self.extent),
            "rows": self.rows,
            "id_bytes": self.id_bytes,
            "crc": self.crc,
            "served": [list(point) for point in self.served],
        }

    @classmethod
    def from_json(cls, value: Any) -> HotList:
        """Read what `to_json` gave; FormatError for what no list could be."""
        hot = cls(
            _extent(value["extent"]),
            _count(value["rows"]),
            _count(value["id_bytes"]),
            _count(value["crc"]),
            tuple((_count(rows), _share(share)) for rows, share in value["served"]),
        )
        if hot.id_bytes not in (4, 8) or hot.extent.length < hot.bytes:
            raise FormatError(f"the directory holds an impossible hot list: {hot}")
        return hot


@dataclass(frozen=True, slots=True)
class TableEntry:
    """What the directory says of one table.

    `load` is random for each load, so that no cache of an earlier table in the same place is believed.
    `checksums` holds one crc32c per block of the extent (the last block may be shorter), little-endian,
    and `checksums_crc` is the crc32c of them all. `heads` are the rows of each head, in order, or None;
    `addressing` says with them how row ids come from token ids (engramdax.ngram.Layout.addressing).
    """

    name: str
    load: UUID
    state: str
    rows: int
    layout: RowLayout
    extent: Extent
    checksums: Extent
    checksums_crc: int
    heads: tuple[int, ...] | None
    source: dict[str, Any]
    hot: HotList | None = None
    addressing: dict[str, Any] | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the extent that hold rows."""
        return self.layout.extent_bytes(self.rows)

    def extents(self) -> list[Extent]:
        """All space that this table takes."""
        return [self.extent, self.checksums, *([self.hot.extent] if self.hot else [])]

    def retirement(self, generation: int) -> Retired:
        """Give what stands for its space once a publication of this generation removes it."""
        return Retired(self.name, self.load, generation, tuple(self.extents()))

    def to_json(self) -> dict[str, Any]:
        """Give the form that the payload holds."""
        return {
            "name": self.name,
            "load": self.load.hex,
            "state": self.state,
            "rows": self.rows,
            "layout": self.layout.to_json(),
            "extent": list(self.extent),
            "checksums": list(self.checksums),
            "checksums_crc": self.checksums_crc,
            "heads": list(self.heads) if self.heads else None,
            "source": self.source,
            "hot": self.hot.to_json() if self.hot else None,
            "addressing": self.addressing,
        }

    @classmethod
    def from_json(cls, value: Any) -> TableEntry:
        """Read what `to_json` gave; FormatError for what no table could be."""
        heads = value["heads"]
        entry = cls(
            name=str(value["name"]),
            load=UUID(hex=value["load"]),
            state=str(value["state"]),
            rows=_count(value["rows"]),
            layout=RowLayout.from_json(value["layout"]),
            extent=_extent(value["extent"]),
            checksums=_extent(value["checksums"]),
            checksums_crc=_count(value["checksums_crc"]),
            heads=None if heads is None else tuple(_count(n) for n in heads),
            source=_object(value["source"]),
            hot=None if value["hot"] is None else HotList.from_json(value["hot"]),
            addressing=None if value["addressing"] is None else _object(value["addressing"]),
        )
        if entry.state not in (LOADING, PUBLISHED):
            raise FormatError(f"table {entry.name!r} is in an unknown state {entry.state!r}")
        if not _names_a_table(entry.name):
            raise FormatError(f"the directory holds an impossible table name {entry.name!r}")
        if entry.heads is not None and sum(entry.heads) != entry.rows:
            raise FormatError(f"the heads of table {entry.name} do not add up to its {entry.rows} rows")
        return entry


@dataclass(frozen=True, slots=True)
class Retired:
    """Space of a removed table, not free before no reader can hold a directory that names it."""

    name: str
    load: UUID
    generation: int
    """The first generation without the table."""
    extents: tuple[Extent, ...]

    def to_json(self) -> dict[str, Any]:
        """Give the form that the payload holds."""
        return {
            "name": self.name,
            "load": self.load.hex,
            "generation": self.generation,
            "extents": [list(e) for e in self.extents],
        }

    @classmethod
    def from_json(cls, value: Any) -> Retired:
        """Read what `to_json` gave."""
        extents = tuple(_extent(e) for e in value["extents"])
        return cls(str(value["name"]), UUID(hex=value["load"]), _count(value["generation"]), extents)


@dataclass(frozen=True, slots=True)
class Host:
    """A host that the owner admitted: it may read the pool, and its readers are reckoned with."""

    id: UUID
    name: str

    def to_json(self) -> dict[str, Any]:
        """Give the form that the payload holds."""
        return {"id": self.id.hex, "name": self.name}

    @classmethod
    def from_json(cls, value: Any) -> Host:
        """Read what `to_json` gave."""
        return cls(UUID(hex=value["id"]), str(value["name"]))


@dataclass(frozen=True, slots=True)
class Directory:
    """One version of everything that the pool holds."""

    pool: UUID
    generation: int
    epoch: int
    owner: UUID
    hosts: tuple[Host, ...] = ()
    tables: tuple[TableEntry, ...] = ()
    retired: tuple[Retired, ...] = ()
    released: bool = False
    """Its owner gave it up: it writes no more, and who takes it over needs no other proof of that."""
    heir: UUID | None = None
    """The only host that may take a released pool without being asked for proof; None: any one."""

    @property
    def reign(self) -> tuple[int, int]:
        """What orders owners."""
        return self.epoch, self.owner.int

    @property
    def age(self) -> tuple[int, int, int]:
        """What orders directories of one pool."""
        return *self.reign, self.generation

    def host_name(self, host: UUID) -> str:
        """Give what messages call a host: its name, if it is admitted, and its id."""
        return f"{self.short_name(host)} ({host})"

    def short_name(self, host: UUID) -> str:
        """Give an admitted host's name alone, "unknown" for any other host."""
        return next((h.name for h in self.hosts if h.id == host), "unknown")

    def table(self, name: str) -> TableEntry | None:
        """Give the published table of this name."""
        return next((t for t in self.tables if t.name == name and t.state == PUBLISHED), None)

    def require(self, name: str, path: Path) -> TableEntry:
        """Give the published table of this name; TableNotFoundError says which ones the pool at `path` holds."""
        if (entry := self.table(name)) is not None:
            return entry
        names = [t.name for t in self.published()]
        more = " and more" if len(names) > 8 else ""
        raise TableNotFoundError(
            f"{path} holds no table {name!r}",
            remedy=f"it holds {', '.join(names[:8])}{more}" if names else "it is empty",
        )

    def published(self) -> list[TableEntry]:
        """Give the tables that readers see."""
        return [t for t in self.tables if t.state == PUBLISHED]

    def unfinished(self) -> list[TableEntry]:
        """Give the tables of loads that are under way or died."""
        return [t for t in self.tables if t.state != PUBLISHED]

    def taken(self) -> list[Extent]:
        """All space that is not free, apart from the metadata areas."""
        tables = [extent for table in self.tables for extent in table.extents()]
        return tables + [extent for retired in self.retired for extent in retired.extents]

    def to_slot(self, slot_bytes: int) -> tuple[bytes, bytes]:
        """Give header line and payload, padded to whole lines; SpaceError if a slot cannot hold it."""
        payload = json.dumps(
            {
                "hosts": [h.to_json() for h in self.hosts],
                "tables": [t.to_json() for t in self.tables],
                "retired": [r.to_json() for r in self.retired],
                "released": self.released,
                "heir": self.heir.hex if self.heir else None,
            },
            separators=(",", ":"),
        ).encode()
        if LINE + len(payload) > slot_bytes - LINE:
            raise SpaceError(
                f"the directory of {len(self.tables)} tables needs {LINE + len(payload)} bytes, "
                f"a slot has {slot_bytes - LINE}",
                remedy="remove tables (`engramdax rm`), and end the readers that still hold removed ones",
            )
        header = Header(self.epoch, self.owner, self.generation, len(payload), crc32c(payload)).to_bytes(self.pool)
        return header, payload.ljust(-(-len(payload) // LINE) * LINE, b"\0")


def payload_bytes(header: bytes, *, pool: UUID, slot_bytes: int) -> int:
    """Check a slot's header line and say how long its payload is; FormatError if it is none of `pool`."""
    length = Header.from_bytes(header, pool=pool).payload_bytes
    if length > slot_bytes - 2 * LINE:
        raise FormatError(f"the slot's payload of {length} bytes is longer than a slot")
    return length


def from_slot(header: bytes, payload: bytes, *, size: int, geometry: Geometry) -> Directory:
    """Read a slot whose header `payload_bytes` accepted; FormatError for anything impossible in it."""
    _, generation, pool, owner, epoch, length, crc, _ = _HEADER.unpack(header)
    if len(payload) != length or crc32c(payload) != crc:
        raise FormatError("the slot's payload is damaged")
    try:
        value = json.loads(payload)
        directory = Directory(
            UUID(bytes=pool),
            generation,
            epoch,
            UUID(bytes=owner),
            tuple(Host.from_json(h) for h in value["hosts"]),
            tuple(TableEntry.from_json(t) for t in value["tables"]),
            tuple(Retired.from_json(r) for r in value["retired"]),
            # Pools from before there were further hosts name neither.
            released=value.get("released", False) is True,
            heir=None if value.get("heir") is None else UUID(hex=value["heir"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as e:
        raise FormatError(f"the slot's payload has no directory in it: {e!r}") from e
    _check_generations(directory)
    _check_space(directory, size, geometry)
    return directory


def _check_generations(directory: Directory) -> None:
    if directory.generation >= MAX_GENERATION:
        raise FormatError(f"the slot's generation {directory.generation} is impossible")
    for retired in directory.retired:
        if retired.generation > directory.generation:
            raise FormatError(f"table {retired.name!r} was removed in a generation that is still to come")


def _check_space(directory: Directory, size: int, geometry: Geometry) -> None:
    for table in directory.tables:
        blocks = -(-table.bytes // geometry.block)
        if table.extent.length < table.bytes or table.checksums.length < blocks * CHECKSUM_BYTES:
            raise FormatError(f"table {table.name} does not fit its extents {table.extents()}")
    taken = directory.taken()
    for extent in taken:
        if extent.offset % geometry.unit or extent.length % geometry.unit or extent.end > size:
            raise FormatError(f"the directory names an extent outside the pool of {size} bytes: {extent}")
    for before, after in pairwise(sorted(taken + geometry.metadata())):
        if before.end > after.offset:
            raise FormatError(f"the directory names overlapping extents: {before} and {after}")
    names = [t.name for t in directory.published()]
    if len(set(names)) != len(names):
        raise FormatError("the directory names a table twice")


def check_table_name(name: str) -> str:
    """Give `name` back; ParameterError unless it can name a table."""
    if not _names_a_table(name):
        raise ParameterError(
            f"{name!r} cannot name a table",
            remedy=f"use up to {MAX_TABLE_NAME} letters, digits, dots, underscores and hyphens, "
            "in parts divided by single slashes, none of them '.' or '..'",
        )
    return name


def _names_a_table(name: str) -> bool:
    return len(name) <= MAX_TABLE_NAME and TABLE_NAME.fullmatch(name) is not None


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise FormatError(f"the directory holds {value!r} where a count belongs")
    return value


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{value!r} is no JSON object")
    return value


def _share(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise FormatError(f"the directory holds {value!r} where a share belongs")
    return float(value)


def _extent(value: Any) -> Extent:
    offset, length = value
    extent = Extent(_count(offset), _count(length))
    if not extent.length:
        raise FormatError("the directory names an empty extent")
    return extent


def publish_state(directory: Directory, loads: set[UUID], checksums: dict[UUID, int]) -> Directory:
    """Give the same directory with the loads in `loads` published, their checksums' crc filled in."""
    tables = tuple(
        replace(t, state=PUBLISHED, checksums_crc=checksums[t.load]) if t.load in loads else t for t in directory.tables
    )
    return replace(directory, tables=tables)
