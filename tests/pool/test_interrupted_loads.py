# SPDX-License-Identifier: Apache-2.0
"""A load that fails at each of its steps: nothing half done is ever visible."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax.errors import BackingError, SourceError
from engramdax.ingest.open import open_sources
from engramdax.media import Media
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer

MakePool = Callable[..., Path]
LoadArray = Callable[..., object]


def rows(seed: int) -> np.ndarray:
    # Two checksum blocks, the second one short.
    return np.random.default_rng(seed).integers(0, 256, (17000, 64), dtype=np.uint8)


class FailingMedia:
    """The real media, whose `countdown`-th store or fence fails; `at_failure` is called just before."""

    def __init__(self, real: Media, countdown: int, at_failure: Callable[[], None]) -> None:
        self._real = real
        self._left = countdown
        self._at_failure = at_failure

    @property
    def size(self) -> int:
        return self._real.size

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._at_failure()
            raise KeyboardInterrupt

    def store(self, offset: int, data: object) -> None:
        self._step()
        self._real.store(offset, data)  # type: ignore[arg-type]

    def fence(self) -> None:
        self._step()
        self._real.fence()

    def invalidate(self, offset: int, length: int) -> None:
        self._real.invalidate(offset, length)

    def load(self, offset: int, length: int) -> bytes:
        return self._real.load(offset, length)


@pytest.mark.filterwarnings("ignore::engramdax.DegradedPoolWarning")  # for a moment one slot is bad
def test_a_load_that_fails_at_any_step_publishes_nothing_and_takes_no_row_from_a_reader(
    make_pool: MakePool, load_array: LoadArray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engramdax.pool.volume.SETTLE_SECONDS", 0.0)
    np.save(tmp_path / "new.npy", rows(1))
    seen_meanwhile = 0
    for step in itertools.count(1):
        path = make_pool(name=f"step{step}")
        load_array(path, "old", rows(0))
        with engramdax.open(path) as pool:
            free = pool.free()
        held: list[engramdax.Table] = []

        def look(path: Path = path, held: list[engramdax.Table] = held) -> None:
            with engramdax.Pool(path) as pool:
                held.extend(pool[name] for name in pool.tables)

        with open_sources([tmp_path / "new.npy"])[0] as source:
            writer = Writer(path)
            real = writer.media
            writer.media = FailingMedia(real, step, look)  # type: ignore[assignment]
            try:
                load_tables(writer, [Load(source, "new")])
            except KeyboardInterrupt:
                pass
            else:
                writer.close()
                assert step > 15
                break
            # The same writer goes on, with other bytes for whatever space it thinks is free.
            writer.media = real
            assert [t.name for t in writer.directory.published()] == ["old"]
            for name in ("x", "y"):
                np.save(tmp_path / "other.npy", rows(2))
                with open_sources([tmp_path / "other.npy"])[0] as other:
                    load_tables(writer, [Load(other, name)])
            writer.close()
        expected = {"old": rows(0), "new": rows(1)}
        seen_meanwhile += any(table.name == "new" for table in held)
        assert all((table.gather(np.arange(17000)) == expected[table.name]).all() for table in held), f"step {step}"
        held.clear()
        with Writer(path) as writer:
            writer.remove("x")
            writer.remove("y")
        with engramdax.open(path) as pool:
            assert pool.tables == ("old",)
            assert pool.free() == free
        path.unlink()
    # The dangerous moment did come up: published in one slot, and the writer fails.
    assert seen_meanwhile > 0


def test_a_source_that_changes_while_it_is_loaded_leaves_nothing(make_pool: MakePool, tmp_path: Path) -> None:
    path = make_pool()
    np.save(tmp_path / "t.npy", rows(0))
    with open_sources([tmp_path / "t.npy"])[0] as source, Writer(path) as writer:
        (tmp_path / "t.npy").touch()
        with pytest.raises(SourceError):
            load_tables(writer, [Load(source, "t")])
        assert writer.directory.tables == ()
        assert writer.free()[0].length == 20 << 20


def test_several_tables_are_published_in_one_step(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pool()
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", rows(ord(name)))
    seen: list[list[str]] = []
    with Writer(path) as writer:
        real = writer.publish

        def noted(**changes: Any) -> None:
            real(**changes)
            seen.append([t.name for t in writer.directory.published()])

        monkeypatch.setattr(writer, "publish", noted)
        sources = [open_sources([tmp_path / f"{name}.npy"])[0] for name in "ab"]
        load_tables(writer, [Load(source, source.name) for source in sources])
        for source in sources:
            source.close()
    assert seen == [[], ["a", "b"]]


def test_progress_ends_at_all_bytes(make_pool: MakePool, tmp_path: Path) -> None:
    path = make_pool()
    np.save(tmp_path / "t.npy", rows(0))
    told: list[tuple[str, int]] = []
    with open_sources([tmp_path / "t.npy"])[0] as source, Writer(path) as writer:
        load_tables(writer, [Load(source, "t")], progress=lambda name, done: told.append((name, done)))
    assert told[-1] == ("t", 17000 * 64)
    assert [done for _, done in told] == sorted(done for _, done in told)


def test_a_pool_file_with_holes_on_a_full_disk_is_told_before_a_row_is_written(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pool()
    np.save(tmp_path / "t.npy", rows(0))

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    with open_sources([tmp_path / "t.npy"])[0] as source, Writer(path) as writer:
        monkeypatch.setattr("os.posix_fallocate", full)
        with pytest.raises(BackingError, match="has holes and cannot be filled: No space left"):
            load_tables(writer, [Load(source, "t")])
        assert writer.directory.tables == ()


def test_an_interrupt_while_the_load_is_announced_frees_its_space(
    make_pool: MakePool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_pool()
    np.save(tmp_path / "t.npy", rows(0))
    with open_sources([tmp_path / "t.npy"])[0] as source, Writer(path) as writer:
        free = writer.free()
        real = writer.media
        # In one slot it stands already: clear, fence, payload, fence, header line, fence.
        writer.media = FailingMedia(real, 8, lambda: None)  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            load_tables(writer, [Load(source, "t")])
        writer.media = real
    with engramdax.open(path) as pool:
        assert pool.directory.unfinished() == []
        assert pool.free() == free
