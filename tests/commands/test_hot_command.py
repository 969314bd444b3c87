# SPDX-License-Identifier: Apache-2.0
"""Hot lists that are published with a table: set, shown, replaced, damaged, refused."""

from __future__ import annotations

import gc
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, unchanged

import engramdax
from engramdax.errors import DamagedTableError
from engramdax.pool.writer import Writer
from engramdax.trace.counts import HotRows
from engramdax.trace.hotlist import FIELDS, HotList, write_hot_list

Command = Callable[..., Outcome]

HEADS = (100, 150, 250)


@pytest.fixture
def shelf(make_pool: Callable[..., Path], load_array: Callable[..., object], kept: Any) -> Path:
    """A pool with the table "kept", and the same rows again as "t", divided into heads."""
    path = make_pool(40 << 20, "wide")
    load_array(path, "kept", kept)
    load_array(path, "t", kept, HEADS)
    return path


def write_list(path: Path, ids: Any, heads: tuple[int, ...] = HEADS) -> Path:
    row_ids = np.array(ids, np.int64)
    counts = np.arange(row_ids.size, 0, -1)
    hot = HotRows(row_ids, counts, int(counts.sum()) * 2)
    write_hot_list(path, HotList(hot, sum(heads), np.array(heads, np.int64)))
    return path


@pytest.fixture
def hot_file(tmp_path: Path) -> Path:
    return write_list(tmp_path / "hot.npz", [7, 3, 499, 0, 250])


def test_list_is_published_and_shown(command: Command, shelf: Path, hot_file: Path) -> None:
    outcome = command("hot", "set", "t", hot_file, "--pool", shelf).succeeded()
    assert outcome.out == "t has a hot list of 5 rows, which served 50.0% of the trace's reads\n"
    outcome = command("hot", "show", "t", "--pool", shelf).succeeded()
    assert outcome.out.splitlines()[0] == "5 rows, the hottest: 7, 3, 499, 0, 250"
    assert [line.split() for line in outcome.out.splitlines()[1:]] == [
        ["ROWS", "SERVED"], ["1", "16.7%"], ["2", "30.0%"], ["5", "50.0%"],
    ]  # fmt: skip
    for table, hot_rows in (("t", "5"), ("kept", "none")):
        told = dict(line.split("  ", 1) for line in command("info", table, "--pool", shelf).out.splitlines())
        assert (told["hot rows"].strip(), told["addressing"].strip()) == (hot_rows, "unknown")
    assert command("info", "t", "--pool", shelf, "--json").json()["hot_rows"] == 5
    with engramdax.open(shelf) as pool:
        assert pool["t"].hot.tolist() == [7, 3, 499, 0, 250]
        assert pool["t"].hot.dtype == np.int64
        assert pool["t"].hot_served[-1] == (5, 0.5)
        assert pool["kept"].hot is None


def test_json_says_the_same(command: Command, shelf: Path, hot_file: Path) -> None:
    assert command("hot", "show", "t", "--pool", shelf, "--json").json() == {
        "table": "t", "rows": 0, "first": [], "served": [],
    }  # fmt: skip
    found = command("hot", "set", "t", hot_file, "--pool", shelf, "--json").json()
    assert found == {"table": "t", "rows": 5, "share": 0.5}
    shown = command("hot", "show", "t", "--pool", shelf, "--json").json()
    assert (shown["rows"], shown["first"]) == (5, [7, 3, 499, 0, 250])
    assert shown["served"][-1] == [5, 0.5]


def test_table_without_a_list_says_so(command: Command, shelf: Path) -> None:
    assert command("hot", "show", "t", "--pool", shelf).succeeded().out == "t has no hot list\n"


def test_table_without_known_heads_takes_a_list_of_as_many_rows(command: Command, shelf: Path, hot_file: Path) -> None:
    command("hot", "set", "kept", hot_file, "--pool", shelf).succeeded()


def free_bytes(path: Path) -> int:
    with Writer(path) as writer:
        return sum(extent.length for extent in writer.free())


def test_second_list_takes_the_place_of_the_first(command: Command, shelf: Path, tmp_path: Path) -> None:
    before = free_bytes(shelf)
    command("hot", "set", "t", write_list(tmp_path / "a.npz", [1, 2, 3]), "--pool", shelf).succeeded()
    once = free_bytes(shelf)
    assert once < before
    for _ in range(5):
        command("hot", "set", "t", write_list(tmp_path / "b.npz", [9, 8]), "--pool", shelf).succeeded()
    assert free_bytes(shelf) == once
    with engramdax.open(shelf) as pool:
        assert pool["t"].hot.tolist() == [9, 8]
    command("rm", "t", "--pool", shelf).succeeded()
    assert free_bytes(shelf) > before


