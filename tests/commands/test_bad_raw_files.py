# SPDX-License-Identifier: Apache-2.0
"""Raw files that cannot be loaded, and row sizes that no raw file has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from outcomes import Outcome, unchanged

Command = Callable[..., Outcome]


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "rows.bin"
    path.write_bytes(bytes(range(250)) * 4)
    return path


def test_missing_file_is_named(command: Command, pool: Path, tmp_path: Path) -> None:
    missing = tmp_path / "absent.bin"
    with unchanged(pool):
        command("load", missing, "--row-bytes", 10, "--pool", pool).failed(1, str(missing), "no such file")


def test_empty_file_is_refused(command: Command, pool: Path, raw: Path) -> None:
    raw.write_bytes(b"")
    with unchanged(pool):
        command("load", raw, "--row-bytes", 10, "--pool", pool).failed(1, str(raw), "is empty")


def test_size_that_is_no_whole_number_of_rows_is_refused(command: Command, pool: Path, raw: Path) -> None:
    with unchanged(pool):
        outcome = command("load", raw, "--row-bytes", 48, "--pool", pool)
    outcome.failed(1, str(raw), "1000 bytes", "48-byte rows", "20 rows and 40 bytes")


@pytest.mark.parametrize("size", ["0", "-1", "-9223372036854775809"])
def test_row_size_below_one_is_a_usage_error(command: Command, pool: Path, raw: Path, size: str) -> None:
    with unchanged(pool):
        command("load", raw, "--row-bytes", size, "--pool", pool).failed(2, f"row size {size}", "1 or more")


@pytest.mark.parametrize("size", [(1 << 20) + 1, 10**40])
def test_huge_row_size_is_a_usage_error(command: Command, pool: Path, raw: Path, size: int) -> None:
    with unchanged(pool):
        command("load", raw, "--row-bytes", size, "--pool", pool).failed(2, f"{size} bytes", "at most 1048576")


@pytest.mark.parametrize("size", ["ten", "1e3", "", "0x10"])
def test_row_size_that_is_no_number_is_a_usage_error(command: Command, pool: Path, raw: Path, size: str) -> None:
    with unchanged(pool):
        command("load", raw, "--row-bytes", size, "--pool", pool).failed(2, "--row-bytes", "load --help")


def test_missing_row_size_is_a_usage_error(command: Command, pool: Path, raw: Path) -> None:
    with unchanged(pool):
        command("load", raw, "--pool", pool).failed(2, "--row-bytes N", "--dtype D --dim N")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--row-bytes", "10", "--dtype", "float16"], "given twice"),
        (["--dtype", "float16"], "--dim is missing"),
        (["--dim", "5"], "--dtype is missing"),
        (["--dtype", "quarter", "--dim", "5"], "quarter"),
        (["--dtype", "float16", "--dim", "0"], "dim 0"),
        (["--row-bytes", "10", "--engram"], "--engram"),
        (["--row-bytes", "10", "--tensor", "t"], "--tensor"),
    ],
)
def test_contradicting_options_are_a_usage_error(
    command: Command, pool: Path, raw: Path, options: list[str], said: str
) -> None:
    with unchanged(pool):
        command("load", raw, *options, "--pool", pool).failed(2, said)


def test_pipe_is_no_source(command: Command, pool: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.bin"
    os.mkfifo(pipe)
    with unchanged(pool):
        command("load", pipe, "--row-bytes", 10, "--pool", pool).failed(1, str(pipe), "pipe")


def test_table_larger_than_the_free_space_is_refused_with_the_numbers(
    command: Command, pool: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large.bin"
    with large.open("wb") as file:
        file.truncate(20 << 20)
    free = command("ls", "--json", "--pool", pool).json()
    with unchanged(pool):
        outcome = command("load", large, "--row-bytes", 1024, "--pool", pool)
    # 20 blocks of 1 MiB have 20 checksums of 4 bytes, which take a unit of their own.
    needed = (20 << 20) + (2 << 20)
    outcome.failed(
        1,
        f"{needed} bytes are needed",
        f"{free['free']} bytes are free",
        f"the largest free extent has {free['largest_free_extent']}",
    )
