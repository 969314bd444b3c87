# SPDX-License-Identifier: Apache-2.0
"""Hosts to discover."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from trees import DATA, Captured, Host, Sysfs, unpack


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    """Give an empty sysfs with the drivers of the dax bus."""
    return Sysfs(tmp_path)


@pytest.fixture(scope="session")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Captured:
    """Give a function that gives a captured host by its name, unpacked once."""

    @functools.cache
    def give(name: str) -> Host:
        return unpack(DATA / f"{name}.tar.gz", tmp_path_factory.mktemp(name))

    return give
