# SPDX-License-Identifier: Apache-2.0
"""Trees of files as texts: a line for each, "PATH=CONTENT" for a file, "PATH>TARGET" for a link, or a folder's path.

tests/fuzz/fuzz_sysfs.c reads the same.
"""

# ruff: noqa: PTH102, PTH103, PTH118, PTH120, PTH211
# Names are bytes, as the kernel has them, and no Path is.

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Final, NamedTuple

from mutants import TEXTS, changed_bytes

KINDS: Final = {b"=": "file", b">": "link"}


class Entry(NamedTuple):
    """A file, link, folder or pipe; bytes, as the kernel has names."""

    path: bytes
    kind: str
    content: bytes = b""


TARGETS: Final = (
    b"",
    b".",
    b"..",
    b"../..",
    b"../../../../../../../../../../..",
    b"nowhere",
    b"/nowhere",
    b"../" * 300,
    b"x" * 255,
    b"x/" * 700,
    b"\xff\xfe",
    b"driver",
    b"../../../bus/dax/devices",
    b"../devices",
)
"""Where no link of sysfs leads; none reaches a device of this machine."""

NAMES: Final = (
    b"dax0.0",
    b"dax00.00",
    b"dax99999999999999999999.1",
    b"dax1.",
    b"mem18446744073709551616",
    b"mem0",
    b"region0",
    b"namespace0.0",
    b"nmem0",
    b"endpoint10",
    b"decoder10.0",
    b"dax\xff.0",
    b"target2",
    b"mapping1",
    b"size",
    b"driver",
    b"uport",
    b"memory32",
    b"a" * 255,
)


def entries(text: bytes) -> list[Entry]:
    """Read a text."""
    found = []
    for line in text.splitlines():
        at = next((i for i, byte in enumerate(line) if bytes([byte]) in KINDS), None)
        if at is None:
            found.append(Entry(line, "folder"))
        else:
            found.append(Entry(line[:at], KINDS[line[at : at + 1]], line[at + 1 :]))
    return found


def changed_entries(tree: list[Entry], chance: random.Random) -> list[Entry]:
    """Change some entries of a tree: what they hold, what they are, where they are, whether they are."""
    tree = list(tree)
    for _ in range(chance.choice((1, 2, 3, 10))):
        index = chance.randrange(len(tree))
        entry = tree[index]
        kind = chance.random()
        if kind < 0.1:
            del tree[index]
            if not tree:
                break
        elif kind < 0.2:
            tree[index] = entry._replace(kind=chance.choice(("file", "link", "folder", "pipe")))
        elif kind < 0.35:
            folder, _, _ = entry.path.rpartition(b"/")
            tree.append(chance.choice(tree)._replace(path=folder + b"/" + chance.choice(NAMES)))
        elif entry.kind == "link":
            others = [other.content for other in tree if other.kind == "link"]
            tree[index] = entry._replace(content=chance.choice(TARGETS if chance.random() < 0.5 else others or TARGETS))
        elif entry.kind == "file":
            tree[index] = entry._replace(content=changed_content(entry.content, chance))
    return tree


def changed_content(content: bytes, chance: random.Random) -> bytes:
    kind = chance.random()
    if kind < 0.5:
        text = chance.choice(TEXTS)
        return text.encode("utf-8", "surrogatepass")
    if kind < 0.9:
        return changed_bytes(content, chance) if content else chance.randbytes(8)
    return chance.choice((b"", b"\n", b"0-99999999999999999", b"1" * 5000, b"1 " * 2048, b"\xff" * 64))


def write(tree: list[Entry], root: Path) -> None:
    """Make a tree below `root`; what cannot be, because a file is where a folder would be, is left out."""
    for entry in tree:
        path = os.path.join(os.fsencode(root), entry.path)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if entry.kind == "folder":
                os.mkdir(path)
            elif entry.kind == "link":
                os.symlink(entry.content, path)
            elif entry.kind == "pipe":
                os.mkfifo(path)
            else:
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
                os.write(fd, entry.content + b"\n")
                os.close(fd)
        except (OSError, ValueError):  # a NUL, among others
            continue
