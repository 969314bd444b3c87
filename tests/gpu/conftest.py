# SPDX-License-Identifier: Apache-2.0
"""A pool in memory that can be registered, and tables in it; everything here needs a CUDA device."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax.pool.provision import Consent, plan_file, plan_removal
from engramdax.pool.steps import carry_out


def pytest_collection_modifyitems(items):
    reason = _missing()
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.gpu)
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _missing() -> str:
    try:
        import torch
    except ImportError:
        return "PyTorch is not installed"
    return "" if torch.cuda.is_available() else "there is no CUDA device"


@pytest.fixture
def pool_path(tmp_path):
    """A pool on tmpfs, which can be registered."""
    path = Path("/dev/shm") / f"engramdax-test-{os.getpid()}-{tmp_path.name}"  # noqa: S108 - tmpfs is the point
    carry_out(plan_file(path, 256 << 20, name="gpu", consent=Consent()).steps)
    yield path
    carry_out(plan_removal(path, force=True).steps)


@pytest.fixture
def table_of(pool_path, load_array):
    """Give a function that loads an array and opens it as a Table."""

    def make(array: np.ndarray, name: str = "t", heads=None):
        load_array(pool_path, name, array, heads)
        with engramdax.open(pool_path) as pool:
            return pool[name]

    return make
