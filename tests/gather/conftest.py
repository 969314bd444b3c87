# SPDX-License-Identifier: Apache-2.0
"""Published tables beside the arrays that they were made from."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loaded import Loaded

import engramdax

MIB = 1 << 20


@pytest.fixture
def load(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Callable[..., Loaded]:
    """Give a function that publishes random rows in a pool of their own and opens it."""
    numbers = itertools.count()

    def make(rows: int = 20_000, row_bytes: int = 320, heads: tuple[int, ...] | None = None) -> Loaded:
        number = next(numbers)
        array = np.random.default_rng(number).integers(0, 256, (rows, row_bytes), np.uint8)
        size = -(-array.nbytes // (2 * MIB)) * 2 * MIB + 32 * MIB
        path = make_pool(size, f"gather{number}")
        load_array(path, f"table{number}", array, heads)
        return Loaded(engramdax.open(path)[f"table{number}"], array, path)

    return make


@pytest.fixture
def workers() -> Iterator[Callable[[int], None]]:
    """Give a function that lets this many threads gather at once, whatever the machine has."""
    yield lambda threads: engramdax.configure(threads=threads)
    engramdax.configure(threads=None, spin_us=100)


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Give a function that runs Python source in a process of its own."""

    def run(source: str, *arguments: Any, before: tuple[str, ...] = (), **variables: str) -> Any:
        return subprocess.run(
            [*before, sys.executable, "-X", "dev", "-W", "ignore", "-c", textwrap.dedent(source), *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=os.environ | variables,
        )

    return run
