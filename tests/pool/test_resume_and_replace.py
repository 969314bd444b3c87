# SPDX-License-Identifier: Apache-2.0
"""Loads that go on where another died, versions that are swapped, tables that are repaired."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from shared_pool import SharedPool

import engramdax
from engramdax.commands.main import run
from engramdax.errors import SourceError, SpaceError, TableExistsError
from engramdax.format.geometry import MIB
from engramdax.ingest.open import open_sources
from engramdax.media import MappedMedia
from engramdax.pool import loader
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer

ROWS = 80_000  # of 64 bytes: five blocks, the last one short


def rows(seed: int, count: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 64), dtype=np.uint8)


class Death(BaseException):
    """Stands for a SIGKILL: nothing is cleaned up behind it."""


@contextmanager
def dying_after(blocks: int) -> Iterator[None]:
    """Let a load die when so many blocks are stored, and forget nothing."""
    stored = 0
    real = Writer.store

    def store(self: Writer, offset: int, data: object) -> None:
        nonlocal stored
        if len(memoryview(data)) > 64 << 10 and memoryview(data).contiguous and any(memoryview(data)[:64]):  # type: ignore[arg-type]
            stored += 1
            if stored > blocks:
                raise Death
        real(self, offset, data)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Writer, "store", store)
        patch.setattr(loader, "MAX_WORKERS", 1)
        patch.setattr(loader, "_forget", lambda *_, **__: None)
        with pytest.raises(Death):
            yield


def load(path: Path, array: np.ndarray, **options: bool) -> None:
    file = path.with_name(f"source{len(array)}.npy")
    np.save(file, array)
    (source,) = open_sources([file])
    with source, Writer(path, keep=lambda _: options.get("resume", False)) as writer:
        load_tables(writer, [Load(source, "t")], **options)


def right(path: Path, array: np.ndarray) -> bool:
    with engramdax.open(path) as pool:
        table = pool["t"]
        return bool((table.gather(np.arange(len(array))) == array).all()) and table.verify() == []


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Give the offsets of the blocks of rows that are stored."""
    found: list[int] = []
    real = MappedMedia.store

    def store(self: MappedMedia, offset: int, data: object) -> None:
        if offset >= 12 * MIB and len(memoryview(data)) > 1 << 16 and any(memoryview(data)[:64]):  # type: ignore[arg-type]
            found.append(offset)
        real(self, offset, data)  # type: ignore[arg-type]

    monkeypatch.setattr(MappedMedia, "store", store)
    return found


def test_a_resumed_load_stores_only_what_is_missing(make_pool: Callable[..., Path], stores: list[int]) -> None:
    path = make_pool()
    with dying_after(3):
        load(path, rows(1))
    stores.clear()
    load(path, rows(1), resume=True)
    assert len(stores) == 2
    assert right(path, rows(1))


def test_a_resumed_load_of_another_source_stores_what_differs(
    make_pool: Callable[..., Path], stores: list[int]
) -> None:
    path = make_pool()
    with dying_after(4):
        load(path, rows(1))
    other = rows(1)
    other[0] += 1
    stores.clear()
    load(path, other, resume=True)
    assert len(stores) == 2  # the first block, and the last, which was never there
    assert right(path, other)


