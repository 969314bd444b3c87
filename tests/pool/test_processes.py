# SPDX-License-Identifier: Apache-2.0
"""What /proc tells of a process, whatever its files are called."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from engramdax.locks import _maps_device
from engramdax.processes import shared_mappings

SELF = Path("/proc/self")


@pytest.mark.parametrize(
    "name", [b"plain", b"two words", b"no utf-8 \xe9", b"\x85", "line\u2028break".encode(), b"\x0b\r"]
)
def test_shared_mapping_is_found_whatever_the_file_is_called(tmp_path: Path, name: bytes) -> None:
    file = tmp_path / os.fsdecode(name)
    file.write_bytes(bytes(mmap.PAGESIZE))
    before = set(shared_mappings(SELF))
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0), mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE):
        (link,) = set(shared_mappings(SELF)) - before
        assert link in set((SELF / "map_files").iterdir())
        # The search for who maps a device gets past it; None where this user may not follow the link.
        assert _maps_device(SELF, os.makedev(1, 3)) is not True


def test_process_that_is_gone_maps_nothing() -> None:
    assert _maps_device(Path("/proc/0"), os.makedev(1, 3)) is False
