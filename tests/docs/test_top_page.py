# SPDX-License-Identifier: Apache-2.0
"""The page on `top` against the code: where everything in a page of counters lies, and the keys of the JSON."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

from engramdax import counters

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/top.md").read_text()


def places(heading: str) -> list[tuple[int, int]]:
    """Give (first, last) byte of each row of a table of the page."""
    (table,) = re.findall(rf"^\| {heading} \| \|\n\|---\|---\|\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [(int(first), int(last)) for first, last in re.findall(r"^\| (\d+) to (\d+) \|", table, re.MULTILINE)]


def fields(layout: struct.Struct, at: int) -> list[tuple[int, int]]:
    found = []
    for count, kind in re.findall(r"(\d*)([a-zA-Z])", layout.format):
        size = struct.calcsize(f"<{count}{kind}")
        if kind != "x":
            found.append((at, at + size - 1))
        at += size
    return found


def test_every_byte_of_a_page_is_where_the_page_says() -> None:
    assert places("bytes of the header") == fields(counters.HEADER, 0)
    assert places("bytes of a slot") == fields(counters.COUNTS, 0) + fields(counters.TABLE, counters.TABLE_AT)
    assert f"{counters.PAGE_BYTES:,} bytes, little-endian" in PAGE
    assert f"{counters.SLOTS} slots of {counters.SLOT_BYTES} bytes" in PAGE
    assert f"adds 2^{counters.CALLS_SHIFT}" in PAGE
    assert f"2^{counters.CALLS_BITS} calls" in PAGE
    assert f"`{counters.MAGIC.decode()}`" in PAGE
    assert f"mode {counters.MODE:04o}" in PAGE


def test_every_key_of_the_json_is_on_the_page() -> None:
    schema = json.loads((ROOT / "docs/health/schema.json").read_text())["$defs"]
    top = schema["top"]
    items = [top["properties"][name]["items"] for name in ("tables", "processes")]
    for keys in (top["required"], schema["rates"]["required"], *(item["required"] for item in items)):
        for key in keys:
            assert f"`{key}`" in PAGE, key
