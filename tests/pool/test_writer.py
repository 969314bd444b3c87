# SPDX-License-Identifier: Apache-2.0
"""The writer: one at a time, repairing what a dead one left, giving space back only when nobody can use it."""

from __future__ import annotations

import fcntl
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import numpy as np
import pytest
from file_bytes import overwrite, read_bytes
from processes import HOLD_TABLE, HOLD_WRITER, process

import engramdax
from engramdax.backing import Backing, inspect
from engramdax.errors import BusyError, FormatError, SpaceError, TableExistsError, TableNotFoundError
from engramdax.format.directory import LOADING, Directory
from engramdax.format.geometry import MIB, Extent
from engramdax.locks import WriterLock
from engramdax.pool.volume import publish
from engramdax.pool.writer import Writer

MakePool = Callable[..., Path]
LoadArray = Callable[..., object]

SLOTS = (4 * MIB, 8 * MIB)


def rows(count: int = 100, width: int = 64, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, width), dtype=np.uint8)


def directory_of(path: Path) -> Directory:
    with engramdax.open(path) as pool:
        return pool.directory


def free_bytes(path: Path) -> int:
    with engramdax.open(path) as pool:
        return sum(extent.length for extent in pool.free())


def test_a_second_writer_in_this_process_is_busy(make_pool: MakePool) -> None:
    path = make_pool()
    with Writer(path), pytest.raises(BusyError, match="is being written by another process"):
        Writer(path)
    Writer(path).close()


def test_a_second_writer_in_another_process_is_busy_and_names_it(make_pool: MakePool) -> None:
    path = make_pool()
    with process(HOLD_WRITER, path) as other:
        assert other.hear() == "holding"
        with pytest.raises(BusyError, match=rf"pid {other.pid}\)"):
            Writer(path)
        assert other.end() == 0
        Writer(path).close()


def test_a_question_whether_somebody_writes_keeps_no_writer_out(make_pool: MakePool) -> None:
    path = make_pool()
    with path.open("rb") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)  # as `is_written` of another process does, which then has to wait for a CPU
        threading.Timer(0.15, lambda: fcntl.flock(asking, fcntl.LOCK_UN)).start()
        with Writer(path):
            pass


def test_a_killed_writer_leaves_no_lock(make_pool: MakePool) -> None:
    path = make_pool()
    with process(HOLD_WRITER, path) as other:
        other.hear()
        other.kill()
        Writer(path).close()


