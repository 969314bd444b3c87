# SPDX-License-Identifier: Apache-2.0
"""The label area of a CXL pmem memdev: which namespaces stand on it, whether or not this host has its region.

The kernel shows namespaces only below a region, and keeps the labels that it read at boot; another host may have
made namespaces since. The formats are those of the UEFI specification (namespace labels 1.1, 1.2) and of CXL 2.0
9.13.2 (2.1), of which Linux writes 1.2 on CXL memory, too.
"""

from __future__ import annotations

import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from uuid import UUID

from engramdax.devices import tools
from engramdax.errors import FormatError, ToolError

if TYPE_CHECKING:
    from engramdax.devices.tree import Memdev

_SIGNATURE: Final = b"NAMESPACE_INDEX\0"
_INDEX_BYTES: Final = 72
_CXL_NAMESPACE: Final = UUID("68bb2c0a-5a77-4937-9f85-3caf41a0f93c")
_NEWER: Final = {(1, 2), (2, 3), (3, 1)}
"""Sequence numbers go round 1, 2, 3; (a, b) where b follows a."""


@dataclass(frozen=True, slots=True)
class Label:
    """One memdev's part of a namespace."""

    namespace: UUID
    ways: int
    """Memdevs that the namespace is interleaved over."""
    position: int
    """Of this memdev among them."""
    size: int
    """Bytes on this memdev."""
    region: UUID | None
    """Only in labels of version 2.1."""


def read_labels(memdev: Memdev) -> list[Label]:
    """Ask the memdev itself, past what the kernel remembers."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "labels"
        done = tools.run(["cxl", "read-labels", "-o", str(file), memdev.name])
        try:
            data = file.read_bytes()
        except OSError:
            data = b""
    if done.code or not data:
        raise ToolError(f"`{done.command}`: {done.problem}", remedy="look at the kernel's log (dmesg)")
    return parse_labels(data)


def parse_labels(data: bytes) -> list[Label]:
    """Give the labels in use of a label area; none where it was never initialised."""
    indexes = [index for place in _places(data) if (index := _index(data, place)) is not None]
    if not indexes:
        return []
    if len(indexes) == 2 and (indexes[0].sequence, indexes[1].sequence) in _NEWER:
        indexes.reverse()
    index = indexes[0]
    labels = []
    for slot in range(index.slots):
        if index.free[slot // 8] >> slot % 8 & 1:
            continue
        place = index.labels + slot * index.label_bytes
        label = data[place : place + index.label_bytes]
        if len(label) < index.label_bytes:
            raise FormatError("the label area names a slot behind its end", remedy="look at it with `cxl read-labels`")
        if (found := _label(label, index.major)) is not None:
            labels.append(found)
    return labels


@dataclass(frozen=True, slots=True)
class _Index:
    sequence: int
    labels: int
    slots: int
    label_bytes: int
    major: int
    free: bytes


def _places(data: bytes) -> list[int]:
    """Give where the two index blocks begin: the second behind the first, whose size the first good one tells."""
    places = [0]
    first = data[:_INDEX_BYTES]
    if len(first) == _INDEX_BYTES and first.startswith(_SIGNATURE):
        places.append(struct.unpack_from("<Q", first, 32)[0])
    else:  # the first one is damaged: blocks are multiples of 256 bytes
        places += [at for at in range(256, min(len(data), 128 << 10), 256) if data.startswith(_SIGNATURE, at)][:1]
    return places


def _index(data: bytes, place: int) -> _Index | None:
    block = data[place : place + _INDEX_BYTES]
    if len(block) < _INDEX_BYTES or not block.startswith(_SIGNATURE):
        return None
    size_code = block[19]
    sequence, _own, size, _other, labels, slots, major, _minor, checksum = struct.unpack_from("<IQQQQIHHQ", block, 20)
    whole = data[place : place + size]
    if len(whole) < size or size < _INDEX_BYTES or size % 4 or sequence not in (1, 2, 3):
        return None
    if fletcher64(whole[:64] + bytes(8) + whole[72:]) != checksum:
        return None
    free = whole[_INDEX_BYTES:]
    label_bytes = 1 << (7 + size_code)
    if label_bytes < (256 if major >= 2 else 128):
        return None
    return _Index(sequence, labels, slots, label_bytes, major, free) if slots <= len(free) * 8 else None


def _label(label: bytes, major: int) -> Label | None:
    if major >= 2:
        kind, uuid = UUID(bytes=label[:16]), UUID(bytes=label[16:32])
        if kind != _CXL_NAMESPACE:
            return None
        ways, position = struct.unpack_from("<HH", label, 100)
        (size,) = struct.unpack_from("<Q", label, 112)
        return Label(uuid, ways, position, size, UUID(bytes=label[128:144]))
    ways, position = struct.unpack_from("<HH", label, 84)
    (size,) = struct.unpack_from("<Q", label, 112)
    return Label(UUID(bytes=label[:16]), ways, position, size, None)


def fletcher64(data: bytes) -> int:
    """Give the checksum of the formats: Fletcher's over 32-bit little-endian words."""
    low = high = 0
    for (word,) in struct.iter_unpack("<I", data):
        low = (low + word) & 0xFFFFFFFF
        high = (high + low) & 0xFFFFFFFF
    return high << 32 | low
