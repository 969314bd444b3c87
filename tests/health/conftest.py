# SPDX-License-Identifier: Apache-2.0
"""Devices of captured hosts, and tools that say what a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tools_output import Cxl

from tests.devices.trees import DATA, Host, unpack


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Give a captured host with a device of each kind: mem0 is behind the volatile one, mem1 the persistent one."""
    return unpack(DATA / "devdax-h0.tar.gz", tmp_path_factory.mktemp("devdax-h0"))


@pytest.fixture
def cxl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cxl:
    cxl = Cxl(tmp_path)
    monkeypatch.setenv("PATH", f"{cxl.folder}:{os.environ['PATH']}")
    return cxl
