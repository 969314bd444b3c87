# SPDX-License-Identifier: Apache-2.0
"""Pools in huge pages of the real kernel: what provisioning takes from the host it gives back exactly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax import hugepages
from engramdax.backing import Kind
from engramdax.errors import BackingError, ParameterError, RefusedError
from engramdax.pool.provision import Plan, plan_hugepages, plan_removal
from engramdax.pool.records import record_of, resolve
from engramdax.pool.remains import lost_pool, plan_forgetting
from engramdax.pool.steps import carry_out
from tests.hugetlbfs import mounts

Count = Callable[[], int]
MIB = 1 << 20
PAGE = 2 * MIB


@pytest.fixture(autouse=True)
def pages(huge_pages: Count) -> Iterator[Count]:
    """Give the function that counts huge pages; take back whatever a failed test left."""
    before, mounted = huge_pages(), mounts()
    try:
        hugepages.add_pages(PAGE, 32)
    except (BackingError, RefusedError) as e:
        pytest.skip(f"no huge pages can be reserved here: {e}")
    hugepages.drop_pages(PAGE, 32)
    assert huge_pages() == before
    yield huge_pages
    for place in set(mounts()) - set(mounted):
        for file in Path(place).iterdir():
            file.unlink()
        hugepages.unmount(Path(place))


def provision(name: str, size: int = 32 * MIB) -> Plan:
    plan = plan_hugepages("2M", size, name=name)
    carry_out(plan.steps)
    return plan


def deprovision(path: Path, *, force: bool = False) -> None:
    carry_out(plan_removal(path, force=force).steps)


def test_a_pool_in_huge_pages_is_made_used_and_unmade_without_a_trace(
    pages: Count, load_array: Callable[..., object]
) -> None:
    before, mounted = pages(), mounts()
    plan = provision("huge")
    rows = np.random.default_rng(0).integers(0, 256, (20000, 264), dtype=np.uint8)
    load_array(plan.path, "t", rows)
    with engramdax.open("huge") as pool:
        assert pool.backing.kind is Kind.HUGETLBFS
        assert pool.page_bytes() == PAGE
        assert pool.superblock.size == 32 * MIB
        assert (pool["t"].gather(np.arange(20000)) == rows).all()
        assert pool["t"].verify() == []
    assert plan.path.stat().st_mode & 0o777 == 0o640
    with pytest.raises(RefusedError, match="holds 1 tables: t"):
        deprovision(plan.path)
    deprovision(plan.path, force=True)
    assert (pages(), mounts()) == (before, mounted)
    assert not plan.path.exists()


def test_sizes_are_rounded_up_to_whole_pages() -> None:
    plan = provision("odd", 17 * MIB + 1)
    assert plan.size == 18 * MIB
    with engramdax.open("odd") as pool:
        assert pool.superblock.size == 18 * MIB
    deprovision(plan.path)


def test_a_plan_alone_changes_nothing(pages: Count) -> None:
    before, mounted = pages(), mounts()
    plan = plan_hugepages("2M", 32 * MIB, name="huge")
    assert (pages(), mounts()) == (before, mounted)
    assert any("reserve" in step.what for step in plan.steps) or hugepages.available(PAGE) >= 16


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (2, "huge pages of 2097152 bytes are more than this machine's memory of"),
        (1, r"the kernel granted \d+ of \d+ huge pages .* bytes are missing"),
    ],
)
def test_asking_for_more_than_there_is_says_what_is_missing_and_changes_nothing(
    pages: Count, times: int, message: str
) -> None:
    before, mounted = pages(), mounts()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    plan = plan_hugepages("2M", times * memory // PAGE * PAGE, name="huge")
    with pytest.raises(BackingError, match=message):
        carry_out(plan.steps)
    assert (pages(), mounts()) == (before, mounted)
    assert not plan.path.exists()


@pytest.mark.parametrize("failing", [1, 2, 3, 4, 5])
def test_a_step_that_fails_undoes_those_before_it(pages: Count, failing: int) -> None:
    before, mounted = pages(), mounts()
    plan = plan_hugepages("2M", 32 * MIB, name="huge")
    steps = list(plan.steps)
    if failing > len(steps):
        pytest.skip(f"this host needs only {len(steps)} steps")

    def fail() -> None:
        raise BackingError("no more")

    steps.insert(failing, type(steps[0])("fail", fail))
    with pytest.raises(BackingError, match="no more"):
        carry_out(steps)
    assert (pages(), mounts()) == (before, mounted)
    assert not plan.path.exists()


def test_the_pages_that_are_there_already_are_used_and_stay(pages: Count) -> None:
    hugepages.add_pages(PAGE, 10)
    before = pages()
    plan = provision("huge")
    assert pages() - before <= 6
    deprovision(plan.path)
    assert pages() == before


def test_two_pools_on_one_mount_do_not_take_each_other_away(pages: Count, load_array: Callable[..., object]) -> None:
    before, mounted = pages(), mounts()
    first, second = provision("first"), provision("second")
    assert first.path.parent == second.path.parent
    rows = np.random.default_rng(1).integers(0, 256, (1000, 64), dtype=np.uint8)
    load_array(second.path, "t", rows)
    deprovision(first.path)
    with engramdax.open("second") as pool:
        assert (pool["t"].gather(np.arange(1000)) == rows).all()
    deprovision(second.path, force=True)
    assert (pages(), mounts()) == (before, mounted)


def test_a_name_that_is_taken_is_refused() -> None:
    plan = provision("huge")
    with pytest.raises(RefusedError, match=f"{plan.path} exists"):
        plan_hugepages("2M", 32 * MIB, name="huge")
    deprovision(plan.path)


def test_the_pool_is_found_by_its_name_and_its_record_says_what_to_give_back() -> None:
    plan = provision("huge")
    assert resolve("huge") == plan.path
    with engramdax.open(plan.path) as pool:
        record = record_of(pool.uuid)
    assert record is not None
    assert (record.name, record.path, record.huge_page_bytes) == ("huge", str(plan.path), PAGE)
    deprovision(plan.path)
    with pytest.raises(BackingError, match="there is no pool huge"):
        resolve("huge")


def test_a_pool_whose_file_is_gone_gives_its_huge_pages_back_when_it_is_forgotten(pages: Count) -> None:
    before, mounted = pages(), mounts()
    plan = provision("huge")
    plan.path.unlink()
    left = lost_pool("huge")
    assert left is not None
    carry_out(plan_forgetting(left, force=True).steps)
    assert (pages(), mounts()) == (before, mounted)
    assert lost_pool("huge") is None


def test_a_pool_whose_file_was_cut_short_gives_its_huge_pages_back_when_forced(pages: Count) -> None:
    before, mounted = pages(), mounts()
    plan = provision("huge")
    os.truncate(plan.path, 2 * PAGE)
    left = lost_pool("huge")
    assert left is not None
    with pytest.raises(RefusedError, match=f"the file has {2 * PAGE} bytes, the pool {32 * MIB}"):
        plan_forgetting(left, force=False)
    carry_out(plan_forgetting(left, force=True).steps)
    assert (pages(), mounts(), plan.path.exists()) == (before, mounted, False)


def test_an_open_pool_is_not_taken_away_unless_forced() -> None:
    plan = provision("huge")
    with engramdax.open("huge"), pytest.raises(RefusedError, match=f"is open in process {os.getpid()}"):
        deprovision(plan.path)
    deprovision(plan.path)


@pytest.mark.parametrize("page", ["4K", "", "2m"])
def test_other_page_sizes_are_refused(page: str) -> None:
    with pytest.raises(ParameterError, match="say 2M or 1G"):
        plan_hugepages(page, 32 * MIB, name="huge")
    with pytest.raises(BackingError, match="no huge pages of 12288 bytes"):
        hugepages.reserve_dir(12288)
