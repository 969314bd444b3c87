# SPDX-License-Identifier: Apache-2.0
"""What each version of a table holds: a function of name, version and row, so that a wrong byte is known as one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np

ROW_BYTES = 264
LANES = ROW_BYTES // 8

Array = np.ndarray[Any, Any]


def rows_of(name: str, version: int, ids: Array) -> Array:
    """Give these rows of a version, uint8 [n, ROW_BYTES]; ids: int64 [n]."""
    first = (crc32(name.encode()) << 32 | version) * 0x9E3779B97F4A7C15 % (1 << 64)
    lanes = ids.astype(np.uint64)[:, None] * np.uint64(LANES) + np.arange(LANES, dtype=np.uint64)
    # The finaliser of splitmix64: every bit of name, version and place moves every bit of the lane.
    mixed = lanes + np.uint64(first)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))).view(np.uint8).reshape(len(ids), ROW_BYTES)


def write_source(folder: Path, name: str, version: int, rows: int) -> Path:
    """Write what `load` takes for this version; `version_of` finds the version in the table's description."""
    path = folder / f"{name}-v{version}.npy"
    np.save(path, rows_of(name, version, np.arange(rows)))
    return path


def version_of(source: dict[str, Any]) -> int:
    """Give the version that a table was loaded from, by what the directory says of its source."""
    found = re.search(r"-v(\d+)\.npy$", source["files"][0]["path"])
    assert found, source
    return int(found[1])
