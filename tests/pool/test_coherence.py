# SPDX-License-Identifier: Apache-2.0
"""Readers of shared pools forget their caches once per boot, pool and load; `changed` costs a line."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from shared_pool import SharedPool

import engramdax
from engramdax.errors import FormatError
from engramdax.format.geometry import MIB, Extent
from engramdax.media import MappedMedia
from engramdax.pool import coherence
from engramdax.pool.coherence import invalidate_once, marks_of
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out

POOL, LOAD = UUID(int=1), UUID(int=2)


@pytest.fixture
def shared(tmp_path: Path) -> SharedPool:
    return SharedPool(tmp_path, "alpha", "beta")


@pytest.fixture
def invalidated(monkeypatch: pytest.MonkeyPatch) -> list[Extent]:
    """Give what is invalidated of the space for tables from now on."""
    found: list[Extent] = []
    real = MappedMedia.invalidate

    def note(self: MappedMedia, offset: int, length: int) -> None:
        if offset >= 12 * MIB:
            found.append(Extent(offset, length))
        real(self, offset, length)

    monkeypatch.setattr(MappedMedia, "invalidate", note)
    return found


def rows(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (1000, 64), dtype=np.uint8)


def test_a_load_is_invalidated_by_the_first_reader_of_a_host(shared: SharedPool, invalidated: list[Extent]) -> None:
    with shared.on("alpha"):
        entry = shared.load("a", rows())
    for host in ("alpha", "beta"):
        invalidated.clear()
        with shared.on(host):
            engramdax.open(shared.path)["a"]
            assert sorted(invalidated) == sorted([entry.extent, entry.checksums])
            invalidated.clear()
            assert (engramdax.open(shared.path)["a"].gather(np.arange(1000)) == rows()).all()
            assert invalidated == []
    with shared.on("alpha"):
        again = shared.load("a", rows(2), replace_old=True)
    with shared.on("beta"):
        invalidated.clear()
        engramdax.open(shared.path)["a"]
        assert sorted(invalidated) == sorted([again.extent, again.checksums])


def test_listing_tables_invalidates_none(shared: SharedPool, invalidated: list[Extent]) -> None:
    from engramdax.commands.main import run

    with shared.on("alpha"):
        shared.load("a", rows())
        invalidated.clear()
        assert run(["ls", "--pool", str(shared.path)]) == 0
        assert run(["info", "a", "--pool", str(shared.path)]) == 0
    assert invalidated == []


def test_a_pool_of_one_host_needs_no_invalidation(
    make_pool: Callable[..., Path], load_array: Callable[..., object], invalidated: list[Extent]
) -> None:
    path = make_pool()
    invalidated.clear()  # what was looked at before a pool was there
    load_array(path, "a", rows())
    engramdax.open(path)["a"]
    assert invalidated == []


def test_marks_count_for_one_boot_pool_and_load(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with marks_of(POOL) as marks:
        assert LOAD not in marks
        marks.add(LOAD)
        marks.add(UUID(int=3))
    with marks_of(POOL) as marks:
        assert LOAD in marks
        assert UUID(int=3) in marks
        assert UUID(int=4) not in marks
    with marks_of(UUID(int=9)) as marks:
        assert LOAD not in marks
    (tmp_path / "boot").write_text("another-boot\n")
    monkeypatch.setattr(coherence, "BOOT_ID", tmp_path / "boot")
    with marks_of(POOL) as marks:
        assert LOAD not in marks
        marks.add(UUID(int=5))
    with marks_of(POOL) as marks:
        assert LOAD not in marks
        assert UUID(int=5) in marks


def test_a_mark_that_was_half_written_is_none() -> None:
    with marks_of(POOL) as marks:
        marks.add(LOAD)
    path = Path(os.environ["ENGRAMDAX_RUN_DIR"]) / f"{POOL}.invalidated"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with marks_of(POOL) as marks:
            assert LOAD not in marks


def test_without_a_place_for_marks_every_reader_invalidates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENGRAMDAX_RUN_DIR", str(tmp_path / "file" / "run"))
    for _ in range(2):
        with marks_of(POOL) as marks:
            marks.add(LOAD)
            assert LOAD not in marks


class Noted:
    """Media that note what is invalidated, and fail at one offset."""

    def __init__(self, fails: int = -1) -> None:
        self.done: list[tuple[int, int]] = []
        self.fails = fails

    def invalidate(self, offset: int, length: int) -> None:
        if offset == self.fails:
            raise OSError
        self.done.append((offset, length))


@pytest.mark.parametrize("workers", [1, 4])
def test_every_byte_is_invalidated_whatever_the_number_of_threads(workers: int) -> None:
    media = Noted()
    with marks_of(POOL) as marks:
        assert invalidate_once(media, marks, LOAD, [Extent(0, 300 * MIB), Extent(1 << 40, 64)], workers=workers)  # type: ignore[arg-type]
        assert not invalidate_once(media, marks, LOAD, [Extent(0, 64)], workers=workers)  # type: ignore[arg-type]
    ends = [0, *(offset + length for offset, length in sorted(media.done))]
    assert ends[-1] == (1 << 40) + 64
    assert [offset for offset, _ in sorted(media.done)][:-1] == ends[:-2]
    assert ends[-2] == 300 * MIB


@pytest.mark.parametrize("workers", [1, 4])
def test_a_thread_that_fails_leaves_no_mark(workers: int) -> None:
    with marks_of(POOL) as marks:
        with pytest.raises(OSError):  # noqa: PT011
            invalidate_once(Noted(128 * MIB), marks, LOAD, [Extent(0, 300 * MIB)], workers=workers)  # type: ignore[arg-type]
        assert LOAD not in marks


def test_changed_tells_of_a_publication_and_reads_one_line(shared: SharedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    with shared.on("alpha"):
        shared.load("a", rows())
    with shared.on("beta"):
        pool = engramdax.open(shared.path)
        read: list[int] = []
        real = MappedMedia.load
        monkeypatch.setattr(MappedMedia, "load", lambda self, at, length: read.append(length) or real(self, at, length))
        assert not pool.changed()
        assert read == [64]
        with shared.on("alpha"):
            shared.load("b", rows(2))
        assert pool.changed()
        assert pool.changed()
        assert pool.refresh()
        assert not pool.changed()
        assert pool.tables == ("a", "b")


def test_changed_reads_the_other_slot_where_the_first_is_damaged(shared: SharedPool) -> None:
    with shared.on("alpha"):
        shared.load("a", rows())
        with shared.path.open("r+b") as file:
            file.seek(4 * MIB)
            file.write(b"\xff" * 8)
        with pytest.warns(engramdax.DegradedPoolWarning):
            pool = engramdax.open(shared.path)
        assert not pool.changed()
        shared.load("b", rows(2))
        assert pool.changed()
        pool.refresh()
        assert not pool.changed()
        assert pool.problems == ()


def test_a_pool_that_was_replaced_by_another_says_so_at_refresh(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    pool = engramdax.open(path)
    data = path.read_bytes()
    other = path.with_name("other")
    carry_out(plan_file(other, len(data), name="other", consent=Consent()).steps)
    with path.open("r+b") as file:
        file.write(other.read_bytes())
    assert pool.changed()
    with pytest.raises(FormatError, match=r"pool pool0 is gone, other .* is there now"):
        pool.refresh()
