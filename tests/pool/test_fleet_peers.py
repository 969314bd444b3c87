# SPDX-License-Identifier: Apache-2.0
"""Proof from the hosts of a fleet, each of which says itself which host it is."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from processes import HOLD_TABLE, process
from shared_pool import PROGRAM, SharedPool

import engramdax
from engramdax.commands.main import run
from engramdax.errors import ParameterError
from engramdax.fleet import Fleet, chosen_fleet, configured_fleet
from engramdax.format.directory import Host
from engramdax.pool.peers import Answer, FleetPeers, configured_peers

pytestmark = [
    pytest.mark.usefixtures("local_nodes"),
    pytest.mark.unsanitized,  # next to nothing of it is in C
]

SECONDS = 60.0


@pytest.fixture
def shared(tmp_path: Path) -> SharedPool:
    return SharedPool(tmp_path, "alpha", "beta", "gamma")


def rows() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (40_000, 64), dtype=np.uint8)


def real(shared: SharedPool, *, without: str = "") -> str:
    """Give a program that is, on node n-NAME, engramdax of host NAME; it is not installed on the node `without`.

    No node is called as its host is.
    """
    folder = f"{shared.folder}/${{0#n-}}"
    script = (
        f'[ $0 = "{without}" ] && exec no-such-program; '
        f'ENGRAMDAX_STATE_DIR="{folder}/state" ENGRAMDAX_RUN_DIR="{folder}/run" exec {PROGRAM} "$@"'
    )
    return f"sh -c {shlex.quote(script)} %host"


class Told:
    """Hosts that say what a test wants; a node's answer is a file of its name."""

    def __init__(self, shared: SharedPool) -> None:
        self._shared = shared
        self.pool = uuid_of(shared)
        self.folder = shared.folder / "told"
        self.folder.mkdir()
        self.program = f"sh -c {shlex.quote(f'. {self.folder}/%host')} sh"

    def says(self, node: str, host: str, *pinned: int, writing: bool = False, **more: Any) -> None:
        here = Answer(pinned, writing).to_json(self._shared.ids[host])
        text = json.dumps({"uuid": str(self.pool), "here": here, **more})
        self.does(node, f"echo Welcome to [{node}]; echo {shlex.quote(text)}")

    def does(self, node: str, script: str) -> None:
        (self.folder / node).write_text(script + "\n")

    def ask(self, nodes: str, *hosts: str, seconds: float = SECONDS) -> tuple[dict[str, Answer | None], FleetPeers]:
        peers = FleetPeers(Fleet(nodes, self.program, timeout=seconds))
        asked = [Host(self._shared.ids[name], name) for name in hosts]
        return {host.name: answer for host, answer in peers.ask(asked, self.pool).items()}, peers


def uuid_of(shared: SharedPool) -> UUID:
    with shared.on("alpha"), engramdax.open(shared.path) as pool:
        return pool.uuid


@pytest.fixture
def told(shared: SharedPool) -> Told:
    return Told(shared)


def test_hosts_are_known_by_what_they_say_and_not_by_their_nodes(told: Told) -> None:
    told.says("node1", "gamma", 7)
    told.says("node2", "beta", writing=True)
    answers, peers = told.ask("node[1-2]", "beta", "gamma", "alpha")
    assert answers == {"beta": Answer((), writing=True), "gamma": Answer((7,), writing=False), "alpha": None}
    assert peers.problems == ["no node of node[1-2] says that it is alpha"]
    assert told.ask("node[1-2]", "beta")[1].problems == []


def test_what_is_no_answer_is_none_and_told(told: Told) -> None:
    told.says("other", "beta", uuid="11111111-2222-4333-8444-555555555555")
    told.says("user", "beta", here=None)
    told.says("odd", "beta", here={"host": "x", "pinned": [-1], "writing": False})
    told.says("torn", "beta", here={"host": str(told.pool), "pinned": {}, "writing": False})
    told.does("list", "echo '[{\"here\": []}]'")
    told.does("refuses", "echo engramdax: this host is not admitted >&2; exit 3")
    told.does("rubbish", "echo '<html>'")
    answers, peers = told.ask("list,odd,other,refuses,rubbish,torn,user", "beta")
    assert answers == {"beta": None}
    said = "\n".join(peers.problems)
    for words in (
        "other: it sees pool 11111111-",
        "user: engramdax is not root there",
        "odd: what it said is no answer: ValueError(",
        "torn: what it said is no answer: ValueError(",
        "refuses: exit code 3: engramdax: this host is not admitted",
        "rubbish: what it said is no report: <html>",
        "list: what it said is no answer: KeyError('uuid')",
    ):
        assert words in said


