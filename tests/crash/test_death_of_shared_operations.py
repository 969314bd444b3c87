# SPDX-License-Identifier: Apache-2.0
"""Replacing, resuming, repairing, reclaiming, releasing and taking over, which die at each store and fence."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deaths import KILLED, Seen, run_dying

import engramdax
from engramdax.commands.main import run

sys.path.append(str(Path(__file__).parents[1] / "pool"))
from shared_pool import SharedPool

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::engramdax.DegradedPoolWarning"),
]

ROWS = 40_000


def rows(seed: int, number: int = ROWS) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (number, 72), np.uint8)


@pytest.fixture
def shared(place: Path, monkeypatch: pytest.MonkeyPatch) -> SharedPool:
    """Make a pool of two hosts, be the first one, and let each host be asked."""
    monkeypatch.setattr("engramdax.pool.ownership.SETTLE_SECONDS", 0.0)
    made = SharedPool(place, "alpha", "beta")
    be(made, "alpha", monkeypatch)
    np.save(place / "old.npy", rows(1))
    np.save(place / "new.npy", rows(2))
    assert run(["load", str(place / "old.npy"), "--name", "t", "--pool", str(made.path)]) == 0
    return made


def be(shared: SharedPool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in shared.environment(name).items():
        monkeypatch.setenv(key, value)


def deaths(arguments: list[str], *, torn: bool) -> Iterator[int]:
    for step in count(1):
        code = run_dying(arguments, step, torn=torn)
        if code != KILLED:
            assert code == 0
            return
        yield step


def whole(path: Path) -> bytes:
    return path.read_bytes()


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_replacement_that_dies_at_any_step_shows_the_old_version_or_the_new(shared: SharedPool, torn: bool) -> None:
    before = whole(shared.path)
    replace = ["load", str(shared.folder / "new.npy"), "--name", "t", "--replace", "--pool", str(shared.path)]
    seen = []
    for _ in deaths(replace, torn=torn):
        with engramdax.open(shared.path) as pool:
            row = pool["t"].entry.extent.offset
            new = whole(shared.path)[row : row + 72] == rows(2)[0].tobytes()
        found = Seen(shared.path, {"t": rows(2) if new else rows(1)})
        seen.append(new)
        # Whoever goes on, by resuming or anew, ends with the new version alone.
        again = "--resume" if found.unfinished else "--replace"
        assert run([*replace[:-3], again, *replace[-2:]]) == 0
        after = Seen(shared.path, {"t": rows(2)})
        assert (after.unfinished, after.degraded, after.slots_agree) == ([], False, True)
        shared.path.write_bytes(before)
    assert seen == sorted(seen)
    assert {False, True} == set(seen)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_resumed_load_that_dies_at_any_step_can_be_resumed(shared: SharedPool, torn: bool) -> None:
    load = ["load", str(shared.folder / "new.npy"), "--name", "n", "--pool", str(shared.path)]
    assert run_dying(load, 10, torn=True) == KILLED
    before = whole(shared.path)
    published = []
    contents = {"t": rows(1), "n": rows(2)}
    for _ in deaths([*load, "--resume"], torn=torn):
        published.append("n" in Seen(shared.path, contents).tables)
        if not published[-1]:
            assert run([*load, "--resume"]) == 0
        assert Seen(shared.path, contents).tables == {"t", "n"}
        shared.path.write_bytes(before)
    assert {False, True} == set(published)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_repair_that_dies_at_any_step_can_be_repeated(shared: SharedPool, torn: bool) -> None:
    with engramdax.open(shared.path) as pool:
        entry = pool["t"].entry
    with shared.path.open("r+b") as file:
        for offset in (entry.extent.offset + 3, entry.extent.offset + (1 << 20) + 9):
            file.seek(offset)
            file.write(b"rotten")
    before = whole(shared.path)
    repair = ["repair", "t", str(shared.folder / "old.npy"), "--pool", str(shared.path)]
    for _ in deaths(repair, torn=torn):
        assert run(repair) == 0
        Seen(shared.path, {"t": rows(1)})
        shared.path.write_bytes(before)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_reclaim_that_dies_at_any_step_loses_nothing(
    shared: SharedPool, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ["--pool", str(shared.path)]
    assert run(["load", str(shared.folder / "new.npy"), "--name", "n", *pool]) == 0
    assert run(["rm", "n", *pool]) == 0
    assert Seen(shared.path, {"t": rows(1)}).retired
    monkeypatch.setenv("ENGRAMDAX_ASK", shared.ask())
    before = whole(shared.path)
    died = 0
    for _ in deaths(["reclaim", *pool], torn=torn):
        died += 1
        Seen(shared.path, {"t": rows(1)})
        assert run(["reclaim", *pool]) == 0
        assert Seen(shared.path, {"t": rows(1)}).retired == ()
        shared.path.write_bytes(before)
    assert died >= 8


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_release_that_dies_at_any_step_leaves_an_owner_who_can_go_on(
    shared: SharedPool, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ["--pool", str(shared.path)]
    before = whole(shared.path)
    heir_took = []
    for _ in deaths(["own", "--release", *pool], torn=torn):
        Seen(shared.path, {"t": rows(1)})
        be(shared, "beta", monkeypatch)
        taken = run(["load", str(shared.folder / "new.npy"), "--name", "n", *pool])
        heir_took.append(taken == 0)
        if taken:
            # Not released, or not to the end: an operator looks, and says that alpha is off.
            assert taken == 3
            assert run(["own", "--take-over", "--fenced", *pool]) == 0
            assert run(["load", str(shared.folder / "new.npy"), "--name", "n", *pool]) == 0
        assert Seen(shared.path, {"t": rows(1), "n": rows(2)}).tables == {"t", "n"}
        be(shared, "alpha", monkeypatch)
        shared.path.write_bytes(before)
    assert heir_took == sorted(heir_took)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_a_take_over_that_dies_at_any_step_can_be_repeated(
    shared: SharedPool, torn: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = ["--pool", str(shared.path)]
    load = ["load", str(shared.folder / "new.npy"), "--name", "n", *pool]
    assert run_dying(load, 10, torn=True) == KILLED
    before = whole(shared.path)
    be(shared, "beta", monkeypatch)
    take = ["own", "--take-over", "--fenced", *pool]
    died = 0
    for _ in deaths(take, torn=torn):
        died += 1
        Seen(shared.path, {"t": rows(1)})
        assert run(take) == 0
        assert run([*load, "--resume"]) == 0
        after = Seen(shared.path, {"t": rows(1), "n": rows(2)})
        assert (after.tables, after.unfinished, after.degraded) == ({"t", "n"}, [], False)
        shared.path.write_bytes(before)
    assert died >= 8  # two claims and a publication, each with its fences
    assert os.environ["ENGRAMDAX_STATE_DIR"].endswith("beta/state")
