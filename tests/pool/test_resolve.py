# SPDX-License-Identifier: Apache-2.0
"""How a user names a pool, and what is said when that names none or several."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import engramdax
from engramdax.errors import BackingError, ParameterError
from engramdax.pool.provision import Consent, plan_file, plan_removal
from engramdax.pool.records import known_pools, read_records, resolve
from engramdax.pool.steps import carry_out

MakePool = Callable[..., Path]
MIB = 1 << 20


def test_a_path_is_itself_whether_something_is_there_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("/no/such/thing") == Path("/no/such/thing")
    assert resolve(tmp_path / "x") == tmp_path / "x"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").touch()
    assert resolve("here") == Path("here")
    assert resolve("./none") == Path("none")


def test_a_dax_device_needs_no_directory() -> None:
    assert resolve("dax0.0") == Path("/dev/dax0.0")
    assert resolve("dax12.3") == Path("/dev/dax12.3")


def test_a_name_and_a_uuid_find_their_pool(make_pool: MakePool) -> None:
    path = make_pool(name="alpha")
    make_pool(name="beta")
    with engramdax.open(path) as pool:
        uuid = str(pool.uuid)
    assert resolve("alpha") == path
    assert resolve(uuid) == path


def test_the_environment_names_the_pool_when_nothing_else_does(
    make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    alpha, beta = make_pool(name="alpha"), make_pool(name="beta")
    monkeypatch.setenv("ENGRAMDAX_POOL", "beta")
    assert resolve(None) == beta
    assert resolve("alpha") == alpha
    with engramdax.open() as pool:
        assert pool.name == "beta"


def test_the_only_pool_needs_no_name(make_pool: MakePool) -> None:
    path = make_pool()
    assert resolve(None) == path


def test_no_pool_at_all_says_how_to_make_one() -> None:
    with pytest.raises(ParameterError, match="no pool is known on this host; `engramdax provision` makes one"):
        resolve(None)


def test_several_pools_without_a_name_are_listed(make_pool: MakePool) -> None:
    alpha, beta = make_pool(name="alpha"), make_pool(name="beta")
    with pytest.raises(ParameterError) as caught:
        resolve(None)
    assert "there are 2 pools" in caught.value.problem
    assert f"alpha ({alpha})" in caught.value.problem
    assert f"beta ({beta})" in caught.value.problem


def test_an_unknown_name_lists_the_known_ones(make_pool: MakePool) -> None:
    make_pool(name="alpha")
    with pytest.raises(BackingError, match="there is no pool gamma on this host; its pools: alpha"):
        resolve("gamma")


def test_a_pool_that_is_gone_is_told_from_one_that_never_was(make_pool: MakePool) -> None:
    make_pool(name="alpha")
    beta = make_pool(name="beta")
    beta.unlink()
    with pytest.raises(BackingError, match=r"pool beta \(.*\) was at .* and is not there now; .*forgets it"):
        resolve("beta")


def test_two_pools_of_one_name_are_ambiguous_but_for_their_uuids(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    plans = [plan_file(path, 16 << 20, name="same", consent=Consent()) for path in paths]
    for plan in plans:
        carry_out(plan.steps)
    with pytest.raises(ParameterError, match=r"2 pools are named same: .*name one by its path or uuid") as caught:
        resolve("same")
    assert all(str(path) in caught.value.problem for path in paths)
    assert [resolve(plan.uuid) for plan in plans] == paths


def test_an_empty_name_is_not_the_only_pool(make_pool: MakePool) -> None:
    make_pool()
    with pytest.raises(ParameterError, match="name is empty"):
        resolve("")


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000, "\udcff"])
def test_names_that_no_file_can_have_are_refused_in_words(name: str) -> None:
    with pytest.raises((ParameterError, BackingError)):
        resolve(name)


def test_pools_that_are_gone_are_not_known(make_pool: MakePool) -> None:
    alpha, beta = make_pool(name="alpha"), make_pool(name="beta")
    alpha.unlink()
    assert [record.name for record in known_pools()] == ["beta"]
    assert resolve(None) == beta
    # A file that lost its pool is still what the name means: opening it says what is wrong.
    beta.write_bytes(bytes(1 << 20))
    assert resolve(None) == beta
    beta.unlink()
    with pytest.raises(BackingError, match=r"the pools of this host are gone: .*beta \([^)]*\) was at"):
        resolve(None)


def test_a_damaged_record_costs_a_name_and_not_the_others(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_pool(name="alpha")
    make_pool(name="beta")
    records = sorted(Path(os.environ["ENGRAMDAX_STATE_DIR"]).joinpath("pools").glob("*.json"))
    victim = next(r for r in records if "beta" in r.read_text())
    for text in ("", "nonsense", "[]", "5", '{"uuid": 1}'):
        victim.write_text(text)
        assert [record.name for record in read_records()] == ["alpha"]
        assert resolve("alpha") == path


def test_a_removed_pool_is_forgotten(make_pool: MakePool) -> None:
    path = make_pool(name="alpha")
    carry_out(plan_removal(path, force=False).steps)
    assert not path.exists()
    assert read_records() == []


HOMELESS = """
import os, pwd, sys
from pathlib import Path
from engramdax import host
from engramdax.errors import BackingError
from engramdax.pool import records
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
def no_entry(uid):
    raise KeyError(uid)
pwd.getpwuid = no_entry
"""
"""A user without rights and without a home, from when all is imported: the interpreter may be root's alone."""


def homeless(code: str, *arguments: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root may become another user")
    done = subprocess.run(
        [sys.executable, "-c", HOMELESS + code, *map(str, arguments)],
        env={
            **{k: v for k, v in os.environ.items() if not k.startswith(("HOME", "XDG_", "ENGRAMDAX_"))},
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_a_user_without_a_home_finds_what_root_provisioned(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setenv("ENGRAMDAX_STATE_DIR", str(folder / "state"))
        path = folder / "shelf.pool"
        carry_out(plan_file(path, 32 * MIB, name="shelf", consent=Consent()).steps)
        path.chmod(0o644)
        find = "records.SYSTEM_STATE = Path(sys.argv[1])\nprint(records.resolve('shelf'))"
        assert homeless(find, folder / "state") == f"{path}\n"


def test_a_user_without_a_home_is_told_what_to_set() -> None:
    told = homeless("try:\n    host.state_dir()\nexcept BackingError as e:\n    print(e)")
    assert told == "this user has no home directory; set ENGRAMDAX_STATE_DIR and ENGRAMDAX_RUN_DIR\n"