def test_two_nodes_that_say_they_are_one_host_count_together(told: Told) -> None:
    told.says("node1", "beta", 3)
    told.says("node2", "beta", 5, writing=True)
    told.says("node3", "beta")
    assert told.ask("node[1-3]", "beta")[0] == {"beta": Answer((3, 5), writing=True)}


def test_nodes_are_asked_at_once(told: Told) -> None:
    for node, host in (("node1", "alpha"), ("node2", "beta")):
        # Neither says anything before both are asked.
        told.says(node, host)
        wait = f"touch {told.folder}/asked-{node}; until [ -e {told.folder}/asked-node1 ] && "
        wait += f"[ -e {told.folder}/asked-node2 ]; do sleep 0.05; done"
        told.does(node, f"{wait}\n{(told.folder / node).read_text()}")
    answers, _ = told.ask("node[1-2]", "alpha", "beta")
    assert answers == {"alpha": Answer((), writing=False), "beta": Answer((), writing=False)}


def test_node_that_hangs_is_asked_once(told: Told, shared: SharedPool) -> None:
    asked = told.folder / "asked"
    told.does("node1", f"echo again >> {asked}; exec sleep 30")  # which outlives the shell that is killed
    answers, peers = told.ask("node1", "beta", seconds=2)
    assert answers == {"beta": None}
    problems = ["node1: no answer within 2 s"]
    assert peers.problems == problems
    told.says("node1", "beta")
    host = Host(shared.ids["beta"], "beta")
    assert peers.ask([host], told.pool) == {host: None}
    assert peers.problems == problems
    assert asked.read_text() == "again\n"


def options(shared: SharedPool, nodes: str, program: str = "") -> list[str]:
    return ["--pool", str(shared.path), "--hosts", nodes, "--program", program or real(shared), "--timeout", "60"]


def test_reclaim_waits_for_a_reader_elsewhere_until_it_was_killed(
    shared: SharedPool, capsys: pytest.CaptureFixture[str]
) -> None:
    reclaim = ["reclaim", *options(shared, "n-beta,n-gamma")]
    with shared.on("alpha"):
        shared.load("a", rows())
        with shared.on("beta"), process(HOLD_TABLE, shared.path, "a") as reader:
            assert reader.hear() == "holding"
            with shared.on("alpha"):
                assert run(["rm", "a", "--pool", str(shared.path)]) == 0
                assert run(reclaim) == 3
                assert f"readers on host beta ({shared.ids['beta']}) hold older" in capsys.readouterr().out
            reader.kill()
        assert run(reclaim) == 0
        assert "wait" not in capsys.readouterr().out