def test_readers_are_not_kept_out_by_a_writer(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    with Writer(path), engramdax.open(path) as pool:
        assert (pool["t"].gather(np.arange(100)) == rows()).all()


def test_closing_a_writer_twice_is_fine(make_pool: MakePool) -> None:
    writer = Writer(make_pool())
    writer.close()
    writer.close()


def test_a_load_that_died_is_forgotten_by_the_next_writer_and_its_space_is_free(
    make_pool: MakePool, load_array: LoadArray
) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    before = free_bytes(path)
    with Writer(path) as writer:
        dead = replace(
            writer.directory.tables[0],
            name="dead",
            load=uuid4(),
            state=LOADING,
            extent=Extent(20 * MIB, 2 * MIB),
            checksums=Extent(22 * MIB, 2 * MIB),
        )
        writer.publish(tables=(*writer.directory.tables, dead))
    with engramdax.open(path) as pool:
        assert pool.tables == ("t",)
        assert free_bytes(path) == before - 4 * MIB
        generation = pool.generation
    with Writer(path) as writer:
        assert [t.name for t in writer.directory.tables] == ["t"]
        assert writer.directory.generation == generation + 1
    assert free_bytes(path) == before


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("offset", [0, 60, 64, 100])
def test_a_bad_slot_is_repaired_and_its_generation_never_used(
    make_pool: MakePool, load_array: LoadArray, bad: int, offset: int
) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    generation = directory_of(path).generation
    overwrite(path, SLOTS[bad] + offset, b"\xa5\x5a")
    with Writer(path) as writer:
        assert writer.directory.generation == generation + 2
    first, second = (read_bytes(path, place, 4096) for place in SLOTS)
    assert first == second
    with engramdax.open(path) as pool:
        assert pool.problems == ()
        assert (pool["t"].gather(np.arange(100)) == rows()).all()


@pytest.mark.parametrize("newer", [0, 1])
def test_a_writer_that_died_between_the_slots_is_completed(
    make_pool: MakePool, load_array: LoadArray, newer: int
) -> None:
    path = make_pool()
    load_array(path, "old", rows())
    images = [read_bytes(path, SLOTS[0], 64 << 10)]
    load_array(path, "new", rows(seed=1))
    images.append(read_bytes(path, SLOTS[0], 64 << 10))
    generation = directory_of(path).generation
    overwrite(path, SLOTS[newer], images[1])
    overwrite(path, SLOTS[1 - newer], images[0])
    assert directory_of(path).generation == generation
    with Writer(path) as writer:
        assert writer.directory.generation == generation + 1
        assert [t.name for t in writer.directory.published()] == ["old", "new"]
    first, second = (read_bytes(path, place, 64 << 10) for place in SLOTS)
    assert first == second


def test_a_writer_that_finds_all_well_writes_nothing(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    before = path.read_bytes()
    Writer(path).close()
    assert path.read_bytes() == before


def test_unknown_ro_compat_features_allow_reading_only(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    with engramdax.open(path) as pool:
        newer = replace(pool.superblock, ro_compat=4)
    for place in newer.geometry.superblocks:
        overwrite(path, place, newer.to_bytes())
    with engramdax.open(path) as pool:
        assert (pool["t"].gather([7]) == rows()[7]).all()
    with pytest.raises(FormatError, match="features 0x4 that this engramdax can only read"):
        Writer(path)
    # The refused writer left no lock behind.
    with pytest.raises(FormatError):
        Writer(path)


def test_removing_what_is_not_there_names_what_is(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    with Writer(path) as writer, pytest.raises(TableNotFoundError, match="it is empty"):
        writer.remove("x")
    load_array(path, "t", rows())
    with Writer(path) as writer, pytest.raises(TableNotFoundError, match="no table 'x'; it holds t"):
        writer.remove("x")


def test_without_readers_the_space_of_a_removed_table_is_free_at_once(
    make_pool: MakePool, load_array: LoadArray
) -> None:
    path = make_pool()
    before = free_bytes(path)
    load_array(path, "t", rows())
    assert free_bytes(path) < before
    with Writer(path) as writer:
        assert writer.remove("t")
    assert free_bytes(path) == before
    assert directory_of(path).retired == ()


def test_space_waits_for_a_reader_in_this_process(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    pool = engramdax.open(path)
    table = pool["t"]
    with Writer(path) as writer:
        assert not writer.remove("t")
        pool.close()
        writer.reclaim()
        assert [r.name for r in writer.directory.retired] == ["t"]  # the table still stands on it
        assert (table.gather([5]) == rows()[5]).all()
        del table
        writer.reclaim()
        assert not writer.directory.retired


def test_a_pool_object_alone_keeps_the_space_until_it_refreshes(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    with engramdax.open(path) as pool, Writer(path) as writer:
        assert not writer.remove("t")
        assert pool.refresh()
        writer.reclaim()
        assert writer.directory.retired == ()


def test_space_waits_for_a_reader_in_another_process_and_is_freed_when_it_was_killed(
    make_pool: MakePool, load_array: LoadArray
) -> None:
    path = make_pool()
    before = free_bytes(path)
    load_array(path, "t", rows())
    with process(HOLD_TABLE, path, "t") as reader:
        assert reader.hear() == "holding"
        with Writer(path) as writer:
            assert not writer.remove("t")
        with Writer(path) as writer:
            assert [r.name for r in writer.directory.retired] == ["t"]
        assert free_bytes(path) < before
        reader.kill()
        Writer(path).close()
    assert free_bytes(path) == before


def test_a_reader_that_came_after_the_removal_does_not_keep_the_space(
    make_pool: MakePool, load_array: LoadArray
) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    load_array(path, "u", rows())
    with process(HOLD_TABLE, path, "t") as early:
        early.hear()
        with Writer(path) as writer:
            assert not writer.remove("t")
        with process(HOLD_TABLE, path, "u") as late:
            late.hear()
            early.kill()
            with Writer(path) as writer:
                assert writer.directory.retired == ()


def test_a_name_may_be_loaded_again_while_its_old_table_waits(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows(seed=1))
    with engramdax.open(path) as pool:
        old = pool["t"]
        with Writer(path) as writer:
            writer.remove("t")
        load_array(path, "t", rows(seed=2))
        assert (old.gather(np.arange(100)) == rows(seed=1)).all()
        assert (pool["t"].gather(np.arange(100)) == rows(seed=1)).all()
        assert pool.refresh()
        assert (pool["t"].gather(np.arange(100)) == rows(seed=2)).all()
        assert pool["t"].load_id != old.load_id


def test_a_table_is_not_loaded_over_another_of_its_name(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    load_array(path, "t", rows())
    before = directory_of(path)
    with pytest.raises(TableExistsError, match="holds a table t already"):
        load_array(path, "t", rows())
    assert directory_of(path) == before


def test_a_table_too_large_says_how_much_is_free(make_pool: MakePool, load_array: LoadArray) -> None:
    path = make_pool()
    before = path.read_bytes()
    with pytest.raises(SpaceError, match=f"the largest free extent has {20 * MIB}"):
        load_array(path, "t", np.zeros((21, MIB), np.uint8))
    assert path.read_bytes() == before


CHURN = """
import sys, random, time
from pathlib import Path
import numpy as np
import engramdax
from engramdax.ingest.open import open_sources
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer
path, folder = Path(sys.argv[1]), Path(sys.argv[2])
chance = random.Random(1)
loaded = full = 0
for turn in range(100):
    with Writer(path) as writer:
        for name in [t.name for t in writer.directory.published()]:
            writer.remove(name)
        np.save(folder / "churn.npy", np.full((chance.randint(1, 30) * 1000, 64), turn, np.uint8))
        (source,) = open_sources([folder / "churn.npy"])
        with source:
            try:
                load_tables(writer, [Load(source, "t")])
                loaded += 1
            except engramdax.SpaceError:
                full += 1
    time.sleep(0.01)
print(loaded, full, flush=True)
"""


def test_tables_stay_bit_exact_while_another_process_removes_them_and_loads_others(
    make_pool: MakePool, load_array: LoadArray, tmp_path: Path
) -> None:
    path = make_pool()
    load_array(path, "t", rows(20000))
    pool = engramdax.open(path)
    held = [(pool["t"], rows(20000))]
    chance = random.Random(2)
    seen = set()
    with process(CHURN, path, tmp_path) as churn:
        while churn.running():
            if pool.refresh() and "t" in pool:
                table = pool["t"]
                held.append((table, np.broadcast_to(table.gather(0), (table.rows, 64))))
                seen.add(table.load_id)
            for table, expected in held:
                assert (table.gather(np.arange(table.rows)) == expected).all()
            if chance.random() < 0.3:
                # All space that was retired since the oldest pin waits for it: let go of everything at times.
                del held[: chance.randint(1, 3)]
        loaded, _ = map(int, churn.hear().split())
    assert loaded > 5  # the churn ends by the clock, whatever the machine gets done
    assert len(seen) > 1
    assert all(table.verify() == [] for table, _ in held)
    pool.close()


def test_a_publication_that_was_cut_off_never_shares_its_generation_with_another(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pool()
    with Writer(path) as writer:
        real = writer.media.store

        def fail_at_slot_1(offset: int, data: bytes) -> None:
            if offset >= SLOTS[1]:
                raise KeyboardInterrupt
            real(offset, data)

        with monkeypatch.context() as patch:
            patch.setattr(writer.media, "store", fail_at_slot_1)
            with pytest.raises(KeyboardInterrupt):
                writer.publish()
        seen = directory_of(path).generation
        writer.publish()
        assert directory_of(path).generation > seen


@pytest.mark.parametrize("bad", [0, 1])
def test_publishing_over_a_bad_slot_keeps_the_good_one_until_the_other_is_whole(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    path = make_pool()
    with Writer(path) as writer:
        overwrite(path, SLOTS[bad], b"\xff")
        order: list[int] = []
        real = writer.media.store

        def noted(offset: int, data: bytes) -> None:
            order.append(offset)
            real(offset, data)

        monkeypatch.setattr(writer.media, "store", noted)
        publish(writer.media, writer.superblock, replace(writer.directory, generation=90))
        good = SLOTS[1 - bad]
        assert order == [SLOTS[bad] + 64, SLOTS[bad], good + 64, good]


def test_the_lock_is_on_the_file_that_was_opened_not_on_what_has_its_name_since(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, newcomer = make_pool(), make_pool()
    opened = path.with_name("opened")
    opened.hardlink_to(path)

    def lock_after_a_swap(backing: Backing, pool: UUID, *, of: int | None = None) -> WriterLock:
        newcomer.replace(path)
        return WriterLock(backing, pool, of=of)

    monkeypatch.setattr("engramdax.pool.access.WriterLock", lock_after_a_swap)
    with Writer(path) as writer:
        pool = writer.superblock.pool
        with pytest.raises(BusyError):
            WriterLock(inspect(opened), pool)
        WriterLock(inspect(path), pool).release()
