# SPDX-License-Identifier: Apache-2.0
"""Changes to bytes, texts and JSON values that their readers are likely to have overlooked."""

from __future__ import annotations

import copy
import json
import mmap
import random
from collections.abc import Sequence
from typing import Any, Final, NamedTuple


class Mutant(NamedTuple):
    """The file of the corpus, or the kind of file, that was changed, and what it became."""

    name: str
    data: bytes


NUMBERS: Final = (
    0,
    1,
    2,
    63,
    64,
    255,
    256,
    1024,
    48 << 10,
    (48 << 10) + 1,
    (1 << 31) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
"""Around which fields of fixed widths go over; 48 KiB is the size of the metadata images."""

TEXTS: Final = (
    "",
    "0",
    "-1",
    "00",
    "0123",
    "0x",
    "0X10",
    "0x" + "f" * 17,
    "0x" + "f" * 6000,
    "9" * 20,
    "9" * 5000,
    "18446744073709551615",
    "18446744073709551614",
    "-9223372036854775809",
    "1e999",
    "1.2.3",
    "NaN",
    "²",
    "٣",
    "\ud800",
    "a\nb",
    "\x1b[2J",
    "\0",
    "../..",
    "x" * 300,
)
"""Numbers as no kernel and no tool writes them, and texts that break what they are pasted into."""

JUNK: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    1.5,
    1e308,
    10**400,
    float("inf"),
    [],
    [1],
    {},
    {"a": 1},
    *NUMBERS,
    *TEXTS,
)


def flip(data: bytearray | mmap.mmap, first: int, length: int, chance: random.Random) -> None:
    """Change a few bytes of [first, first + length), or put a telling number there."""
    for _ in range(chance.randint(1, 4)):
        at = first + chance.randrange(length)
        if chance.random() < 0.5:
            data[at] ^= 1 << chance.randrange(8)
        else:
            piece = (chance.choice(NUMBERS) & ((1 << 64) - 1)).to_bytes(8, "little")[: max(0, first + length - at)]
            data[at : at + len(piece)] = piece


def changed_value(value: Any, chance: random.Random) -> Any:
    """Change, drop or double a part of a JSON value; it may be changed in place."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(list(value))
        kind = chance.random()
        if kind < 0.1:
            del value[key]
        elif kind < 0.15:
            value["unknown"] = copy.deepcopy(value[key])
        elif kind < 0.2:
            value[chance.choice(TEXTS)] = value.pop(key)
        else:
            value[key] = changed_value(value[key], chance)
        return value
    if isinstance(value, list) and value and chance.random() < 0.85:
        index = chance.randrange(len(value))
        if chance.random() < 0.15:
            value.append(copy.deepcopy(value[index]))
        else:
            value[index] = changed_value(value[index], chance)
        return value
    if type(value) is int and chance.random() < 0.5:
        return value + chance.choice((-1024, -1, 1, 64, 1024))
    return copy.deepcopy(chance.choice(JUNK))


def changed_bytes(data: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Change bytes with no regard to what they mean: flipped, cut off, doubled, taken from `others`, made numbers."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        if not changed:
            break
        kind, at = chance.random(), chance.randrange(len(changed))
        end = min(len(changed), at + chance.choice((1, 2, 8, 64)))
        if kind < 0.35:
            flip(changed, 0, len(changed), chance)
        elif kind < 0.45:
            del changed[at:]
        elif kind < 0.55:
            del changed[at:end]
        elif kind < 0.65:
            changed[at:at] = changed[at:end] * chance.choice((1, 2, 100))
        elif kind < 0.75 and others:
            other = chance.choice(others)
            changed[at:] = other[min(at, len(other)) :]
        elif kind < 0.9:
            while end < len(changed) and chr(changed[end]).isalnum():
                end += 1
            changed[at:end] = chance.choice(TEXTS).encode("utf-8", "surrogatepass")
        else:
            changed[at:at] = chance.randbytes(chance.randint(1, 16))
    return bytes(changed)


def changed_json(text: bytes, chance: random.Random, others: Sequence[bytes] = ()) -> bytes:
    """Change a JSON text: some of its values and, in a quarter of all, its bytes; a few become too deep."""
    kind = chance.random()
    if kind < 0.25:
        return changed_bytes(text, chance, others)
    if kind < 0.27:
        return chance.choice((b"[", b'{"a":', b'[[],{"a":')) * 3000
    value = json.loads(text)
    for _ in range(chance.randint(1, 3)):
        value = changed_value(value, chance)
    return dumped(value, chance)


def dumped(value: Any, chance: random.Random) -> bytes:
    """Write a JSON value, compact or as the tools write it, with escapes or without."""
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 2)))
    return text.encode("utf-8", "surrogatepass")
