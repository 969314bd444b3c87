# SPDX-License-Identifier: Apache-2.0
"""Bytes stored to and loaded from a dax device in a guest, by a mapping."""

from __future__ import annotations

from tools.rack.guest import Guest

MAP = """
import mmap, os
device = os.path.basename({path!r})
size = int(open(f"/sys/bus/dax/devices/{{device}}/size").read())
memory = mmap.mmap(os.open({path!r}, os.O_RDWR), size)
"""


def store(host: Guest, path: str, offset: int, data: bytes) -> None:
    """Store bytes at an offset."""
    host.python(MAP.format(path=path) + f"memory[{offset}:{offset + len(data)}] = {data!r}")


def load(host: Guest, path: str, offset: int, count: int) -> bytes:
    """Load bytes from an offset."""
    done = host.python(MAP.format(path=path) + f"print(memory[{offset}:{offset + count}].hex())")
    return bytes.fromhex(done.stdout)