def test_reclaim_without_an_answer_of_each_host_frees_nothing_and_says_why(
    shared: SharedPool, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.on("alpha"):
        shared.load("a", rows())
        assert run(["rm", "a", "--pool", str(shared.path)]) == 0
        capsys.readouterr()
        program = real(shared, without="n-gamma")
        assert run(["reclaim", "--json", *options(shared, "n-beta,n-gamma", program)]) == 3
        document = json.loads(capsys.readouterr().out)
        assert document["silent"] == [str(shared.ids["gamma"])]
        assert [w["name"] for w in document["waiting"]] == ["a"]
        assert document["problems"][0].startswith("n-gamma: exit code 127")


def test_take_over_is_proven_by_the_hosts_of_a_fleet(
    shared: SharedPool, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    # Told and not asked: in a file all hosts have one lock, and the command that takes over holds it.
    told.says("node1", "alpha", writing=True)
    told.says("node2", "gamma")
    take = ["own", "--take-over", *options(shared, "node[1-2]", told.program)]
    with shared.on("beta"):
        assert run(take) == 1
        assert "has a writer: repeat this when it has ended" in capsys.readouterr().out
        told.says("node1", "alpha", 1)
        assert run(take) == 0


def test_deprovision_is_refused_until_each_host_says_that_nobody_has_the_pool_open(
    shared: SharedPool, told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    told.says("node1", "beta", 1)
    told.does("node2", "exit 1")
    unmake = ["deprovision", *options(shared, "node[1-2]", told.program)]
    with shared.on("alpha"):
        assert run(unmake) == 3
        said = capsys.readouterr().err
        assert "has other hosts admitted: beta, gamma, and gamma did not answer" in said
        assert "node2: what it said is no report: it said nothing" in said
        told.says("node2", "gamma")
        assert run(unmake) == 3
        assert "is open on beta" in capsys.readouterr().err
        told.says("node1", "beta")
        assert run([*unmake, "--dry-run"]) == 0
        assert shared.path.exists()
        assert run(unmake) == 0
    assert not shared.path.exists()


def test_hosts_that_a_file_names_need_no_option(
    shared: SharedPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setting = shared.folder / "fleet.toml"
    setting.write_text(f"hosts = 'n-beta,n-gamma'\nprogram = {json.dumps(real(shared))}\ntimeout = 60\n")
    setting.chmod(0o644)
    monkeypatch.setenv("ENGRAMDAX_FLEET", str(setting))
    with shared.on("alpha"):
        shared.load("a", rows())
        assert run(["rm", "a", "--pool", str(shared.path)]) == 0
        assert capsys.readouterr().out == "a is removed; its space is free\n"
    # An option counts more than the file, the file more than what is usual.
    assert chosen_fleet("x", timeout=None, program=None) == Fleet("x", real(shared), timeout=60)
    assert chosen_fleet(None, timeout=3.0) == Fleet("n-beta,n-gamma", real(shared), timeout=3.0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hosts = [", "is no TOML"),
        ("program = 'x'", "names no hosts"),
        ("hosts = 'a'\nuser = 'b'", "user = 'b' is no setting"),
        ("hosts = 'a'\ntimeout = '3'", "timeout = '3' is no setting"),
        ("hosts = 'a'\ntimeout = true", "timeout = True is no setting"),
        ("hosts = 'a'\ntimeout = 0", "is out of range"),
        ("hosts = 'a'\ntimeout = inf", "is out of range"),
        ("hosts = 'a'\ntimeout = nan", "is out of range"),
        (f"hosts = 'a'\ntimeout = {10**400}", "is out of range"),
        ("hosts = 'a'\nprogram = ' '", "the program is empty"),
        ("hosts = 'a'\nprogram = '\"'", "is no command line"),
        (None, "cannot read"),
    ],
)
def test_file_that_says_something_else_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, said: str
) -> None:
    setting = tmp_path / "fleet.toml"
    if text is not None:
        setting.write_text(text)
        setting.chmod(0o644)
    monkeypatch.setenv("ENGRAMDAX_FLEET", str(setting))
    with pytest.raises(ParameterError, match=said) as caught:
        configured_fleet()
    assert str(setting) in str(caught.value)
    with pytest.warns(RuntimeWarning, match=said):
        peers = configured_peers()
    assert not isinstance(peers, FleetPeers)


@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_file_that_others_may_write_is_not_obeyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    setting = tmp_path / "fleet.toml"
    setting.write_text("hosts = 'a'\nssh_options = '-oProxyCommand=true'\n")
    setting.chmod(mode)
    monkeypatch.setenv("ENGRAMDAX_FLEET", str(setting))
    with pytest.raises(ParameterError, match="can be written by other users"):
        configured_fleet()
    setting.chmod(0o644)
    assert configured_fleet() is not None


def test_nobody_is_asked_where_nothing_is_set(monkeypatch: pytest.MonkeyPatch, shared: SharedPool) -> None:
    host = Host(shared.ids["beta"], "beta")
    peers = configured_peers()
    assert peers.ask([host], uuid_of(shared)) == {host: None}
    assert "give --hosts NODESET" in peers.problems[0]


def test_hosts_that_cannot_be_asked_are_an_error_of_the_command(shared: SharedPool) -> None:
    pool = ["--pool", str(shared.path)]
    with shared.on("alpha"):
        assert run(["reclaim", *pool, "--hosts", "a[1-"]) == 2
        assert run(["reclaim", *pool, "--hosts=-oProxyCommand=true"]) == 2
        assert run(["own", "--take-over", *pool, "--hosts", "@"]) == 2
        assert run(["deprovision", *pool, "--hosts", "a", "--timeout", "0"]) == 2
        assert run(["reclaim", *pool, "--timeout", "5"]) == 2  # and no file names hosts
    assert shared.path.exists()


def test_without_clustershell_nobody_answers_and_a_command_that_names_hosts_fails(
    shared: SharedPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ClusterShell", "ClusterShell.Event"):
        monkeypatch.setitem(sys.modules, name, None)
    setting = shared.folder / "fleet.toml"
    setting.write_text("hosts = 'a'\n")
    with shared.on("alpha"):
        assert run(["reclaim", "--pool", str(shared.path), "--hosts", "a"]) == 1
        assert "ClusterShell is not installed; pip install 'engramdax[fleet]'" in capsys.readouterr().err
        monkeypatch.setenv("ENGRAMDAX_FLEET", str(setting))
        with pytest.warns(RuntimeWarning, match="ClusterShell is not installed"):
            assert not isinstance(configured_peers(), FleetPeers)
