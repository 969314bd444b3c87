# SPDX-License-Identifier: Apache-2.0
"""Commands that die in front of, or in the middle of, each store and fence that they make.

Each is run again and again with its death one step later, until it gets through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deaths import KILLED, Seen, run_dying

import engramdax
from engramdax.commands.main import run
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out

MIB = 1 << 20

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

Contents = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def contents() -> Contents:
    generator = np.random.default_rng(11)
    return {name: generator.integers(0, 256, (rows, 72), np.uint8) for name, rows in (("kept", 900), ("new", 40_000))}


@pytest.fixture
def pool(place: Path, contents: Contents, load_array: Callable[..., object]) -> Path:
    """Make a pool with the table "kept" and room for two of the kind of "new"."""
    path = place / "pool"
    carry_out(plan_file(path, 32 * MIB, name="crash", consent=Consent()).steps)
    load_array(path, "kept", contents["kept"])
    return path


@pytest.fixture
def load(place: Path, pool: Path, contents: Contents) -> list[str]:
    np.save(place / "new.npy", contents["new"])
    return ["load", str(place / "new.npy"), "--pool", str(pool)]


def deaths(arguments: list[str], *, torn: bool) -> Iterator[int]:
    """Let the command die at each of its steps in turn; give the number of each step it died at."""
    for step in count(1):
        code = run_dying(arguments, step, torn=torn)
        if code != KILLED:
            assert code == 0
            return
        yield step


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_load_that_dies_at_any_step_is_all_there_or_not_at_all(
    pool: Path, contents: Contents, load: list[str], torn: bool
) -> None:
    remove = ["rm", "new", "--pool", str(pool)]
    assert run(load) == 0
    clean = Seen(pool, contents)
    assert run(remove) == 0
    empty = Seen(pool, contents)
    published = []
    for step in deaths(load, torn=torn):
        after = Seen(pool, contents)
        assert after.tables >= {"kept"}
        assert after.generation >= empty.generation
        published.append("new" in after.tables)
        if published[-1]:
            assert run(remove) == 0
        assert run(load) == 0, step
        again = Seen(pool, contents)
        assert again.tables == {"kept", "new"}
        assert (again.free, again.unfinished, again.retired, again.degraded) == (clean.free, [], (), False)
        assert again.generation > after.generation
        assert run(remove) == 0
        assert Seen(pool, contents).free == empty.free
    # From one step on the table is there, and it dies some steps later still.
    assert published == sorted(published)
    assert {False, True} == set(published)
    assert len(published) > 20


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_writer_that_dies_while_it_clears_up_after_another_is_cleared_up_after(
    pool: Path, contents: Contents, load: list[str], torn: bool
) -> None:
    absent = ["rm", "absent", "--pool", str(pool)]
    empty = Seen(pool, contents)
    cleared = 0
    for step in count(1):
        code = run_dying(load, step, torn=torn)
        # A writer that finds nothing to do still clears up first.
        for again in count(1):
            after = Seen(pool, contents)
            assert after.tables in ({"kept"}, {"kept", "new"})
            ended = run_dying(absent, again, torn=torn)
            found = Seen(pool, contents)
            assert found.tables == after.tables
            assert found.generation >= after.generation
            if ended != KILLED:
                assert ended == 1
                break
            cleared += 1
        assert (found.unfinished, found.degraded, found.slots_agree) == ([], False, True)
        if "new" in found.tables:
            assert run(["rm", "new", "--pool", str(pool)]) == 0
        assert Seen(pool, contents).free == empty.free
        if code != KILLED:
            assert code == 0
            break
    assert cleared > 20


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_removal_that_dies_at_any_step_is_done_or_not(
    pool: Path, contents: Contents, load: list[str], torn: bool
) -> None:
    empty = Seen(pool, contents)
    assert run(load) == 0
    remove = ["rm", "new", "--pool", str(pool)]
    removed = []
    for _ in deaths(remove, torn=torn):
        after = Seen(pool, contents)
        assert after.tables >= {"kept"}
        removed.append("new" not in after.tables)
        assert run(remove) == removed[-1]  # 1, no such table, where it is gone
        assert Seen(pool, contents).free == empty.free
        assert run(load) == 0
    assert removed == sorted(removed)
    assert {False, True} == set(removed)


@pytest.mark.parametrize("torn", [False, True], ids=["before", "within"])
def test_provisioning_that_dies_at_any_step_leaves_no_half_a_pool(pool: Path, contents: Contents, torn: bool) -> None:
    old = pool.read_bytes()
    size = pool.stat().st_size
    provision = [
        "provision",
        "--file",
        str(pool),
        "--size",
        str(size),
        "--name",
        "new",
        "--force",
        "--overwrite-unknown",
    ]
    kinds = set()
    for _ in deaths(provision, torn=torn):
        try:
            after = Seen(pool, contents)
        except engramdax.NotAPoolError:
            kinds.add("none")
        except engramdax.FormatError:
            kinds.add("damaged")
        else:
            # The old pool as it was, or the new one, empty.
            assert after.tables in ({"kept"}, set())
            kinds.add(*after.tables or {"empty"})
        assert run(provision) == 0
        fresh = Seen(pool, contents)
        assert (fresh.tables, fresh.degraded) == (set(), False)
        pool.write_bytes(old)
    assert "none" in kinds
