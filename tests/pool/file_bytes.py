# SPDX-License-Identifier: Apache-2.0
"""The bytes of a pool's file, read and written past the pool."""

from __future__ import annotations

from pathlib import Path


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def read_bytes(path: Path, offset: int, length: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)
