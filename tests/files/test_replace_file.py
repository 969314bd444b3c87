# SPDX-License-Identifier: Apache-2.0
"""A file is replaced by a whole one or stays as it was."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import BinaryIO

import pytest

from engramdax.errors import BackingError
from engramdax.files import replace_file


def test_a_file_is_made_and_replaced(tmp_path: Path) -> None:
    for content in (b"first", b"second"):
        replace_file(tmp_path / "f", lambda file, content=content: file.write(content), mode=0o604)
        assert (tmp_path / "f").read_bytes() == content
        assert (tmp_path / "f").stat().st_mode & 0o777 == 0o604
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: type[BaseException]) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def write(file: BinaryIO) -> None:
        file.write(b"half")
        raise error

    with pytest.raises(error):
        replace_file(tmp_path / "f", write)
    assert (tmp_path / "f").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("place", ["no/f", "file/f", "."])
def test_a_place_that_takes_no_file_is_named(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(BackingError, match=f"cannot write {place}: .*; give another"):
        replace_file(Path(place), lambda file: file.write(b""), remedy="give another")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_threads_that_replace_the_same_file_leave_one_whole(tmp_path: Path) -> None:
    contents = [bytes([n]) * 100_000 for n in range(4)]

    def body(content: bytes) -> None:
        for _ in range(50):
            replace_file(tmp_path / "f", lambda file: file.write(content))

    threads = [threading.Thread(target=body, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "f").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
