# SPDX-License-Identifier: Apache-2.0
"""What somebody else does between the plan of provisioning and its steps is not destroyed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax.errors import EngramdaxError, RefusedError
from engramdax.format.geometry import MIB
from engramdax.pool import provision
from engramdax.pool.provision import Consent, plan_file, plan_removal
from engramdax.pool.records import read_records
from engramdax.pool.steps import carry_out

SIZE = 32 * MIB
ROWS = np.arange(6400, dtype=np.uint8).reshape(100, 64)


def test_a_pool_made_after_the_plan_is_not_overwritten(tmp_path: Path, load_array: Callable[..., object]) -> None:
    path = tmp_path / "p.pool"
    late = plan_file(path, SIZE, name="late", consent=Consent())
    carry_out(plan_file(path, SIZE, name="first", consent=Consent()).steps)
    load_array(path, "t", ROWS)
    with pytest.raises(RefusedError, match="made by somebody else meanwhile"):
        carry_out(late.steps)
    with engramdax.open(path) as pool:
        assert pool.name == "first"
        assert (pool["t"].gather(np.arange(100)) == ROWS).all()


def test_a_pool_made_in_an_empty_file_after_the_plan_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "p.pool"
    path.touch()
    late = plan_file(path, SIZE, name="late", consent=Consent())
    carry_out(plan_file(path, SIZE, name="first", consent=Consent()).steps)
    with pytest.raises(RefusedError, match="holds pool first"):
        carry_out(late.steps)
    with engramdax.open(path) as pool:
        assert pool.name == "first"


def test_a_step_that_fails_undoes_its_own_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.pool"
    plan = plan_file(path, SIZE, name="late", consent=Consent())

    def replaced(_record: object) -> None:
        path.unlink()
        carry_out(plan_file(path, SIZE, name="other", consent=Consent()).steps[:2])
        raise EngramdaxError("no record")

    monkeypatch.setattr(provision, "write_record", replaced)
    with pytest.raises(EngramdaxError, match="no record"):
        carry_out(plan.steps)
    with engramdax.open(path) as pool:
        assert pool.name == "other"


def test_an_empty_file_is_empty_again_after_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.pool"
    path.touch()

    def fail(_record: object) -> None:
        raise EngramdaxError("no record")

    monkeypatch.setattr(provision, "write_record", fail)
    with pytest.raises(EngramdaxError, match="no record"):
        carry_out(plan_file(path, SIZE, name="p", consent=Consent()).steps)
    assert path.stat().st_size == 0


def test_a_table_published_after_the_plan_of_removal_is_not_removed(
    make_pool: Callable[..., Path], load_array: Callable[..., object]
) -> None:
    path = make_pool()
    plan = plan_removal(path, force=False)
    load_array(path, "t", ROWS)
    with pytest.raises(RefusedError, match="holds 1 tables: t"):
        carry_out(plan.steps)
    with engramdax.open(path) as pool:
        assert (pool["t"].gather(np.arange(100)) == ROWS).all()


def test_removal_by_a_link_removes_the_file(make_pool: Callable[..., Path], tmp_path: Path) -> None:
    path = make_pool()
    link = tmp_path / "link"
    link.symlink_to(path)
    carry_out(plan_removal(link, force=False).steps)
    assert not path.exists()


def test_bytes_anywhere_in_a_large_file_count(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1088 * MIB)
        file.seek(600 * MIB + 8192)
        file.write(b"somebody's data")
    with pytest.raises(RefusedError, match=f"unknown bytes at {600 * MIB + 8192}"):
        plan_file(path, 1088 * MIB, name="p", consent=Consent())


def test_provisioning_over_a_pool_forgets_the_one_before(make_pool: Callable[..., Path]) -> None:
    path = make_pool(name="before")
    carry_out(plan_file(path, SIZE, name="after", consent=Consent(force=True)).steps)
    assert [record.name for record in read_records()] == ["after"]


def test_a_path_that_is_no_utf8_is_a_path_like_any_other(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/p\xff.pool"))
    carry_out(plan_file(path, SIZE, name="p", consent=Consent()).steps)
    with engramdax.open("p") as pool:
        assert pool.tables == ()
    carry_out(plan_removal(path, force=False).steps)
    assert not path.exists()
