# SPDX-License-Identifier: Apache-2.0
"""Files in numpy's format that are no table."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, unchanged

Command = Callable[..., Outcome]
Array = np.ndarray[Any, Any]


class _Payload:
    """An object that makes a folder wherever its pickle is loaded."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.place),)


def test_array_of_objects_is_refused_and_never_unpickled(command: Command, pool: Path, tmp_path: Path) -> None:
    path, trap = tmp_path / "objects.npy", tmp_path / "unpickled"
    np.save(path, np.array([[_Payload(trap)]], object), allow_pickle=True)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), "Python objects (a pickle)", "array of numbers")
    assert not trap.exists()


def test_fortran_order_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "columns.npy"
    np.save(path, np.asfortranarray(np.zeros((4, 6), np.float32)))
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), "Fortran order", "numpy.ascontiguousarray")


@pytest.mark.parametrize("shape", [(), (24,), (2, 3, 4)])
def test_array_that_has_not_two_dimensions_is_refused(
    command: Command, pool: Path, tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = tmp_path / "vector.npy"
    np.save(path, np.zeros(shape, np.float32))
    with unchanged(pool):
        outcome = command("load", path, "--pool", pool)
    outcome.failed(1, str(path), f"{len(shape)} dimensions, a table has 2", "reshape")


def test_wrong_magic_is_refused(command: Command, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.npy"
    path.write_bytes(b"\x93NUMBY" + bytes(200))
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), "not a .npy file", "NUMBY", "--row-bytes")


@pytest.mark.parametrize("kept_bytes", [3, 9, 60, 127, 128, 250])
def test_truncated_file_is_refused(command: Command, pool: Path, tmp_path: Path, kept_bytes: int) -> None:
    path = tmp_path / "short.npy"
    np.save(path, np.zeros((16, 8), np.uint8))
    os.truncate(path, kept_bytes)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path))


def test_truncated_data_is_told_with_both_sizes(command: Command, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "short.npy"
    np.save(path, np.zeros((16, 8), np.uint8))
    os.truncate(path, 200)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), "256 bytes", "this has 200", "truncated")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (np.zeros((0, 4), np.uint8), "holds nothing"),
        (np.zeros((4, 4), ">f4"), "big-endian"),
        (np.zeros((4, 4), np.complex64), "complex64"),
        (np.zeros((4, 4), [("a", "u1"), ("b", "u1")]), "structured"),
        (np.zeros((1, (1 << 20) + 1), np.uint8), "too large"),
    ],
    ids=["empty", "big-endian", "complex", "structured", "huge-row"],
)
def test_elements_that_no_table_holds_are_refused(
    command: Command, pool: Path, tmp_path: Path, array: Array, said: str
) -> None:
    path = tmp_path / "elements.npy"
    np.save(path, array)
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), said)


def test_header_that_is_code_is_not_run(command: Command, pool: Path, tmp_path: Path) -> None:
    path, trap = tmp_path / "code.npy", tmp_path / "ran"
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': __import__('os').mkdir({str(trap)!r})}}".encode()
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))
    with unchanged(pool):
        command("load", path, "--pool", pool).failed(1, str(path), "header cannot be parsed")
    assert not trap.exists()


def test_row_size_beside_an_array_is_a_usage_error(command: Command, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((4, 4), np.uint8))
    with unchanged(pool):
        command("load", path, "--row-bytes", 4, "--pool", pool).failed(2, str(path), "leave out --row-bytes")
