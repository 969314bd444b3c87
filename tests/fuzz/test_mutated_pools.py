# SPDX-License-Identifier: Apache-2.0
"""Real pools with mutated metadata, opened as programs open them: rows are the bytes that stand where the directory
says, or there is an error of this project.
"""

from __future__ import annotations

import mmap
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spoilt_metadata import spoil
from survival import report, share, survive

from engramdax.errors import DamagedTableError, FormatError, ParameterError, RefusedError
from engramdax.format.directory import Directory
from engramdax.format.geometry import LINE
from engramdax.ngram import Layout
from engramdax.pool.pool import Pool
from engramdax.pool.writer import Writer
from engramdax.table import Table

POOLS = share(20)


class Victim:
    """A pool of two tables in a file, spoilt again and again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Pool(path) as pool:
            self.superblock, self.directory = pool.superblock, pool.directory
        with path.open("r+b") as file:
            self.data = mmap.mmap(file.fileno(), 0)
        geometry = self.superblock.geometry
        areas = [(place, 4096) for place in geometry.superblocks]
        areas += [(place, 16384) for place in geometry.slots]
        areas += [(place + geometry.slot_bytes - LINE, LINE) for place in geometry.slots]
        self._whole = [(place, self.data[place : place + length]) for place, length in areas]

    def spoil(self, chance: random.Random) -> bool:
        """Mend what was spoilt before, and spoil anew; tell whether the checksums are right."""
        for place, content in self._whole:
            self.data[place : place + len(content)] = content
        return spoil(self.data, self.superblock, chance)

    def examine(self, right: bool) -> str:
        says = "right checksums" if right else "wrong ones"
        try:
            with warnings.catch_warnings(action="ignore"):  # of bad copies
                pool = Pool(self.path)
        except (FormatError, RefusedError) as e:
            said = str(e)
            assert str(self.path) in said
            return f"{'refused' if isinstance(e, FormatError) else 'not admitted'} with {says}"
        with pool:
            if not right:
                assert (pool.superblock, pool.directory) == (self.superblock, self.directory)
            self.use(pool.directory, [pool[name] for name in pool.tables])
        return f"opened with {says}"

    def use(self, directory: Directory, tables: list[Table]) -> None:
        """Gather from each table, and read what is kept beside it."""
        for table in tables:
            entry = directory.require(table.name, self.path)
            ids = np.array([-1, 0, table.rows - 1, table.rows // 2] if table.rows else [-1])
            rows = table.gather(ids).reshape(ids.size, -1).view(np.uint8)
            for id_, row in zip(ids.tolist(), rows, strict=True):
                at = entry.extent.offset + id_ * table.row_bytes
                assert row.tobytes() == (self.data[at : at + table.row_bytes] if id_ >= 0 else bytes(table.row_bytes))
            uses: tuple[Callable[[Table], object], ...] = (lambda t: t.hot, Layout.of_table, lambda t: t.verify())
            for use in uses:
                try:
                    use(table)
                except (DamagedTableError, ParameterError) as e:
                    assert table.name in str(e)  # noqa: PT017


@pytest.fixture
def victim(make_pool: Callable[..., Path], load_array: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Victim:
    for name in ("RETRY_SECONDS", "SETTLE_SECONDS", "RETRY_PAUSE"):  # nobody mends it meanwhile
        monkeypatch.setattr(f"engramdax.pool.volume.{name}", 0.0)
    path = make_pool(32 << 20)
    generator = np.random.default_rng(1)
    load_array(path, "first", generator.integers(0, 256, (1000, 64), np.uint8), (400, 600))
    load_array(path, "second/part", generator.integers(0, 256, (3, 40), np.uint8))
    with Writer(path) as writer:
        writer.set_hot("first", np.array([7, 1, 999]), [(1, 0.5), (3, 0.75)])
    return Victim(path)


def test_mutated_pools_give_their_rows_or_errors(victim: Victim, figure: Callable[[str], None]) -> None:
    assert victim.examine(right=False) == "opened with wrong ones"
    outcomes = survive(POOLS, victim.spoil, victim.examine)
    report(figure, "pools", POOLS, outcomes)
    if POOLS >= 1000:
        assert len(outcomes) >= 4
