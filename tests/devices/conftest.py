# SPDX-License-Identifier: Apache-2.0
"""Hosts to discover."""

from __future__ import annotations

from pathlib import Path

import pytest
from trees import Sysfs


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    """Give an empty sysfs with the drivers of the dax bus."""
    return Sysfs(tmp_path)
