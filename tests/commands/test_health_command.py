# SPDX-License-Identifier: Apache-2.0
"""`engramdax health`: what it prints, and the exit codes of a monitoring check."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from outcomes import Outcome
from prometheus_client.parser import text_string_to_metric_families

from engramdax.format.geometry import standard

MIB = 1 << 20


def spoil(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 64)


def test_whole_pool_ends_with_0_and_says_so(command: Callable[..., Outcome], pool: Path) -> None:
    done = command("health", "--pool", pool)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].split() == ["PROBE", "OBJECT", "STATE", "FIGURE", "FOUND"]
    assert "pool shelf on " in done.out.splitlines()[-1]
    assert " is ok: " in done.out.splitlines()[-1]


def test_warning_ends_with_1_and_its_remedy(command: Callable[..., Outcome], pool: Path) -> None:
    spoil(pool, standard(24 * MIB).slots[1])
    done = command("health", "--pool", pool)
    assert done.code == 1
    assert "pool.directory of slot 1: the owner's next command that writes repairs it" in done.out


def test_critical_ends_with_2(command: Callable[..., Outcome], pool: Path) -> None:
    pool.chmod(0o666)
    assert command("health", "--pool", pool).code == 2


def test_host_without_a_pool_ends_with_3(command: Callable[..., Outcome]) -> None:
    done = command("health")
    assert done.code == 3
    assert "no pool is known on this host" in done.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--no-such-option",), "No such option"),
        (("--sample", "5%"), "give --verify, too"),
        (("--verify", "--sample", "0"), "is no share"),
        (("--verify", "--sample", "many"), "is no share"),
        (("--skip", "nothing"), "is no probe"),
        (("--hosts", "a[1-"), "is no set of nodes"),
        (("--hosts", "a", "--timeout", "0"), "is out of range"),
        (("--hosts", "a", "--program", "'"), "is no command line"),
        (("--timeout", "5"), "go with --hosts"),
        (("--hosts", "a", "--prometheus", "x.prom"), "is for one host"),
        (("--prometheus", "/dev/null"), "character device"),
        (("--prometheus", "/no/such/folder/x.prom"), "cannot write"),
    ],
)
def test_check_that_fails_itself_is_unknown_and_never_a_warning(
    command: Callable[..., Outcome], pool: Path, arguments: tuple[str, ...], said: str
) -> None:
    command("health", "--pool", pool, *arguments).failed(3, said)


def test_json_holds_all_that_the_table_shows(command: Callable[..., Outcome], pool: Path) -> None:
    document = command("health", "--pool", pool, "--json").json()
    assert document["state"] == "ok"
    assert {f["state"] for f in document["findings"]} == {"ok"}
    assert document["pool"]["tables"][0]["name"] == "kept"
    assert document["versions"]["engramdax"]


def test_metrics_are_written_and_nothing_is_printed(
    command: Callable[..., Outcome], pool: Path, tmp_path: Path
) -> None:
    path = tmp_path / "engramdax.prom"
    done = command("health", "--pool", pool, "--prometheus", path)
    assert (done.code, done.out, done.err) == (0, "", "")
    names = {family.name for family in text_string_to_metric_families(path.read_text())}
    assert {"engramdax_health_state", "engramdax_pool_size_bytes", "engramdax_probe_success"} <= names


def test_verify_of_a_sample_is_remembered_by_health(command: Callable[..., Outcome], pool: Path) -> None:
    done = command("health", "--pool", pool, "--verify", "--sample", "50%", "--json").json()
    assert done["pool"]["tables"][0]["verified"]["share"] == 0.5
    command("verify", "--pool", pool).succeeded()
    done = command("health", "--pool", pool, "--json").json()
    assert done["pool"]["tables"][0]["verified"]["share"] == 1


def test_damage_that_verify_finds_is_remembered_by_health(command: Callable[..., Outcome], pool: Path) -> None:
    document = command("health", "--pool", pool, "--json").json()
    (table,) = document["pool"]["tables"]
    data = pool.read_bytes()
    at = data.find(np_rows(pool))
    spoil(pool, at)
    assert command("verify", "--pool", pool).code == 1
    pool.write_bytes(data)
    done = command("health", "--pool", pool, "--json")
    assert done.code == 2
    assert json.loads(done.out)["pool"]["tables"][0]["verified"]["bad_blocks"] == 1
    assert table["load"] == json.loads(done.out)["pool"]["tables"][0]["load"]


def np_rows(pool: Path) -> bytes:
    """Give the first bytes of the table in the pool."""
    import numpy as np

    import engramdax

    with engramdax.open(pool) as opened:
        return bytes(opened["kept"].gather(np.arange(2)).tobytes())


def test_process_ends_with_the_code_of_the_check(process: Callable[..., Outcome], pool: Path) -> None:
    assert process("health", "--pool", pool).code == 0
    pool.chmod(0o666)
    assert process("health", "--pool", pool).code == 2
    assert process("health", "--pool", pool, "--skip", "x").code == 3


def test_hosts_stand_in_a_table(process: Callable[..., Outcome], pool: Path, program: Path, tmp_path: Path) -> None:
    import os

    folder = tmp_path / "clustershell"
    folder.mkdir()
    (folder / "defaults.conf").write_text("[task.default]\ndistant_workername: exec\n")
    environment: dict[str, Any] = {**os.environ, "CLUSTERSHELL_CFGDIR": str(folder), "XDG_CONFIG_HOME": str(tmp_path)}
    script = f"case %host in good) exec {program} health --json --pool {pool};; *) echo Hello; esac"
    done = process("health", "--hosts", "good,odd", "--program", f"sh -c '{script}' sh", env=environment)
    lines = done.out.splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [["HOST", "STATE"], ["good", "ok"], ["odd", "rubbish"]]
    assert lines[3].startswith("odd: unknown: rubbish: what it said is no report: Hello; ")
    assert lines[-1] == "2 hosts: 1 ok, 1 unknown; together unknown"
    assert done.code == 3
