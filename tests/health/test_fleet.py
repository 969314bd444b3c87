# SPDX-License-Identifier: Apache-2.0
"""Many hosts at once through ClusterShell's local worker: answers, silence, rubbish, and what all of it costs."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engramdax import fleet
from engramdax.errors import EngramdaxError, ParameterError
from engramdax.fleet import Answered, Fleet, nodes_of, run_on
from engramdax.health.finding import State
from engramdax.health.hosts import Comparison, examine_hosts
from engramdax.health.report import examine

HOSTS = 64 if os.environ.get("ENGRAMDAX_ALL") else 16
SINGLES = HOSTS // 4
"""Single runs that those of many hosts are compared with, half of them before and half of them after."""

ENGRAMDAX = f"{shlex.quote(sys.executable)} -m engramdax"


pytestmark = pytest.mark.usefixtures("local_nodes")


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Path:
    path = make_pool()
    load_array(path, "words", np.zeros((1000, 64), np.uint8))
    return path


def by_host(comparison: Comparison) -> dict[str, Answered]:
    return {a.host: a.answered for a in comparison.answers}


def case(**hosts: str) -> str:
    """Give a program that does something else on each host; "other" is what the rest do."""
    other = hosts.pop("other", ENGRAMDAX)
    cases = " ".join(f"{host}) {script};;" for host, script in hosts.items())
    script = f'case %host in {cases} *) exec {other} "$@";; esac'
    return f"sh -c {shlex.quote(script)} sh"


def test_hosts_that_see_one_pool_are_ok(pool: Path) -> None:
    options = ["--pool", str(pool), "--skip", "pool.bandwidth", "--skip", "pool.latency"]
    comparison = examine_hosts(Fleet("left,right", ENGRAMDAX, timeout=120), options)
    assert by_host(comparison) == {"left": Answered.REPORT, "right": Answered.REPORT}
    assert comparison.state is State.OK
    assert [a.report.pool.name for a in comparison.answers if a.report and a.report.pool] == ["pool0", "pool0"]


def test_each_bad_answer_is_a_row_and_the_others_stay_ok(pool: Path, tmp_path: Path) -> None:
    (tmp_path / "report").write_text(json.dumps(examine(str(pool)).to_json()))
    program = case(
        # What the real program says, at once: the one that is slow has its whole timeout, which can be short then.
        other=f"sh -c 'cat {tmp_path}/report'",
        slow="sleep 300",
        rubbish="echo '<html>502</html>'",
        binary="head -c 5000 /dev/urandom",
        json="echo '{\"findings\": 7}'",
        silent="exit 0",
        missing="exec no-such-program-anywhere",
        dies="kill -9 $$",
        error="echo no permission >&2; exit 1",
    )
    hosts = ["good", "slow", "rubbish", "binary", "json", "silent", "missing", "dies", "error"]
    comparison = examine_hosts(Fleet(",".join(hosts), program, timeout=4), ["--pool", str(pool)])
    assert by_host(comparison) == {
        "good": Answered.REPORT,
        "slow": Answered.TIMEOUT,
        "rubbish": Answered.RUBBISH,
        "binary": Answered.RUBBISH,
        "json": Answered.RUBBISH,
        "silent": Answered.RUBBISH,
        "missing": Answered.FAILED,
        "dies": Answered.FAILED,
        "error": Answered.FAILED,
    }
    problems = {a.host: a.problem for a in comparison.answers}
    assert "no answer within 4 s" in problems["slow"]
    assert "<html>502</html>" in problems["rubbish"]
    assert "no permission" in problems["error"]
    assert comparison.state is State.UNKNOWN
    assert {a.host: a.state for a in comparison.answers}["good"] is State.OK


def test_hosts_that_hang_do_so_at_once(tmp_path: Path) -> None:
    # Each says so only when it has met all others.
    meet = f"cd {tmp_path}; touch here-%host; until [ $(ls | grep -c here) = 8 ]; do sleep 0.1; done; touch met-%host"
    outputs = run_on(nodes_of("node[1-8]"), f"{meet}; exec sleep 30", seconds=8)
    assert [o.code for o in outputs] == [None] * 8
    assert len(list(tmp_path.glob("met-*"))) == 8


def test_host_that_says_too_much_is_cut_off_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "MOST_BYTES", 1 << 20)
    left, right = run_on(["left", "right"], "[ %host = left ] && exec yes; echo short", seconds=60)
    assert (left.too_much, left.code) == (True, None)
    assert (right.too_much, right.code, right.stdout) == (False, 0, "short")


def test_words_around_a_report_do_no_harm(pool: Path) -> None:
    program = f"sh -c 'echo Welcome to [node]; echo; exec {ENGRAMDAX} \"$@\"' sh"
    comparison = examine_hosts(Fleet("left", program, timeout=60), ["--pool", str(pool)])
    assert by_host(comparison) == {"left": Answered.REPORT}


def test_host_that_was_behind_for_a_moment_is_asked_again(pool: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    done = subprocess.run(
        [sys.executable, "-m", "engramdax", "health", "--json", "--pool", pool],
        capture_output=True,
        text=True,
        check=True,
    )
    old.write_text(done.stdout.replace('"generation": 3', '"generation": 2'))
    mark = tmp_path / "asked"
    program = case(late=f'if [ -e {mark} ]; then exec {ENGRAMDAX} "$@"; fi; touch {mark}; cat {old}')
    comparison = examine_hosts(Fleet("early,late", program, timeout=60), ["--pool", str(pool)])
    assert mark.exists()
    assert not [f for f in comparison.findings if f.probe == "hosts.generation" and f.state is not State.OK]


def test_node_sets_and_groups_are_those_of_clustershell(tmp_path: Path) -> None:
    assert nodes_of("node[1-3,8]") == ["node1", "node2", "node3", "node8"]
    for bad in ("node[1-", "", "@", "a&"):
        with pytest.raises(ParameterError, match="--hosts"):
            nodes_of(bad)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ClusterShell", None)
    monkeypatch.setitem(sys.modules, "ClusterShell.Event", None)
    with pytest.raises(EngramdaxError, match="ClusterShell is not installed"):
        nodes_of("node1")


@pytest.mark.slow
def test_many_hosts_at_once_all_report(pool: Path, tmp_path: Path, figure: Callable[[str], None]) -> None:
    """Each with a state of its own, as hosts have. They share a /proc, which hosts do not: readers are left out."""
    own = f"env ENGRAMDAX_STATE_DIR={tmp_path}/state-%host ENGRAMDAX_RUN_DIR={tmp_path}/run-%host {ENGRAMDAX}"
    options = ["--pool", str(pool), "--skip", "pool.bandwidth", "--skip", "pool.readers"]

    def seconds(what: Callable[[], Any]) -> tuple[float, Any]:
        before = os.times()
        done = what()
        after = os.times()
        spent = sum(
            getattr(after, n) - getattr(before, n) for n in ("user", "system", "children_user", "children_system")
        )
        return spent, done

    def singles(numbers: range) -> None:
        """Run some at once: what processes take from each other's caches is no cost of asking many hosts."""
        running = []
        for number in numbers:
            places = {f"ENGRAMDAX_{n}_DIR": f"{tmp_path}/{n}-single{number}" for n in ("STATE", "RUN")}
            command = [sys.executable, "-m", "engramdax", "health", "--json", *options]
            running.append(subprocess.Popen(command, env={**os.environ, **places}, stdout=subprocess.DEVNULL))
        assert [process.wait() for process in running] == [0] * len(running)

    before, _ = seconds(lambda: singles(range(SINGLES // 2)))
    together, comparison = seconds(lambda: examine_hosts(Fleet(f"node[1-{HOSTS}]", own, timeout=280), options))
    after, _ = seconds(lambda: singles(range(SINGLES // 2, SINGLES)))
    assert set(by_host(comparison).values()) == {Answered.REPORT}
    assert comparison.state is State.OK
    ratio = together / HOSTS / ((before + after) / SINGLES)
    figure(f"{HOSTS} hosts take {ratio:.2f} times the CPU time of single runs")
