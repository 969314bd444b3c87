# SPDX-License-Identifier: Apache-2.0
"""Where there is no CUDA device, asking for one is an error that says what is missing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax._core import ffi, lib
from engramdax.errors import CudaError

pytestmark = pytest.mark.skipif(lib.ed_cuda_open() == ffi.NULL, reason="there is a CUDA device")


@pytest.fixture
def table(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> engramdax.Table:
    path = make_pool()
    load_array(path, "t", np.arange(64, dtype=np.uint8).reshape(8, 8))
    return engramdax.open(path)["t"]


def test_a_table_says_that_there_is_no_device(table: engramdax.Table) -> None:
    pytest.importorskip("cuda.bindings.driver", reason="cuda-python is not installed")
    with pytest.raises(CudaError, match=r"no CUDA device can be used: .*; check nvidia-smi") as caught:
        table.cuda()
    assert caught.value.exit_code == 1
    assert (table.gather([3]) == np.arange(24, 32)).all()


def test_a_missing_package_is_named(table: engramdax.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(CudaError, match=r"cuda-python is not installed; pip install 'engramdax\[cuda\]'"):
        table.cuda()
