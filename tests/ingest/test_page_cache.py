# SPDX-License-Identifier: Apache-2.0
"""What a load leaves in the page cache: the pages that were there before, and no others."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from table_files import random_bytes, write_safetensors

from engramdax._core import ffi, lib
from engramdax.ingest.binary import open_binary
from engramdax.ingest.engram import open_engram
from engramdax.ingest.file import SourceFile
from engramdax.ingest.npy import open_npy
from engramdax.ingest.safetensors import open_checkpoint, open_tensor
from engramdax.ingest.source import TableSource

PAGE = mmap.PAGESIZE
TMPFS_MAGIC = 0x01021994


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder whose file system has a page cache that can be dropped."""
    fd = os.open(tmp_path, os.O_RDONLY)
    magic, block = ffi.new("uint64_t *"), ffi.new("uint64_t *")
    result = lib.ed_file_system(fd, magic, block)
    os.close(fd)
    if result == 0 and magic[0] == TMPFS_MAGIC:
        pytest.skip("the temporary folder is a tmpfs, whose pages cannot be dropped")
    return tmp_path


def resident(path: Path) -> np.ndarray:
    """One bool per page of the file: is it in the page cache?"""
    size = path.stat().st_size
    pages = bytearray(-(-size // PAGE))
    fd = os.open(path, os.O_RDONLY)
    assert lib.ed_resident_pages(fd, 0, size, ffi.from_buffer("uint8_t[]", pages)) == 0
    os.close(fd)
    return np.frombuffer(pages, dtype=np.bool_)


def make_cold(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    if resident(path).any():
        pytest.skip("this file system keeps pages that it is told to drop")


def warm(path: Path, offset: int, length: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    assert len(os.pread(fd, length, offset)) == length
    os.close(fd)


def stream(source: TableSource, step: int) -> None:
    """Read a whole table as a loader does: a step, then let go of it."""
    for offset in range(0, source.nbytes, step):
        part = bytearray(min(step, source.nbytes - offset))
        source.read_into(offset, memoryview(part))
        source.drop_behind(offset, len(part))


@pytest.mark.parametrize("step", [1 << 20, 1_000_003])
def test_cold_file_is_cold_after_the_load(disk: Path, step: int) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(8 << 20) + b"x" * 264)
    make_cold(path)
    with open_binary(path, row_bytes=8) as source:
        stream(source, step)
        assert resident(path).sum() == 0


def test_pages_cached_before_stay_and_the_others_go(disk: Path) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(8 << 20))
    make_cold(path)
    warm(path, 1 << 20, 1 << 20)
    warm(path, 5 * PAGE, PAGE)
    warm(path, (8 << 20) - PAGE, PAGE)
    before = resident(path)
    assert before.sum() == (1 << 20) // PAGE + 2
    with open_binary(path, row_bytes=64) as source:
        stream(source, 300_007)
    np.testing.assert_array_equal(resident(path), before)


def test_fully_cached_file_stays_cached(disk: Path) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(4 << 20))
    make_cold(path)
    warm(path, 0, 4 << 20)
    with open_binary(path, row_bytes=64) as source:
        stream(source, 1 << 20)
    assert resident(path).all()


def test_ranges_dropped_out_of_order_leave_no_border_page(disk: Path) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(4 << 20))
    make_cold(path)
    with open_binary(path, row_bytes=64) as source:
        step = 100_001
        offsets = list(range(0, source.nbytes, step))
        for offset in np.random.default_rng(3).permutation(offsets).tolist():
            part = bytearray(min(step, source.nbytes - offset))
            source.read_into(offset, memoryview(part))
            source.drop_behind(offset, len(part))
    assert resident(path).sum() == 0


def test_page_that_was_not_read_whole_is_kept(disk: Path) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(16 * PAGE))
    make_cold(path)
    with SourceFile(path) as file:
        file.snapshot_residency()
        file.read_into(0, memoryview(bytearray(2 * PAGE + 1)))
        file.drop_behind(0, 2 * PAGE + 1)
        np.testing.assert_array_equal(resident(path)[:4], [False, False, True, False])
        file.drop_behind(2 * PAGE + 1, PAGE - 1)
        assert resident(path).sum() == 0
        file.read_into(8 * PAGE, memoryview(bytearray(2 * PAGE)))
        file.drop_behind(8 * PAGE + 1, 2 * PAGE - 1)
        np.testing.assert_array_equal(resident(path)[7:11], [False, True, False, False])


def test_nothing_is_dropped_without_a_snapshot(disk: Path) -> None:
    path = disk / "t.bin"
    path.write_bytes(random_bytes(16 * PAGE))
    make_cold(path)
    with SourceFile(path) as file:
        file.read_into(0, memoryview(bytearray(16 * PAGE)))
        file.drop_behind(0, 16 * PAGE)
    assert resident(path).all()


def test_opening_a_cold_array_caches_nothing(disk: Path) -> None:
    path = disk / "t.npy"
    np.save(path, np.zeros((1000, 1000), dtype=np.float32))
    make_cold(path)
    with open_npy(path) as source:
        assert resident(path).sum() == 0
        stream(source, 700_001)
    assert resident(path).sum() == 0


def test_only_the_pages_of_the_chosen_tensor_are_read(disk: Path) -> None:
    rows = 4096
    path = write_safetensors(
        disk / "model.safetensors",
        {
            "before": ("U8", [4 << 20], random_bytes(4 << 20)),
            "layers.1.engram.embed.weight": ("F8_E4M3", [rows, 256], random_bytes(rows * 256)),
            "between": ("U8", [4 << 20], random_bytes(4 << 20)),
            "layers.1.engram.embed.scale": ("F8_E8M0", [rows, 8], random_bytes(rows * 8)),
            "after": ("U8", [4 << 20], random_bytes(4 << 20)),
        },
    )
    make_cold(path)
    with open_checkpoint(path) as checkpoint:
        (source,) = open_engram(checkpoint)
    assert resident(path).sum() == 0
    with source:
        stream(source, 100_003)
        left = resident(path)
        for column in source.columns:
            whole = slice(column.offset // PAGE + 1, (column.offset + rows * column.width) // PAGE)
            assert left[whole].sum() == 0
        # What is left is read-ahead beyond the columns and the pages that they share with others.
        assert left.sum() * PAGE < 1 << 20
        assert left[: (4 << 20) // PAGE - 1].sum() == 0


def test_tensor_far_into_its_file_goes_behind_the_reader(disk: Path) -> None:
    path = write_safetensors(
        disk / "model.safetensors",
        {"before": ("U8", [9_000_001], bytes(9_000_001)), "t": ("U8", [5_000, 1_000], bytes(5_000_000))},
    )
    make_cold(path)
    with open_checkpoint(path) as checkpoint, open_tensor(checkpoint, "t") as source:
        stream(source, 500_001)
    # The first page is shared with the tensor before it, which was not read.
    assert resident(path).sum() == 1


def test_failure_to_look_at_the_page_cache_keeps_everything(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoMincore:
        def ed_resident_pages(self, *_: object) -> int:
            return -12

    path = disk / "t.bin"
    path.write_bytes(random_bytes(16 * PAGE))
    make_cold(path)
    with monkeypatch.context() as patched:
        patched.setattr("engramdax.ingest.file.lib", NoMincore())
        with open_binary(path, row_bytes=64) as source:
            stream(source, 16 * PAGE)
    assert resident(path).all()
