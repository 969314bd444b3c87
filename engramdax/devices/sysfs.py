# SPDX-License-Identifier: Apache-2.0
"""sysfs as the C core reads it: objects with attributes, in bytes, of which nothing has been interpreted yet."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from engramdax._core import ffi, lib
from engramdax.errors import BackingError

if TYPE_CHECKING:
    from pathlib import Path

_ITEM: Final = struct.Struct("=6I")
_OBJECT: Final = int(lib.ED_SYSFS_OBJECT)
_PATH: Final = int(lib.ED_SYSFS_PATH)
_ATTRIBUTE: Final = int(lib.ED_SYSFS_ATTRIBUTE)
_LINK: Final = int(lib.ED_SYSFS_LINK)


@dataclass(slots=True)
class Entry:
    """An object of sysfs: a device of a bus, a dax region, a memory block. Paths are relative to sysfs' root."""

    folder: str
    """Where it was found: bus/dax/devices; "" for what belongs to the one before it."""
    name: str
    path: str = ""
    attributes: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    listings: dict[str, list[str]] = field(default_factory=dict)
    """Entries of folders below it."""
    errors: dict[str, int] = field(default_factory=dict)
    """errno by attribute, link or folder; "" is the object itself."""


def read_entries(root: Path) -> list[Entry]:
    """Read everything that discovery wants of the sysfs at `root`; BackingError where that is no folder.

    A device that goes meanwhile is left out as a whole. Releases the GIL while it reads. Thread-safe.
    """
    items, text = _read(root)
    entries: list[Entry] = []
    # Most names come many times. They are the kernel's or this project's own; a value may be anything.
    names: dict[bytes, str] = {}
    for kind, error, name_at, name_bytes, at, count in _ITEM.iter_unpack(items):
        raw = text[name_at : name_at + name_bytes]
        name = names.get(raw)
        if name is None:
            name = names[raw] = os.fsdecode(raw)
        value = text[at : at + count]
        if kind == _OBJECT:
            entry = Entry(name, os.fsdecode(value))
            entries.append(entry)
            name = ""
        if error:
            entry.errors[name] = error
        elif kind == _ATTRIBUTE:
            entry.attributes[name] = value
        elif kind == _PATH:
            entry.path = os.fsdecode(value)
        elif kind == _LINK:
            entry.links[name] = os.fsdecode(value)
        elif kind != _OBJECT:
            entry.listings.setdefault(name, []).append(os.fsdecode(value))
    return entries


def _read(root: Path) -> tuple[bytes, bytes]:
    tree: Any = ffi.new("struct ed_sysfs *")
    if error := lib.ed_sysfs_read(os.fsencode(root), tree):
        raise BackingError(f"cannot read {root}: {os.strerror(-error)}", remedy="sysfs has to be mounted there")
    try:
        items = bytes(ffi.buffer(tree.items, tree.count * _ITEM.size)) if tree.count else b""
        return items, bytes(ffi.buffer(tree.text, tree.text_bytes)) if tree.count else b""
    finally:
        lib.ed_sysfs_free(tree)
