# SPDX-License-Identifier: Apache-2.0
"""A place for pools of real memory, where stores survive the process and no disk is in the way."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engramdax.pool import volume

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - shared memory is the point
NEEDED = 768 << 20


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Give an empty folder: in shared memory where that has the room, else on the disk."""
    try:
        status = os.statvfs(SHARED_MEMORY)
        roomy = status.f_bavail * status.f_frsize > NEEDED
    except OSError:
        roomy = False
    with tempfile.TemporaryDirectory(prefix="engramdax-test-", dir=SHARED_MEMORY if roomy else tmp_path) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take metadata that a dead writer left for what they are: no publication is under way."""
    monkeypatch.setattr(volume, "SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(volume, "RETRY_SECONDS", 0.0)
