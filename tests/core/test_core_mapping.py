# SPDX-License-Identifier: Apache-2.0
"""Mappings: alignment, errors, populated and resident pages, file systems."""

from __future__ import annotations

import errno
import gc
import mmap
import os
from pathlib import Path
from typing import Any

import pytest

from engramdax._core import ffi, lib
from engramdax.backing import TMPFS_MAGIC, file_system
from engramdax.errors import BackingError
from engramdax.mapping import Mapping

PAGE = mmap.PAGESIZE


def mapped_lines(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]


def made(path: Path, size: int) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, size)
    return fd


@pytest.mark.parametrize("align", [PAGE, 64 << 10, 2 << 20, 1 << 30])
@pytest.mark.parametrize("length", [1, PAGE, PAGE + 1, (2 << 20) + 12345])
def test_a_mapping_begins_at_a_multiple_of_its_alignment(tmp_path: Path, align: int, length: int) -> None:
    fd = made(tmp_path / "f", length)
    mapping = Mapping(fd, length, align=align, writable=True, huge=True, path="f")
    os.close(fd)  # the mapping needs it no longer
    assert mapping.address % align == 0
    mapping.view(0, 1)[:] = b"x"
    mapping.view(length - 1, 1)[:] = b"y"
    begin, end = (int(part, 16) for part in mapped_lines(tmp_path / "f")[0].split()[0].split("-"))
    # Nothing of the reservation that was made to find the place is left around it.
    assert (begin, end) == (mapping.address, mapping.address + -(-length // PAGE) * PAGE)
    del mapping
    gc.collect()
    assert mapped_lines(tmp_path / "f") == []
    assert (tmp_path / "f").read_bytes()[-1:] == b"y"


def test_mapping_again_and_again_leaks_no_address_space(tmp_path: Path) -> None:
    fd = made(tmp_path / "f", 1 << 20)
    Mapping(fd, 1 << 20, align=2 << 20, writable=False, huge=True, path="f")
    before = len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(200):
        Mapping(fd, 1 << 20, align=2 << 20, writable=False, huge=True, path="f")
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= before + 2
    os.close(fd)


@pytest.mark.parametrize(
    ("length", "writable", "error"),
    [(0, False, errno.EINVAL), ((1 << 64) - 1, False, errno.EINVAL), (1 << 50, False, errno.ENOMEM)],
)
def test_what_cannot_be_mapped_is_an_errno_and_nothing_is_left(
    tmp_path: Path, length: int, writable: bool, error: int
) -> None:
    fd = made(tmp_path / "f", PAGE)
    ret: Any = ffi.new("struct ed_mapping *")
    assert lib.ed_map(fd, length, PAGE, writable, 0, ret) == -error
    assert ret.address == ffi.NULL
    assert mapped_lines(tmp_path / "f") == []
    os.close(fd)


def test_the_error_names_the_path_and_the_cause(tmp_path: Path) -> None:
    path = tmp_path / "f"
    os.close(made(path, PAGE))
    fd = os.open(path, os.O_RDONLY)
    with pytest.raises(BackingError, match=f"cannot map {PAGE} bytes of {path}: Permission denied"):
        Mapping(fd, PAGE, align=PAGE, writable=True, huge=False, path=str(path))
    os.close(fd)
    with pytest.raises(BackingError, match="Bad file descriptor"):
        Mapping(-1, PAGE, align=PAGE, writable=False, huge=False, path=str(path))


def test_unmapping_twice_is_fine(tmp_path: Path) -> None:
    fd = made(tmp_path / "f", PAGE)
    ret: Any = ffi.new("struct ed_mapping *")
    assert lib.ed_map(fd, PAGE, PAGE, 0, 0, ret) == 0
    lib.ed_unmap(ret)
    assert (ret.address, ret.length) == (ffi.NULL, 0)
    lib.ed_unmap(ret)
    os.close(fd)


def test_populating_outside_the_mapping_is_refused(tmp_path: Path) -> None:
    fd = made(tmp_path / "f", 10 * PAGE)
    mapping = Mapping(fd, 10 * PAGE, align=PAGE, writable=True, huge=False, path="f")
    assert mapping.populate(0, 10 * PAGE) in (0, -errno.EINVAL)
    assert mapping.populate(100, 5000) in (0, -errno.EINVAL)
    for offset, length in ((0, 10 * PAGE + 1), (11 * PAGE, 0), (PAGE, (1 << 64) - PAGE)):
        assert mapping.populate(offset, length) == -errno.ERANGE
    os.close(fd)


def test_resident_pages_are_those_in_the_page_cache(tmp_path: Path) -> None:
    pages = 64
    fd = made(tmp_path / "f", pages * PAGE)
    os.pwrite(fd, bytes(pages * PAGE), 0)
    os.fsync(fd)
    told = ffi.new("uint8_t[]", pages + 1)
    told[pages] = 7
    assert lib.ed_resident_pages(fd, 0, pages * PAGE, told) == 0
    assert list(told)[:pages] == [1] * pages
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 1, 20 * PAGE)
    assert lib.ed_resident_pages(fd, 0, pages * PAGE, told) == 0
    if any(list(told)[40:pages]):
        pytest.skip("this file system keeps its pages cached whatever it is advised")
    assert told[20] == 1
    assert lib.ed_resident_pages(fd, 20 * PAGE, PAGE + 1, told) == 0
    assert list(told)[:2] == [1, 0]
    assert told[pages] == 7  # nothing was written behind the last page
    os.close(fd)


def test_resident_pages_of_nothing_and_of_a_bad_descriptor(tmp_path: Path) -> None:
    told = ffi.new("uint8_t[]", 1)
    assert lib.ed_resident_pages(-1, 0, 0, told) == 0
    assert lib.ed_resident_pages(-1, 0, PAGE, told) == -errno.EBADF
    fd = made(tmp_path / "f", 2 * PAGE)
    assert lib.ed_resident_pages(fd, 1, PAGE, told) == -errno.EINVAL
    os.close(fd)


def test_a_file_system_tells_its_magic_number_and_block_size() -> None:
    fd = os.open("/proc", os.O_RDONLY)
    assert file_system(fd)[0] == 0x9FA0
    os.close(fd)
    shared_memory = Path("/dev") / "shm"
    if not shared_memory.is_mount():
        pytest.skip(f"{shared_memory} is no tmpfs here")
    fd = os.open(shared_memory, os.O_RDONLY)
    assert file_system(fd) == (TMPFS_MAGIC, PAGE)
    os.close(fd)
    with pytest.raises(BackingError, match="fstatfs failed: Bad file descriptor"):
        file_system(-1)
