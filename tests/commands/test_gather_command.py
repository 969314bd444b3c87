# SPDX-License-Identifier: Apache-2.0
"""Rows from one file of ids into another of rows."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, unchanged

Command = Callable[..., Outcome]
Rows = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture
def gathered(command: Command, pool: Path, tmp_path: Path) -> Callable[..., Rows]:
    """Give a function that gathers rows of "kept" through the command."""

    def gather(ids: Any, *options: str) -> Rows:
        np.save(tmp_path / "ids.npy", ids)
        out = tmp_path / "out.npy"
        command("gather", "kept", "--ids", tmp_path / "ids.npy", "--out", out, "--pool", pool, *options).succeeded()
        found: Rows = np.load(out)
        return found

    return gather


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3), (2, 1, 4)])
def test_rows_are_those_of_the_ids(
    gathered: Callable[..., Rows], kept: Rows, dtype: type, shape: tuple[int, ...]
) -> None:
    ids: np.ndarray[Any, Any] = np.asarray(np.random.default_rng(1).integers(0, len(kept), shape), dtype)
    found = gathered(ids)
    np.testing.assert_array_equal(found, kept[ids])
    assert found.shape == (*shape, 48)


def test_minus_one_is_a_row_of_zeros(gathered: Callable[..., Rows], kept: Rows) -> None:
    found = gathered(np.array([3, -1, 3]))
    np.testing.assert_array_equal(found, np.stack([kept[3], np.zeros(48, np.uint8), kept[3]]))


def test_ids_in_any_memory_order_are_taken_from_a_file(gathered: Callable[..., Rows], kept: Rows) -> None:
    ids = np.asfortranarray(np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(gathered(ids), kept[ids])


def test_bad_id_is_named_and_nothing_is_written(command: Command, pool: Path, tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.npy", tmp_path / "out.npy"
    for bad in (500, -2, 2**40, -(2**63)):
        np.save(ids, np.array([[0, 1], [2, bad]]))
        with unchanged(pool):
            outcome = command("gather", "kept", "--ids", ids, "--out", out, "--pool", pool)
        outcome.failed(2, f"ids[1, 1] is {bad}", "table kept has rows 0 to 499")
    assert sorted(tmp_path.glob("*out*")) == []


def test_bad_id_gives_zeros_where_asked(gathered: Callable[..., Rows], kept: Rows) -> None:
    found = gathered(np.array([1, 500, -7]), "--invalid", "zero")
    np.testing.assert_array_equal(found, np.stack([kept[1], np.zeros(48, np.uint8), np.zeros(48, np.uint8)]))


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint8", "uint64", "int16", "bool", ">i8", "complex64"])
def test_ids_of_another_type_are_a_usage_error(command: Command, pool: Path, tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "ids.npy", np.zeros(3, dtype))
    with unchanged(pool):
        outcome = command("gather", "kept", "--ids", tmp_path / "ids.npy", "--out", tmp_path / "o", "--pool", pool)
    outcome.failed(2, f"ids are {np.dtype(dtype)}", "int32 or int64")
    assert not (tmp_path / "o").exists()


def objects(path: Path) -> None:
    np.save(path, np.array([{}], object), allow_pickle=True)


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(1), b=np.zeros(1))


def truncated(path: Path) -> None:
    np.save(path, np.zeros(100, np.int64))
    os.truncate(path, 400)


def header_cut_off(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x01\x00\x0b\x00{'descr': (")


def header_badly_indented(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x01\x00\x06\x00  {\n 1")


def header_of_brackets(path: Path) -> None:
    path.write_bytes(b"\x93NUMPY\x01\x00\x28\x23" + b"(" * 9000)


def shape_of_no_numbers(path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (2, True, 1e9,)}"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def shape_beyond_memory(path: Path) -> None:
    header = b"{'descr': '<i8', 'fortran_order': False, 'shape': (1152921504606846000,)}"
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def zip_of_nothing(path: Path) -> None:
    path.write_bytes(b"PK\3\4" + bytes(100))


def directory(path: Path) -> None:
    path.mkdir()


def words(path: Path) -> None:
    path.write_text("1 2 3\n")


def nothing(path: Path) -> None:
    path.touch()


def absent(path: Path) -> None:
    assert not path.exists()


@pytest.mark.parametrize(
    "make",
    [
        objects, archive, truncated, words, nothing, absent, header_cut_off, header_badly_indented,
        header_of_brackets, shape_of_no_numbers, shape_beyond_memory, zip_of_nothing, directory,
    ],
)  # fmt: skip
def test_file_without_ids_is_refused(
    command: Command, pool: Path, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    ids = tmp_path / "ids.npy"
    make(ids)
    with unchanged(pool):
        outcome = command("gather", "kept", "--ids", ids, "--out", tmp_path / "o", "--pool", pool)
    outcome.failed(1, str(ids))
    assert "pickle" not in outcome.err
    assert "Errno" not in outcome.err
    assert not (tmp_path / "o").exists()


def test_output_that_cannot_be_written_is_an_error(command: Command, pool: Path, tmp_path: Path) -> None:
    ids = tmp_path / "ids.npy"
    np.save(ids, np.arange(3))
    for out in (tmp_path / "no" / "out.npy", ids / "out.npy", tmp_path, ".", "/"):
        command("gather", "kept", "--ids", ids, "--out", out, "--pool", pool).failed(1, f"cannot write {out}", "--out")
    assert sorted(path.name for path in tmp_path.glob(".*")) == []


def test_older_output_is_replaced(command: Command, pool: Path, tmp_path: Path, kept: Rows) -> None:
    ids, out = tmp_path / "ids.npy", tmp_path / "out.npy"
    np.save(ids, np.arange(3))
    out.write_bytes(bytes(100_000))
    outcome = command("gather", "kept", "--ids", ids, "--out", out, "--pool", pool).succeeded()
    assert outcome.out == f"3 rows of kept (144 B) are in {out}\n"
    np.testing.assert_array_equal(np.load(out), kept[:3])


def test_unknown_table_or_option_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    ids, out = tmp_path / "ids.npy", tmp_path / "out.npy"
    np.save(ids, np.arange(3))
    files = ("--ids", ids, "--out", out, "--pool", pool)
    command("gather", "absent", *files).failed(1, "holds no table 'absent'", "it holds kept")
    command("gather", "kept", *files, "--invalid", "ignore").failed(2, "--invalid ignore", "raise or zero")
    command("gather", "kept", *files, "--per-head").failed(2, "table kept has no heads")
    command("gather", "kept", "--ids", ids, "--pool", pool).failed(2, "--out")
    assert not out.exists()
