# SPDX-License-Identifier: Apache-2.0
"""Makers of table files for the tests: random bytes, .safetensors with any header, indices."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from engramdax.ingest.source import TableSource


def random_bytes(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(count)


def safetensors_bytes(header: Any, data: bytes = b"") -> bytes:
    """A file with this header: bytes as they are, anything else as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int], bytes]]) -> Path:
    """A valid file of tensors, each (dtype, shape, bytes), in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [len(data), len(data) + len(content)],
        }
        data += content
    path.write_bytes(safetensors_bytes(header, data))
    return path


def write_index(path: Path, weight_map: dict[str, str]) -> Path:
    path.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": weight_map}))
    return path


def read_all(source: TableSource) -> bytes:
    out = np.empty(source.nbytes, dtype=np.uint8)
    source.read_into(0, out)
    return out.tobytes()


def read_part(source: TableSource, offset: int, length: int) -> bytes:
    out = bytearray(length)
    source.read_into(offset, memoryview(out))
    return bytes(out)


def interleaved(rows: int, *columns: bytes) -> bytes:
    """The plain reference of packing: row r of each dense column, one after the other."""
    parts = [np.frombuffer(column, dtype=np.uint8).reshape(rows, -1) for column in columns]
    return np.concatenate(parts, axis=1).tobytes()


def open_files(path: Path) -> int:
    """How many descriptors of this process are open on files below a folder."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += str(entry.readlink()).startswith(os.fspath(path))
        except FileNotFoundError:
            continue
    return count