def test_reader_keeps_the_list_it_found_while_another_is_set(command: Command, shelf: Path, tmp_path: Path) -> None:
    command("hot", "set", "t", write_list(tmp_path / "a.npz", [1, 2, 3]), "--pool", shelf).succeeded()
    once = free_bytes(shelf)
    with engramdax.open(shelf) as pool:
        table = pool["t"]
        for place in range(3):
            command("hot", "set", "t", write_list(tmp_path / "b.npz", [9, place]), "--pool", shelf).succeeded()
            assert table.hot.tolist() == [1, 2, 3]
        assert free_bytes(shelf) < once
        pool.refresh()
        assert pool["t"].hot.tolist() == [9, 2]
        del table
    gc.collect()
    assert free_bytes(shelf) == once


def test_rows_and_checksums_stay_as_they_were(command: Command, shelf: Path, hot_file: Path, kept: Any) -> None:
    command("hot", "set", "t", hot_file, "--pool", shelf).succeeded()
    command("verify", "t", "--pool", shelf).succeeded()
    with engramdax.open(shelf) as pool:
        np.testing.assert_array_equal(pool["t"].gather(np.arange(500)), kept)


def test_damaged_list_is_an_error_and_only_of_the_list(command: Command, shelf: Path, hot_file: Path) -> None:
    command("hot", "set", "t", hot_file, "--pool", shelf).succeeded()
    with engramdax.open(shelf) as pool:
        table = pool["t"]
        place = table._entry.hot.extent.offset
        with shelf.open("r+b") as file:
            file.seek(place + 5)
            file.write(b"\x01")
        with pytest.raises(DamagedTableError, match="hot list of table t is damaged; set it again"):
            _ = table.hot
        table.gather([1, 2])
    command("hot", "show", "t", "--pool", shelf).failed(1, "the hot list of table t is damaged", "set it again")
    command("verify", "t", "--pool", shelf).succeeded()
    command("hot", "set", "t", hot_file, "--pool", shelf).succeeded()
    command("hot", "show", "t", "--pool", shelf).succeeded()


def absent(path: Path) -> tuple[str, ...]:
    path.unlink()
    return (f"{path} does not exist",)


def cut_off(path: Path) -> tuple[str, ...]:
    os.truncate(path, path.stat().st_size - 40)
    return (f"{path} is no hot list, or is cut off",)


