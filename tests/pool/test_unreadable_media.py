# SPDX-License-Identifier: Apache-2.0
"""Metadata and checksums that cannot be read are errors, as rows are, and not the end of the process."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax.errors import BackingError, DamagedTableError, FormatError
from engramdax.format.geometry import MIB
from engramdax.pool.writer import Writer

ROWS = np.random.default_rng(0).integers(0, 256, (40_000, 64), np.uint8)


@pytest.fixture
def truncated(make_pool: Callable[..., Path], load_array: Callable[..., object]) -> Callable[[int], tuple[object, ...]]:
    """Give a function that opens a pool with a table and then cuts its file to so many bytes."""

    def cut(size: int) -> tuple[object, ...]:
        path = make_pool()
        load_array(path, "t", ROWS)
        with Writer(path) as writer:
            writer.set_hot("t", np.arange(10, dtype=np.int64), [(10, 0.5)])
        pool = engramdax.open(path)
        table = pool["t"]
        os.truncate(path, size)
        return pool, table

    return cut


def test_a_refresh_of_a_truncated_pool_is_an_error(truncated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engramdax.pool.volume.RETRY_SECONDS", 0.1)
    pool, _ = truncated(2 * MIB)
    with pytest.raises(FormatError, match="cannot be read"):
        pool.refresh()


def test_verify_calls_blocks_damaged_that_cannot_be_read(truncated) -> None:
    pool, table = truncated(32 * MIB)
    extent = table.entry.extent
    os.truncate(pool.backing.path, extent.offset + MIB)
    # The checksums lie behind the rows and are gone, too.
    with pytest.raises(DamagedTableError, match="checksums of table t are damaged"):
        table.verify()


def test_a_hot_list_that_cannot_be_read_is_an_error(truncated) -> None:
    _, table = truncated(12 * MIB)
    with pytest.raises(FormatError, match="cannot be read"):
        _ = table.hot


def test_one_directory_slot_that_cannot_be_read_leaves_the_other(truncated) -> None:
    pool, table = truncated(8 * MIB)  # slot 1 lies behind that
    pool.refresh()
    assert any("cannot be read" in problem for problem in pool.problems)
    assert table.name == "t"


def test_the_last_generation_is_not_used(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    with Writer(path) as writer:
        writer._generation = (1 << 62) - 1
        before = path.read_bytes()
        with pytest.raises(FormatError, match="the last one there is"):
            writer.publish()
        assert path.read_bytes() == before


def test_a_store_to_memory_that_is_gone_is_an_error_and_not_the_end(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    with Writer(path) as writer:
        os.truncate(path, 16 * MIB)
        with pytest.raises(BackingError, match=r"bytes 20971520 to 21037056 of .* cannot be written; the"):
            writer.store(20 * MIB, bytes(1 << 16))
        os.truncate(path, 32 * MIB)
        writer.store(20 * MIB, bytes(1 << 16))
