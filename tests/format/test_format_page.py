# SPDX-License-Identifier: Apache-2.0
"""docs/format.md says what the code does: offsets, keys, types and limits."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path
from typing import Any

from tiny_pool import directory, entry

from engramdax.demo.checkpoint import write_checkpoint
from engramdax.format import directory as directories
from engramdax.format import superblock as superblocks
from engramdax.format import tombstone as tombstones
from engramdax.format.directory import MAX_GENERATION, MAX_TABLE_NAME, HotList
from engramdax.format.geometry import LINE, MIB, SMALLEST_POOL, SUPERBLOCK_BYTES, Extent, standard
from engramdax.format.layout import ITEM_SIZES, MAX_ROW_BYTES
from engramdax.ingest.open import open_sources
from engramdax.pool.engram import engram_loads

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
ITEM = re.compile(r"(\d*)([a-zA-Z])")

Rows = list[list[str]]


def tables_under(heading: str) -> list[Rows]:
    """All tables of a section, without their headings: rows of cells."""
    (section,) = re.findall(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    blocks = re.findall(r"(?:^\|.*\|\n)+", section, re.MULTILINE)
    return [[[cell.strip() for cell in line.strip("|").split("|")] for line in b.splitlines()[2:]] for b in blocks]


def places(rows: Rows) -> list[tuple[int, int]]:
    return [(int(offset), int(size)) for offset, size, _ in rows if size]


def items(code: struct.Struct) -> list[tuple[int, int]]:
    """Offset and size of each item of a struct, "3Q" being one."""
    assert code.format[0] == "<"
    at, found = 0, []
    for count, kind in ITEM.findall(code.format[1:]):
        size = struct.calcsize(f"<{count}{kind}")
        found.append((at, size))
        at += size
    assert at == code.size
    return found


def keys(rows: Rows) -> list[str]:
    return [row[0].strip("`") for row in rows]


def payload(written: directories.Directory) -> Any:
    header, data = written.to_slot(4096)
    return json.loads(data[: directories.payload_bytes(header, pool=written.pool, slot_bytes=4096)])


def test_the_superblock_table_is_the_struct_and_the_checksum() -> None:
    (rows,) = tables_under("Superblock")
    head = superblocks._HEAD.size
    tail = [(head, superblocks._CRC_OFFSET - head), (superblocks._CRC_OFFSET, superblocks._CRC.size)]
    assert places(rows) == items(superblocks._HEAD) + tail
    assert rows[0][2] == f"magic, `{superblocks.MAGIC.decode()}`"
    assert rows[1][2] == f"version, {superblocks.VERSION}"
    assert rows[2][2] == f"size of the superblock, {SUPERBLOCK_BYTES}"


def test_the_slot_table_is_the_header_struct() -> None:
    (rows,) = tables_under("Directory slot")
    assert places(rows) == items(directories._HEADER)
    assert rows[0][2] == f"magic, `{directories.MAGIC.to_bytes(8, 'little').decode()}`"
    assert rows[-1][0] == str(LINE)
    assert rows[-2][2] == f"crc32c of bytes 0 to {directories._CHECKED - 1}"


def test_the_tombstone_table_is_its_struct() -> None:
    (rows,) = tables_under("Tombstone")
    assert places(rows) == [*items(tombstones._LINE)[:5], (44, 16), (60, 4)]
    assert tombstones._LINE.size == LINE
    assert rows[0][2] == f"magic, `{tombstones.MAGIC.decode()}`"
    assert rows[-1][2] == f"crc32c of bytes 0 to {tombstones._CHECKED - 1}"


def test_the_places_are_those_that_provisioning_chooses() -> None:
    (rows,) = tables_under("Where things lie")
    small, large = standard(64 * MIB), standard(1 << 40)
    end = 1 << 40
    assert rows[0][1] == "0 and 2 MiB"
    assert small.superblocks == (0, 2 * MIB)
    assert rows[0][2] == "0, 2 MiB and *end* - 6 MiB"
    assert large.superblocks == (0, 2 * MIB, end - 6 * MIB)
    assert [row[1:] for row in rows[1:3]] == [["4 MiB", "4 MiB"], ["8 MiB", "*end* - 4 MiB"]]
    assert small.slots == (4 * MIB, 8 * MIB)
    assert large.slots == (4 * MIB, end - 4 * MIB)
    assert small.slot_bytes == large.slot_bytes == 4 * MIB
    assert small.unit == large.unit == 2 * MIB


def test_every_key_of_the_payload_is_on_the_page_and_no_other() -> None:
    hot = HotList(Extent(22 << 10, 1024), 3, 4, 1, ((3, 0.5),))
    value = payload(directory(tables=(entry("d", 20 << 10, hot=hot),)))
    table = value["tables"][0]
    layout, fields = tables_under("Layout")[:2]
    for found, rows in (
        (value, tables_under("Payload")[0]),
        (table, tables_under("Table")[0]),
        (table["layout"], layout),
        (table["layout"]["fields"][0], fields),
        (table["hot"], tables_under("Hot list")[0]),
        (value["hosts"][0], tables_under("Host")[0]),
        (value["retired"][0], tables_under("Retired space")[0]),
    ):
        assert list(found) == keys(rows)


def test_every_key_of_the_addressing_is_on_the_page_and_no_other(tmp_path: Path) -> None:
    checkpoint = tmp_path / "small"
    write_checkpoint(checkpoint, vocab_size=50)
    sources = open_sources([checkpoint], engram=True)
    try:
        addressing = engram_loads(sources, [checkpoint], None)[0].addressing
    finally:
        for source in sources:
            source.close()
    assert addressing is not None
    assert list(addressing) == keys(tables_under("Addressing")[0])


def test_the_element_types_are_those_of_the_code() -> None:
    sizes = {name: int(size) for size, names in tables_under("Layout")[2] for name in re.findall(r"`(\w+)`", names)}
    assert sizes == ITEM_SIZES


def test_the_limits_are_those_of_the_code() -> None:
    limits = dict(tables_under("Limits")[0])
    assert limits["pool"] == f"{SMALLEST_POOL // MIB} MiB at least"
    assert limits["generation"].startswith(f"below 2^{MAX_GENERATION.bit_length() - 1}:")
    assert limits["bytes of a row"] == f"{MAX_ROW_BYTES // MIB} MiB at most"
    assert limits["characters of a table's name"] == f"{MAX_TABLE_NAME} at most"
    assert limits["bytes of a directory"].endswith(f"{standard(SMALLEST_POOL).slot_bytes // MIB} MiB")


def test_the_claim_table_is_the_claim_struct() -> None:
    (rows,) = tables_under("Claim line")
    sizes = [(int(offset), int(size)) for offset, size, _ in rows]
    # The struct has its padding without a name.
    assert [place for place in sizes if place not in ((12, 4), (48, 12))] == [
        (0, 8),
        (8, 4),
        (16, 16),
        (32, 16),
        (60, 4),
    ]
    assert directories._CLAIM.format == "<QI4x16s16s12xI"
    assert directories._CLAIM.size == LINE
    assert rows[0][2] == f"magic, `{directories.CLAIM_MAGIC.to_bytes(8, 'little').decode()}`"