def cut_in_half(path: Path) -> tuple[str, ...]:
    os.truncate(path, path.stat().st_size // 2)
    return (f"{path} is no hot list, or is cut off",)


def damaged(path: Path) -> tuple[str, ...]:
    data = bytearray(path.read_bytes())
    data[data.index(b"}", 60) + 70] ^= 0xFF
    path.write_bytes(data)
    return (f"{path} is no hot list, or is cut off",)


def words(path: Path) -> tuple[str, ...]:
    path.write_text("1 2 3\n")
    return (f"{path} is no hot list",)


def nothing(path: Path) -> tuple[str, ...]:
    path.write_bytes(b"")
    return (f"{path} is no hot list",)


def plain_vector(path: Path) -> tuple[str, ...]:
    with path.open("wb") as file:
        np.save(file, np.arange(3))
    return (f"{path} is no hot list: it holds a single array, no archive", "make one with `engramdax trace`")


def fields_missing(path: Path) -> tuple[str, ...]:
    np.savez(path, row_ids=np.arange(3), counts=np.arange(3))
    return (f"{path} is no hot list: it lacks accesses, rows, heads",)


def change(path: Path, **changes: Any) -> None:
    with np.load(path) as archive:
        fields = {name: archive[name] for name in archive.files}
    np.savez(path, **(fields | changes))


def rows_twice(path: Path) -> tuple[str, ...]:
    change(path, row_ids=np.array([7, 3, 499, 7, 250]))
    return ("lists rows twice or outside 0 to 499",)


def rows_outside(path: Path) -> tuple[str, ...]:
    change(path, row_ids=np.array([7, 3, 500, 0, 250]))
    return ("lists rows twice or outside 0 to 499",)


def rows_negative(path: Path) -> tuple[str, ...]:
    change(path, row_ids=np.array([7, 3, -1, 0, 250]))
    return ("lists rows twice or outside 0 to 499",)


def no_rows(path: Path) -> tuple[str, ...]:
    change(path, row_ids=np.empty(0, np.int64), counts=np.empty(0, np.int64))
    return ("holds no list of rows",)


def fewer_counts(path: Path) -> tuple[str, ...]:
    change(path, counts=np.arange(4, 0, -1))
    return ("holds no list of rows",)


def other_types(path: Path) -> tuple[str, ...]:
    change(path, rows=np.array(["x"]))
    return ("holds no list of rows",)


def rising(path: Path) -> tuple[str, ...]:
    change(path, counts=np.arange(1, 6))
    return ("not in falling order",)


def more_than_all(path: Path) -> tuple[str, ...]:
    change(path, accesses=np.int64(3))
    return ("counts more reads",)


def counts_beyond_int64(path: Path) -> tuple[str, ...]:
    change(path, counts=np.array([1 << 62] * 4 + [1]), accesses=np.int64(10))
    return ("counts more reads",)


def count_above_all(path: Path) -> tuple[str, ...]:
    change(path, counts=np.array([2**63 - 1, 2**63 - 1, 2, 1, 1]), accesses=np.int64(100))
    return ("counts more reads",)


def falling_past_int64(path: Path) -> tuple[str, ...]:
    change(path, counts=np.array([-(2**63), 2**63 - 1, 3, 2, 1]), accesses=np.int64(2**63 - 1))
    return ("not in falling order",)


def no_reads(path: Path) -> tuple[str, ...]:
    change(path, accesses=np.int64(-5))
    return ("counts more reads",)


def negative_heads(path: Path) -> tuple[str, ...]:
    change(path, heads=np.array([600, -100]))
    return ("counts more reads, or other rows",)


def heads_beyond_int64(path: Path) -> tuple[str, ...]:
    change(path, heads=np.array([1 << 62] * 4 + [500]))
    return ("counts more reads, or other rows",)


def header_of_nonsense(path: Path) -> tuple[str, ...]:
    spoilt_header(path, b"{'descr': (")
    return (f"{path} is no hot list",)


def header_badly_indented(path: Path) -> tuple[str, ...]:
    spoilt_header(path, b"  {\n 1")
    return (f"{path} is no hot list",)


def header_of_brackets(path: Path) -> tuple[str, ...]:
    spoilt_header(path, b"(" * 9000)
    return (f"{path} is no hot list",)


def spoilt_header(path: Path, header: bytes) -> None:
    """Make an archive of which each member has this header."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in FIELDS:
            archive.writestr(f"{name}.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header)


def of_another_table(path: Path) -> tuple[str, ...]:
    write_list(path, [1, 2], (100, 151, 250))
    return ("table of 501 rows in 3 heads, t has 500 in as many heads of other sizes", "for this table's model")


def of_other_heads(path: Path) -> tuple[str, ...]:
    write_list(path, [1, 2], (150, 100, 250))
    return ("table of 500 rows in 3 heads, t has 500 in as many heads of other sizes",)


@pytest.mark.parametrize(
    "spoil",
    [
        absent, cut_off, cut_in_half, damaged, words, nothing, plain_vector, fields_missing, rows_twice, rows_outside,
        rows_negative, no_rows, fewer_counts, other_types, rising, more_than_all, of_another_table, of_other_heads,
        counts_beyond_int64, count_above_all, falling_past_int64, no_reads, negative_heads, heads_beyond_int64,
        header_of_nonsense, header_badly_indented, header_of_brackets,
    ],
)  # fmt: skip
def test_file_that_is_no_list_of_this_table_is_refused(
    command: Command, shelf: Path, hot_file: Path, spoil: Callable[[Path], tuple[str, ...]]
) -> None:
    said = spoil(hot_file)
    with unchanged(shelf):
        command("hot", "set", "t", hot_file, "--pool", shelf).failed(1, *said)


def test_unknown_table_is_refused(command: Command, shelf: Path, hot_file: Path) -> None:
    with unchanged(shelf):
        command("hot", "set", "absent", hot_file, "--pool", shelf).failed(1, "holds no table 'absent'")
        command("hot", "show", "absent", "--pool", shelf).failed(1, "holds no table 'absent'")


def test_list_that_does_not_fit_is_refused_and_the_old_one_stays(
    command: Command, shelf: Path, hot_file: Path, load_array: Callable[..., object], tmp_path: Path
) -> None:
    command("hot", "set", "t", hot_file, "--pool", shelf).succeeded()
    with Writer(shelf) as writer:
        left = sum(extent.length for extent in writer.free())
        unit = writer.superblock.geometry.unit
    load_array(shelf, "rest", np.zeros(((left // unit - 1) * unit // 1024, 1024), np.uint8))
    with unchanged(shelf):
        command("hot", "set", "t", write_list(tmp_path / "b.npz", [1]), "--pool", shelf).failed(1, "free")
    with engramdax.open(shelf) as pool:
        assert pool["t"].hot.tolist() == [7, 3, 499, 0, 250]