def test_a_source_of_another_shape_does_not_go_on(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    with dying_after(3):
        load(path, rows(1))
    with pytest.raises(
        SourceError, match="the unfinished load of t was of 80000 rows of 64 bytes, the source has 9 of"
    ):
        load(path, rows(1, 9), resume=True)


def test_without_resume_the_space_is_found_again(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    with engramdax.open(path) as pool:
        free = pool.free()
    with dying_after(3):
        load(path, rows(1))
    with Writer(path) as writer:
        assert writer.free() == free


def test_resume_with_nothing_to_go_on_with_loads_from_the_start(
    make_pool: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pool()
    np.save(tmp_path / "t.npy", rows(1))
    assert run(["load", str(tmp_path / "t.npy"), "--resume", "--pool", str(path)]) == 0
    assert "t: the load starts from the beginning, nothing of it was left" in capsys.readouterr().out
    assert right(path, rows(1))
    assert run(["load", str(tmp_path / "t.npy"), "--resume", "--pool", str(path)]) == 1
    assert capsys.readouterr().out == ""  # of one that is there, the refusal says all there is to say
    assert run(["load", str(tmp_path / "t.npy"), "--resume", "--replace", "--pool", str(path)]) == 2


def test_a_load_goes_on_on_the_host_that_took_over(tmp_path: Path, stores: list[int]) -> None:
    shared = SharedPool(tmp_path, "alpha", "beta")
    with shared.on("alpha"), dying_after(3):
        shared.load("t", rows(1))
    with shared.on("beta"):
        assert run(["own", "--take-over", "--fenced", "--pool", str(shared.path)]) == 0
        stores.clear()
        shared.load("t", rows(1), resume=True)
        assert len(stores) == 2
        assert right(shared.path, rows(1))


def test_a_table_is_replaced_in_one_step_and_readers_keep_what_they_hold(
    make_pool: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pool()
    load(path, rows(1))
    pool = engramdax.open(path)
    old = pool["t"]
    with pytest.raises(TableExistsError, match="holds a table t already; say --replace"):
        load(path, rows(2))
    np.save(tmp_path / "t.npy", rows(2))
    assert run(["load", str(tmp_path / "t.npy"), "--replace", "--pool", str(path)]) == 0
    said = capsys.readouterr().out
    assert "t: the new version takes 8.0 MiB of" in said
    assert "free when no reader holds it" in said
    assert (pool["t"].gather(np.arange(ROWS)) == rows(1)).all()
    assert pool.refresh()
    assert (pool["t"].gather(np.arange(ROWS)) == rows(2)).all()
    assert (old.gather(np.arange(ROWS)) == rows(1)).all()
    with Writer(path) as writer:
        assert len(writer.directory.retired) == 1
    del old
    with Writer(path) as writer:
        assert writer.directory.retired == ()


def test_a_replacement_that_does_not_fit_costs_nothing(make_pool: Callable[..., Path]) -> None:
    path = make_pool(size=24 * MIB)
    load(path, rows(1))
    with pytest.raises(SpaceError, match="no room"):
        load(path, rows(2), replace_old=True)
    assert right(path, rows(1))


def test_a_replacing_load_that_died_is_resumed_as_one(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    load(path, rows(1))
    with dying_after(3):
        load(path, rows(2), replace_old=True)
    assert right(path, rows(1))
    load(path, rows(2), resume=True)
    assert right(path, rows(2))
    with Writer(path) as writer:
        assert [t.name for t in writer.directory.tables] == ["t"]


def flip(path: Path, offset: int, count: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        data = bytes(byte ^ 0x5A for byte in file.read(count))
        file.seek(offset)
        file.write(data)


def test_repair_restores_exactly_what_is_bad(
    make_pool: Callable[..., Path], tmp_path: Path, stores: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pool()
    load(path, rows(1))
    np.save(tmp_path / "t.npy", rows(1))
    repair = ["repair", "t", str(tmp_path / "t.npy"), "--pool", str(path)]
    stores.clear()
    assert run(repair) == 0
    assert capsys.readouterr().out == "t: nothing was damaged\n"
    with engramdax.open(path) as pool:
        entry = pool["t"].entry
        before = pool.generation
    flip(path, entry.extent.offset + 5)
    flip(path, entry.extent.offset + 2 * MIB + 7, 1000)
    with engramdax.open(path) as pool:
        bad = pool["t"].verify()
        assert [(b.offset, b.first_row, b.last_row) for b in bad] == [(0, 0, 16383), (2 * MIB, 32768, 49151)]
        assert pool.generation == before
    assert run(repair) == 0
    assert "t: 2 blocks repaired; readers see them when they refresh" in capsys.readouterr().out
    assert [offset - entry.extent.offset for offset in stores] == [0, 2 * MIB]
    assert right(path, rows(1))
    with engramdax.open(path) as pool:
        assert pool["t"].entry.load != entry.load
        assert pool["t"].entry.extent == entry.extent


def test_repair_restores_damaged_checksums(make_pool: Callable[..., Path], tmp_path: Path) -> None:
    path = make_pool()
    load(path, rows(1))
    np.save(tmp_path / "t.npy", rows(1))
    with engramdax.open(path) as pool:
        entry = pool["t"].entry
    flip(path, entry.checksums.offset)
    flip(path, entry.extent.offset)
    assert run(["verify", "--pool", str(path)]) == 1
    assert run(["repair", "t", str(tmp_path / "t.npy"), "--pool", str(path)]) == 0
    assert right(path, rows(1))


def test_another_source_repairs_nothing(
    make_pool: Callable[..., Path], tmp_path: Path, stores: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pool()
    load(path, rows(1))
    with engramdax.open(path) as pool:
        entry = pool["t"].entry
    flip(path, entry.extent.offset + 5)
    other = rows(1)
    other[20_000] += 1
    np.save(tmp_path / "other.npy", other)
    np.save(tmp_path / "short.npy", rows(1, 9))
    stores.clear()
    data = path.read_bytes()
    assert run(["repair", "t", str(tmp_path / "other.npy"), "--pool", str(path)]) == 1
    said = capsys.readouterr().err
    assert "1 of its 5 blocks are not what was loaded, the first at byte 1048576" in said
    assert run(["repair", "t", str(tmp_path / "short.npy"), "--pool", str(path)]) == 1
    assert "short has 576 bytes, table t has 5120000" in capsys.readouterr().err
    assert stores == []
    assert path.read_bytes() == data


def test_raw_files_and_tensors_repair_as_they_were_loaded(make_pool: Callable[..., Path], tmp_path: Path) -> None:
    path = make_pool()
    rows(1).tofile(tmp_path / "t.bin")
    pool = ["--pool", str(path)]
    assert run(["load", str(tmp_path / "t.bin"), "--dtype", "float16", "--dim", "32", *pool]) == 0
    with engramdax.open(path) as opened:
        entry = opened["t"].entry
    flip(path, entry.extent.offset + 5)
    assert run(["repair", "t", str(tmp_path / "t.bin"), *pool]) == 0
    with engramdax.open(path) as opened:
        assert opened["t"].verify() == []


def test_the_owner_repairs_a_superblock_copy(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    whole = path.read_bytes()
    for copy in (0, 2 * MIB):
        flip(path, copy + 100)
        with pytest.warns(engramdax.DegradedPoolWarning, match="superblock copy at"):
            engramdax.open(path)
        Writer(path).close()
        with warnings.catch_warnings(action="error"):
            assert engramdax.open(path).problems == ()
        assert path.read_bytes()[:4096] == whole[:4096]


def test_a_sample_verifies_a_share_and_a_rate_is_kept(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    load(path, rows(1))
    pool = ["--pool", str(path)]
    with engramdax.open(path) as opened:
        compared: list[int] = []
        assert opened["t"].verify(sample=0.4, progress=compared.append) == []
        assert len(compared) == 2
        with pytest.raises(engramdax.ParameterError, match="no share"):
            opened["t"].verify(sample=0)
        with pytest.raises(engramdax.ParameterError, match="never ends"):
            opened["t"].verify(rate=0)
    assert run(["verify", "--sample", "20%", "--rate", "1G", *pool]) == 0
    assert run(["verify", "--sample", "110%", *pool]) == 2
