# SPDX-License-Identifier: Apache-2.0
"""A pool as its readers see it: damaged copies, refresh, closing, and what stays when objects go."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from linecache import getline
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from file_bytes import overwrite, read_bytes

import engramdax
from engramdax.errors import (
    BackingError,
    ClosedError,
    FormatError,
    NotAPoolError,
    RefusedError,
    TableNotFoundError,
)
from engramdax.format.directory import Host
from engramdax.format.geometry import MIB
from engramdax.host import host_id
from engramdax.pool.pool import Pool
from engramdax.pool.writer import Writer

MakePool = Callable[..., Path]
LoadArray = Callable[..., object]

SLOTS = (4 * MIB, 8 * MIB)
ROWS = np.random.default_rng(0).integers(0, 256, (100, 64), dtype=np.uint8)


@pytest.fixture
def path(make_pool: MakePool, load_array: LoadArray) -> Path:
    """A pool with one table, `t`."""
    path = make_pool(name="p")
    load_array(path, "t", ROWS)
    return path


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engramdax.pool.volume.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("engramdax.pool.volume.SETTLE_SECONDS", 0.02)


def mapped(path: Path) -> int:
    """How many mappings of this file the process has."""
    return Path("/proc/self/maps").read_text().count(str(path))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_pool_tells_what_it_holds(path: Path) -> None:
    with engramdax.open(path) as pool:
        assert (pool.name, pool.tables, list(pool), len(pool)) == ("p", ("t",), ["t"], 1)
        assert "t" in pool
        assert "u" not in pool
        assert 5 not in pool
        assert pool.backing.path == path
        assert sum(extent.length for extent in pool.free()) == 16 * MIB
        assert repr(pool) == f"<engramdax.Pool p on {path}, generation {pool.generation}, 1 tables>"
        with pytest.raises(TableNotFoundError, match="holds no table 'u'; it holds t"):
            pool["u"]
    assert "closed" in repr(pool)


def test_a_table_tells_what_it_is(path: Path) -> None:
    with engramdax.open(path) as pool:
        table = pool["t"]
        assert (table.name, table.rows, table.row_bytes, table.nbytes) == ("t", 100, 64, 6400)
        assert table.dtype == np.uint8
        assert table.heads is None
        assert table.source["kind"] == "npy"
        assert table.layout.fields[0].count == 64
        assert repr(table) == "<engramdax.Table t: 100 rows of 64 bytes>"


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("place", [0, 2 * MIB])
def test_one_bad_superblock_is_a_warning(path: Path, place: int) -> None:
    overwrite(path, place + 90, b"X")
    with pytest.warns(engramdax.DegradedPoolWarning, match=f"superblock copy at {place}: .*checksum is wrong"):
        pool = engramdax.open(path)
    assert len(pool.problems) == 1
    assert (pool["t"].gather([1]) == ROWS[1]).all()
    pool.close()


@pytest.mark.usefixtures("_impatient")
def test_a_warning_names_the_line_that_opened_the_pool(path: Path) -> None:
    overwrite(path, 0, b"\xff" * 64)
    for opening in (engramdax.open, Pool):
        with pytest.warns(engramdax.DegradedPoolWarning) as caught:
            opening(path)
        named = [(one.filename, getline(one.filename, one.lineno).strip()) for one in caught]
        assert named == [(__file__, "opening(path)")]


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("slot", [0, 1])
def test_one_bad_slot_is_a_warning(path: Path, slot: int) -> None:
    overwrite(path, SLOTS[slot] + 70, b"X")
    with pytest.warns(engramdax.DegradedPoolWarning, match=f"directory slot {slot}: .*payload is damaged"):
        pool = engramdax.open(path)
    assert (pool["t"].gather([1]) == ROWS[1]).all()
    Writer(path).close()  # any writer repairs it
    assert pool.refresh()
    assert pool.problems == ()
    pool.close()


@pytest.mark.usefixtures("_impatient")
def test_two_bad_slots_are_an_error_that_names_the_pool(path: Path) -> None:
    for place in SLOTS:
        overwrite(path, place, bytes(64))
    with pytest.raises(FormatError, match=f"{path}: no usable directory: directory slot 0: the slot is empty"):
        engramdax.open(path)
    with pytest.raises(FormatError, match="no usable directory"):
        Writer(path)
    assert mapped(path) == 0


@pytest.mark.usefixtures("_impatient")
def test_the_directory_of_another_pool_is_not_believed(path: Path, make_pool: MakePool) -> None:
    other = make_pool(name="other")
    for place in SLOTS:
        overwrite(path, place, read_bytes(other, place, 4096))
    with pytest.raises(FormatError, match="the slot belongs to another pool"):
        engramdax.open(path)


def test_a_reader_waits_for_a_directory_that_becomes_whole(path: Path) -> None:
    good = read_bytes(path, SLOTS[0], 64)
    for place in SLOTS:
        overwrite(path, place, bytes(64))

    def repair() -> None:
        overwrite(path, SLOTS[0], good)
        overwrite(path, SLOTS[1], good)

    timer = threading.Timer(0.1, repair)
    timer.start()
    with engramdax.open(path) as pool:
        assert pool.problems == ()
        assert pool.tables == ("t",)
    timer.join()


def test_all_superblocks_bad_is_damage_and_none_is_no_pool(path: Path) -> None:
    for place in (0, 2 * MIB):
        overwrite(path, place + 90, b"X")
    with pytest.raises(FormatError, match=f"{path}: no usable superblock: the superblock's checksum is wrong"):
        engramdax.open(path)
    for place in (0, 2 * MIB):
        overwrite(path, place, bytes(4096))
    with pytest.raises(NotAPoolError, match=f"{path}: there is no pool here; `engramdax provision` makes one"):
        engramdax.open(path)


@pytest.mark.parametrize("size", [1, 63, 4096, 16 * MIB - 1, 24 * MIB])
def test_a_truncated_pool_is_refused_at_once_with_a_way_back(
    path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("nobody is about to make it larger"))
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.raises(FormatError, match=r"the media has|no pool here"):
        engramdax.open(path)


def test_what_is_no_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="is empty"):
        engramdax.open(tmp_path / "empty")
    with pytest.raises(BackingError, match="is a directory"):
        engramdax.open(tmp_path)
    with pytest.raises(BackingError, match="does not exist"):
        engramdax.open(tmp_path / "none")
    with pytest.raises(BackingError, match="not a devdax one"):
        engramdax.open("/dev/null")


def test_refresh_sees_new_tables_and_says_whether_there_is_news(path: Path, load_array: LoadArray) -> None:
    with engramdax.open(path) as pool:
        assert not pool.refresh()
        load_array(path, "u", ROWS[::-1].copy())
        assert list(pool) == ["t"]
        with pytest.raises(TableNotFoundError):
            pool["u"]
        assert pool.refresh()
        assert list(pool) == ["t", "u"]
        assert (pool["u"].gather([0]) == ROWS[99]).all()
        assert not pool.refresh()


def test_a_closed_pool_says_so(path: Path) -> None:
    pool = engramdax.open(path)
    pool.close()
    pool.close()
    for use in (
        lambda: pool["t"],
        lambda: pool["u"],
        pool.refresh,
        pool.free,
        pool.page_bytes,
        lambda: pool.name,
        lambda: pool.backing,
        lambda: pool.superblock,
    ):
        with pytest.raises(ClosedError, match="the pool was closed"):
            use()


def test_a_table_outlives_its_pool(path: Path) -> None:
    with engramdax.open(path) as pool:
        table = pool["t"]
    del pool
    gc.collect()
    assert (table.gather(np.arange(100)) == ROWS).all()
    assert table.verify() == []


def test_two_pools_of_a_process_do_not_disturb_each_other(
    path: Path, make_pool: MakePool, load_array: LoadArray
) -> None:
    other = make_pool(name="q")
    load_array(other, "t", ROWS[::-1].copy())
    with engramdax.open(path) as a, engramdax.open(other) as b, engramdax.open(path) as c:
        assert a.uuid == c.uuid != b.uuid
        assert (a["t"].gather([3]) == ROWS[3]).all()
        assert (b["t"].gather([3]) == ROWS[96]).all()
        table = c["t"]
        a.close()
        assert (table.gather([4]) == ROWS[4]).all()


def test_when_all_objects_are_gone_nothing_is_mapped_or_open(path: Path) -> None:
    before = open_descriptors()
    pool = engramdax.open(path)
    tables = [pool["t"] for _ in range(3)]
    array = tables[0].gather(np.arange(50))
    assert mapped(path) == 1
    pool.close()
    assert mapped(path) == 1
    del pool, tables
    gc.collect()
    assert mapped(path) == 0
    assert open_descriptors() == before
    assert (array == ROWS[:50]).all()


def test_opening_that_fails_leaves_nothing_mapped_or_open(path: Path) -> None:
    overwrite(path, 0, bytes(4096))
    overwrite(path, 2 * MIB, bytes(4096))
    before = open_descriptors()
    for _ in range(5):
        with pytest.raises(NotAPoolError):
            engramdax.open(path)
        with pytest.raises(NotAPoolError):
            Writer(path)
    gc.collect()
    assert open_descriptors() == before
    assert mapped(path) == 0


def test_a_reader_maps_the_pool_read_only(path: Path) -> None:
    with engramdax.open(path):
        lines = [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]
    assert [line.split()[1] for line in lines] == ["r--s"]


def test_an_unreadable_table_name_in_a_newer_generation_does_not_hurt_older_tables(
    path: Path, load_array: LoadArray
) -> None:
    with engramdax.open(path) as pool:
        table = pool["t"]
        with Writer(path) as writer:
            writer.remove("t")
        assert pool.refresh()
        assert "t" not in pool
        assert (table.gather(np.arange(100)) == ROWS).all()


def make_shared(path: Path, *, admitted: bool, owner: bool) -> None:
    """Turn the pool into a shared one, with or without this host."""
    with Writer(path) as writer:
        stranger = Host(uuid4(), "stranger")
        hosts = (stranger, Host(host_id(), "this")) if admitted else (stranger,)
        writer.publish(hosts=hosts, owner=host_id() if owner else stranger.id)
        shared = replace(writer.superblock, shared=True).to_bytes()
        for place in writer.superblock.geometry.superblocks:
            writer.media.store(place, shared)


def test_a_shared_pool_refuses_a_host_that_was_not_admitted(path: Path) -> None:
    make_shared(path, admitted=False, owner=False)
    with pytest.raises(RefusedError, match=rf"this host \({host_id()}\) is not admitted to the shared pool p"):
        engramdax.open(path)
    with pytest.raises(RefusedError, match="not admitted"):
        Writer(path)


def test_a_shared_pool_is_read_by_an_admitted_host_and_written_by_its_owner_only(path: Path) -> None:
    make_shared(path, admitted=True, owner=False)
    with engramdax.open(path) as pool:
        assert (pool["t"].gather([3]) == ROWS[3]).all()
    with pytest.raises(RefusedError, match="is written by host stranger"):
        Writer(path)


def test_the_owner_of_a_shared_pool_frees_nothing_that_another_host_may_read(path: Path) -> None:
    make_shared(path, admitted=True, owner=True)
    with Writer(path) as writer:
        assert not writer.remove("t")
        writer.reclaim()
        assert len(writer.directory.retired) == 1


def test_a_directory_that_went_back_is_said(path: Path) -> None:
    old = path.read_bytes()
    with engramdax.open(path) as pool:
        with Writer(path) as writer:
            writer.publish()
        pool.refresh()
        path.write_bytes(old)
        with pytest.warns(engramdax.DegradedPoolWarning, match="went back from epoch 1, generation"):
            assert not pool.refresh()
