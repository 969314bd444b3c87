# SPDX-License-Identifier: Apache-2.0
"""A source file: what is refused at opening, how it is read, and what counts as a change."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from table_files import open_files, random_bytes

from engramdax.errors import ClosedError, SourceError
from engramdax.ingest.file import SourceFile


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.bin: no such file"):
        SourceFile(tmp_path / "none.bin")


def test_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="is a directory, not a regular file"):
        SourceFile(tmp_path)


def test_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="is a pipe, socket or device"):
        SourceFile(tmp_path / "pipe")


def test_device_is_refused() -> None:
    with pytest.raises(SourceError, match="/dev/zero: is a pipe, socket or device"):
        SourceFile("/dev/zero")


@pytest.fixture
def plain_user() -> Iterator[None]:
    """Not root, who may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_unreadable_file_is_refused(tmp_path: Path, plain_user: None) -> None:
    path = tmp_path / "t.bin"
    if os.access(tmp_path, os.W_OK, effective_ids=True):
        path.write_bytes(b"x")
        path.chmod(0)
    with pytest.raises(SourceError, match="no permission to read it; let this user read the file"):
        SourceFile(path)


def test_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.bin").touch()
    with pytest.raises(SourceError, match=r"t\.bin: the file is empty"):
        SourceFile(tmp_path / "t.bin")


def test_path_with_a_nul_is_refused() -> None:
    with pytest.raises(SourceError, match="no such file"):
        SourceFile("a\0b")


def test_link_that_leads_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SourceError, match="loop: cannot be opened: Too many levels of symbolic links"):
        SourceFile(tmp_path / "loop")


def test_error_stays_one_line_for_a_path_with_a_line_break(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        SourceFile(tmp_path / "a\nb")
    assert "\n" not in str(caught.value)


def test_refused_files_are_closed_again(tmp_path: Path) -> None:
    (tmp_path / "t.bin").touch()
    with pytest.raises(SourceError):
        SourceFile(tmp_path / "t.bin")
    assert open_files(tmp_path) == 0


def test_descriptor_is_not_inherited(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"x")
    with SourceFile(tmp_path / "t.bin") as file:
        assert not os.get_inheritable(file._fd)


@pytest.mark.parametrize(("offset", "length"), [(0, 10_000), (1, 0), (4095, 2), (9_999, 1), (3, 5_000)])
def test_any_range_is_read(tmp_path: Path, offset: int, length: int) -> None:
    content = random_bytes(10_000)
    (tmp_path / "t.bin").write_bytes(content)
    out = bytearray(length)
    with SourceFile(tmp_path / "t.bin") as file:
        file.read_into(offset, memoryview(out))
    assert out == content[offset : offset + length]


def test_arrays_of_any_type_and_shape_are_filled(tmp_path: Path) -> None:
    content = random_bytes(96)
    (tmp_path / "t.bin").write_bytes(content)
    out = np.zeros((3, 4), dtype=np.uint64)
    with SourceFile(tmp_path / "t.bin") as file:
        file.read_into(0, out)
        file.read_into(0, np.zeros((0, 4), dtype=np.uint8))
    assert out.tobytes() == content


def test_short_reads_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = random_bytes(10_000)
    (tmp_path / "t.bin").write_bytes(content)
    real = os.preadv

    def short(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return real(fd, [buffers[0][:777]], offset)

    monkeypatch.setattr(os, "preadv", short)
    out = bytearray(9_000)
    with SourceFile(tmp_path / "t.bin") as file:
        file.read_into(500, memoryview(out))
    assert out == content[500:9_500]


def test_ranges_beyond_2_and_4_gib_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    marks = {(1 << 31) - 3: b"across2G", (1 << 32) - 3: b"across4G", (1 << 33) + 1: b"tail"}
    with path.open("wb") as raw:
        for offset, mark in marks.items():
            raw.seek(offset)
            raw.write(mark)
    with SourceFile(path) as file:
        assert file.size == (1 << 33) + 5
        for offset, mark in marks.items():
            out = bytearray(len(mark) + 2)[: len(mark)]
            file.read_into(offset, memoryview(out))
            assert out == mark


def test_file_that_ends_early_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(random_bytes(1_000))
    with SourceFile(path) as file:
        os.truncate(path, 600)
        with pytest.raises(SourceError, match="ended early: nothing at byte 600, 400 bytes before"):
            file.read_into(0, memoryview(bytearray(1_000)))


def test_medium_error_is_reported_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.bin").write_bytes(b"x" * 100)

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with SourceFile(tmp_path / "t.bin") as file:
        monkeypatch.setattr(os, "preadv", broken)
        with pytest.raises(SourceError, match="reading 10 bytes at byte 5 failed: Input/output error"):
            file.read_into(5, memoryview(bytearray(10)))


def test_threads_read_at_once(tmp_path: Path) -> None:
    content = random_bytes(1 << 20)
    (tmp_path / "t.bin").write_bytes(content)
    wrong: list[int] = []

    def read_many(seed: int) -> None:
        rng = np.random.default_rng(seed)
        out = bytearray(5_000)
        for offset in rng.integers(0, len(content) - len(out), size=200).tolist():
            file.read_into(offset, memoryview(out))
            if out != content[offset : offset + len(out)]:
                wrong.append(offset)

    with SourceFile(tmp_path / "t.bin") as file:
        threads = [threading.Thread(target=read_many, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_untouched_file_is_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.bin").write_bytes(b"x" * 100)
    monkeypatch.chdir(tmp_path)
    with SourceFile("t.bin") as file:
        file.read_into(0, memoryview(bytearray(100)))
        monkeypatch.chdir("/")
        file.check_unchanged()


def test_growth_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"x" * 100)
    with SourceFile(path) as file:
        with path.open("ab") as raw:
            raw.write(b"y")
        with pytest.raises(SourceError, match="its size went from 100 to 101 bytes"):
            file.check_unchanged()


def test_writing_in_place_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"x" * 100)
    os.utime(path, ns=(0, 0))
    with SourceFile(path) as file:
        with path.open("r+b") as raw:
            raw.write(b"y")
        with pytest.raises(SourceError, match="changed while it was read: it was written to"):
            file.check_unchanged()


def test_replacing_the_file_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"x" * 100)
    with SourceFile(path) as file:
        (tmp_path / "other").write_bytes(b"x" * 100)
        (tmp_path / "other").replace(path)
        with pytest.raises(SourceError, match="another file took its place"):
            file.check_unchanged()


def test_removing_the_file_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"x" * 100)
    with SourceFile(path) as file:
        path.unlink()
        with pytest.raises(SourceError, match="was removed or renamed while it was read"):
            file.check_unchanged()


def test_change_of_permissions_is_no_change(tmp_path: Path) -> None:
    path = tmp_path / "t.bin"
    path.write_bytes(b"x" * 100)
    with SourceFile(path) as file:
        path.chmod(0o600)
        file.check_unchanged()


def test_closing_twice_is_fine_and_reading_then_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"x")
    file = SourceFile(tmp_path / "t.bin")
    file.close()
    file.close()
    with pytest.raises(ClosedError, match="was closed before"):
        file.read_into(0, memoryview(bytearray(1)))


def test_shared_file_closes_with_its_last_holder(tmp_path: Path) -> None:
    (tmp_path / "t.bin").write_bytes(b"x")
    file = SourceFile(tmp_path / "t.bin")
    file.retain()
    file.close()
    file.read_into(0, memoryview(bytearray(1)))
    file.close()
    assert open_files(tmp_path) == 0
