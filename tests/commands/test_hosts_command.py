# SPDX-License-Identifier: Apache-2.0
"""`hosts`: which hosts a shared pool admits, and the owner's say in it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from outcomes import Outcome, unchanged

from engramdax.format.directory import Host
from engramdax.host import host_id, host_name
from engramdax.pool.volume import publish, write_superblock
from engramdax.pool.writer import Writer

Command = Callable[..., Outcome]

OTHER = UUID("0699ca81-a68d-4c25-b75e-21921c79f751")


@pytest.fixture
def shared(pool: Path) -> Path:
    """Make the pool a shared one that this host owns."""
    with Writer(pool) as writer:
        write_superblock(writer.media, replace(writer.superblock, shared=True))
    return pool


def listed(command: Command, pool: Path) -> list[tuple[str, str, bool]]:
    hosts = command("hosts", "--pool", pool, "--json").json()["hosts"]
    return [(h["id"], h["name"], h["owner"]) for h in hosts]


def test_owner_admits_and_forgets_a_host(command: Command, shared: Path) -> None:
    here = (str(host_id()), host_name(), True)
    assert listed(command, shared) == [here]
    said = command("hosts", "admit", OTHER, "--name", "h1", "--pool", shared).succeeded().out
    assert said == f"h1 ({OTHER}) is admitted to shelf\n"
    assert listed(command, shared) == [here, (str(OTHER), "h1", False)]
    said = command("hosts", "forget", OTHER, "--pool", shared).succeeded().out
    assert said == f"h1 ({OTHER}) is admitted to shelf no more\n"
    assert listed(command, shared) == [here]


def test_admitting_again_changes_nothing_but_a_name(command: Command, shared: Path) -> None:
    command("hosts", "admit", OTHER, "--name", "h1", "--pool", shared).succeeded()
    with unchanged(shared):
        for options in (["--name", "h1"], []):
            said = command("hosts", "admit", OTHER, *options, "--pool", shared).succeeded().out
            assert "was admitted to shelf already" in said
    command("hosts", "admit", OTHER, "--name", "rack7", "--pool", shared).succeeded()
    assert [name for _, name, _ in listed(command, shared)] == [host_name(), "rack7"]


def test_hosts_are_listed_as_text(command: Command, shared: Path) -> None:
    command("hosts", "admit", OTHER, "--name", "h1", "--pool", shared).succeeded()
    lines = command("hosts", "--pool", shared).succeeded().out.splitlines()
    assert lines[0].split() == ["HOST", "ID"]
    assert lines[1].split() == [host_name(), str(host_id()), "owner,", "this", "host"]
    assert lines[2].split() == ["h1", str(OTHER)]
    assert command("hosts", "admit", OTHER, "--pool", shared, "--json").json()["changed"] is False


@pytest.mark.parametrize("name", ["a\x1b[2Jb", "x" * 65, "two\nlines"])
def test_names_that_no_host_has_are_refused(command: Command, shared: Path, *, name: str) -> None:
    with unchanged(shared):
        command("hosts", "admit", OTHER, "--name", name, "--pool", shared).failed(2, "is no host name", "64 printable")


def test_two_hosts_of_one_pool_are_never_called_the_same(command: Command, shared: Path) -> None:
    with unchanged(shared):
        command("hosts", "admit", OTHER, "--name", host_name(), "--pool", shared).failed(2, "already", "another --name")


def test_owner_cannot_be_forgotten_nor_a_host_that_is_not_there(command: Command, shared: Path) -> None:
    with unchanged(shared):
        command("hosts", "forget", host_id(), "--pool", shared).failed(3, "owns pool shelf", "cannot be forgotten")
        stranger = uuid4()
        command("hosts", "forget", stranger, "--pool", shared).failed(2, f"no host {stranger} is admitted", "lists")
        for verb in ("admit", "forget"):
            command("hosts", verb, "h1", "--pool", shared).failed(2, "'h1' is no host id", "provision --join")


def test_pool_of_one_host_alone_admits_nobody(command: Command, pool: Path) -> None:
    with unchanged(pool):
        command("hosts", "admit", OTHER, "--pool", pool).failed(3, "is not shared", "--single-host")


def test_host_that_does_not_own_the_pool_admits_nobody(command: Command, shared: Path) -> None:
    with Writer(shared) as writer:
        owner, now = Host(uuid4(), "elsewhere"), writer.directory
        taken = replace(now, epoch=now.epoch + 1, generation=now.generation + 1, owner=owner.id)
        # Past this writer, which would find itself deposed between the slots.
        publish(writer.media, writer.superblock, replace(taken, hosts=(*now.hosts, owner)))
    with unchanged(shared):
        command("hosts", "admit", OTHER, "--pool", shared).failed(3, "is written by host elsewhere", "run this on")
        command("deprovision", "--force", "--pool", shared).failed(3, "is owned by elsewhere", "run this on elsewhere")


def test_pool_with_other_hosts_is_unmade_by_force_alone(command: Command, shared: Path) -> None:
    command("rm", "kept", "--pool", shared).succeeded()
    command("hosts", "admit", OTHER, "--name", "h1", "--pool", shared).succeeded()
    with unchanged(shared):
        command("deprovision", "--pool", shared).failed(3, "has other hosts admitted: h1", "hosts forget", "--force")
    command("deprovision", "--force", "--pool", shared).succeeded()
    assert not shared.exists()


@pytest.fixture
def local_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let ClusterShell start here what it would send to hosts; gives the program."""
    folder = tmp_path / "clustershell"
    folder.mkdir()
    (folder / "defaults.conf").write_text("[task.default]\ndistant_workername: exec\n")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return f"sh -c 'case %host in silent) exit 1;; *) exec {sys.executable} -m engramdax \"$@\";; esac' sh"


def test_processes_of_each_host_are_listed_with_the_generation_they_hold(
    process: Command, command: Command, shared: Path, local_worker: str
) -> None:
    command("hosts", "admit", OTHER, "--name", "h1", "--pool", shared).succeeded()
    hold = "import sys, engramdax; t = engramdax.open(sys.argv[1])['kept']; print('holding', flush=True); input()"
    options = ["--pool", shared, "--hosts", "here,silent", "--program", local_worker, "--timeout", "60"]
    with subprocess.Popen(
        [sys.executable, "-c", hold, shared], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "holding\n"
        hosts = process("hosts", *options, "--json").json()["hosts"]
        lines = process("hosts", *options).succeeded().out.splitlines()
        reader.kill()
    (found,) = [r for r in hosts[0]["readers"] if r["pid"] == reader.pid]
    assert found["generation"] == 4
    assert hosts[1]["readers"] is None
    assert f"{reader.pid} ({found['command']}) holds generation 4" in lines[1]
    assert lines[2].rstrip().endswith("not known: it did not answer")
