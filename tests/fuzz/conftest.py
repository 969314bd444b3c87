# SPDX-License-Identifier: Apache-2.0
"""Time for as many inputs as are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from survival import IMAGES

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # One input that hangs is noticed long before.
    for item in items:
        if item.path.parent == HERE:
            item.add_marker(pytest.mark.timeout(300 + IMAGES // 50))
