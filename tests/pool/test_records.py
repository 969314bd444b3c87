# SPDX-License-Identifier: Apache-2.0
"""What a host remembers of its pools, whoever wrote it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from engramdax.pool.records import Assembly, Record, read_records, record_of, write_record

POOL = UUID("aee48d17-4f7e-45b2-b310-3abf2361e06f")
ASSEMBLY = Assembly(
    "cxl-pmem",
    memdevs=("0xfedcba9876543210", "0000:0f:00.0"),
    granularity=4096,
    region_uuid=str(UUID(int=1)),
    namespace=str(UUID(int=2)),
    resource=0x410000000,
    align=2 << 20,
    made=("region", "namespace"),
    before="raw",
)


def file_of(record: Record) -> Path:
    return Path(os.environ["ENGRAMDAX_STATE_DIR"]) / "pools" / f"{record.uuid}.json"


def test_record_is_read_as_it_was_written() -> None:
    record = Record(str(POOL), "ram", "/dev/dax2.0", joined=True, assembly=ASSEMBLY)
    write_record(record)
    assert record_of(POOL) == record


def test_record_of_an_earlier_version_is_read() -> None:
    record = Record(str(POOL), "ram", "/dev/dax2.0")
    write_record(record)
    old = {
        "uuid": record.uuid,
        "name": "ram",
        "path": "/dev/dax2.0",
        "huge_page_bytes": 0,
        "huge_pages": 0,
        "mount": "",
    }
    file_of(record).write_text(json.dumps(old))
    assert record_of(POOL) == record


@pytest.mark.parametrize(
    "change",
    [
        {"joined": 1},
        {"assembly": 7},
        {"assembly": {}},
        {"assembly": {"origin": "hmem", "memdevs": 7}},
        {"assembly": {"origin": "hmem", "memdevs": [7]}},
        {"assembly": {"origin": "hmem", "resource": -1}},
        {"assembly": {"origin": "hmem", "align": True}},
        {"assembly": {"origin": None}},
        {"assembly": {"origin": "hmem", "color": "red"}},
    ],
)
def test_damaged_record_is_none(change: dict[str, Any]) -> None:
    record = Record(str(POOL), "ram", "/dev/dax2.0", assembly=ASSEMBLY)
    write_record(record)
    value = json.loads(file_of(record).read_text())
    file_of(record).write_text(json.dumps({**value, **change}))
    assert read_records() == []
