# SPDX-License-Identifier: Apache-2.0
"""Which host is named as the odd one out, and of what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from reports import TABLE, found, report, states

from engramdax.fleet import Answered
from engramdax.health.finding import State
from engramdax.health.hosts import Answer, compare


def answers(**reports: Any) -> list[Answer]:
    return [
        Answer(host, Answered.REPORT, 0.1, r) if r is not None else Answer(host, Answered.TIMEOUT, 15.0, problem="late")
        for host, r in reports.items()
    ]


def three(**odd: Any) -> list[Answer]:
    """Give two healthy hosts, and a third with these changes."""
    return answers(a=report("a"), b=report("b"), c=report("c", **odd))


def test_hosts_that_see_the_same_are_ok() -> None:
    findings = compare(three())
    assert states(findings) == {}
    assert {f.probe for f in findings} == {
        "hosts.answer",
        "hosts.pool",
        "hosts.generation",
        "hosts.tables",
        "hosts.bytes",
        "hosts.versions",
        "hosts.links",
        "hosts.speed",
    }


@pytest.mark.parametrize(
    ("odd", "probe", "state", "said"),
    [
        ({"pool": None}, "hosts.pool", State.CRITICAL, "sees no pool"),
        ({"pool__uuid": "uuid-2"}, "hosts.pool", State.CRITICAL, "sees pool rack1 (uuid-2), rack1 (uuid-1) on the"),
        ({"pool__generation": 6}, "hosts.generation", State.CRITICAL, "sees generation 6, epoch 1, where others see 7"),
        ({"pool__epoch": 2}, "hosts.generation", State.CRITICAL, "sees generation 7, epoch 1, where others see 7, ep"),
        ({"pool__tables": ()}, "hosts.tables", State.CRITICAL, "sees other tables or loads: none; words (11111111)"),
        ({"pool__tables": (replace(TABLE, load="2222"),)}, "hosts.tables", State.CRITICAL, "words (2222)"),
        ({"pool__tables": (replace(TABLE, checksums=8),)}, "hosts.tables", State.CRITICAL, "other tables or loads"),
        ({"pool__tables": (replace(TABLE, digest="ffff"),)}, "hosts.bytes", State.CRITICAL, "other bytes of table"),
        ({"versions": {"engramdax": "2", "kernel": "6.12"}}, "hosts.versions", State.WARNING, "engramdax 2, 0.1.0"),
        ({"versions": {"engramdax": "0.1.0"}}, "hosts.versions", State.WARNING, "kernel none, 6.12 on the others"),
        ({"links": {"0xe1": "32 GT/s on 8 lanes"}}, "hosts.links", State.WARNING, "memdev 0xe1: 32 GT/s on 8 lanes, 3"),
        ({"bandwidth": 9e9}, "hosts.speed", State.WARNING, "gathers 9 GB/s, others 20"),
        ({"latency": 5e-6}, "hosts.speed", State.WARNING, "takes 5 us for a row, others 1"),
    ],
)  # fmt: skip
def test_odd_host_is_named(odd: dict[str, Any], probe: str, state: State, said: str) -> None:
    bad = [f for f in compare(three(**odd)) if f.state is not State.OK]
    assert {f.probe for f in bad} == {probe}
    assert {f.state for f in bad} == {state}
    assert said in bad[0].found
    if "pool__epoch" not in odd:  # where the one has the newer directory, and two are behind
        assert {f.object for f in bad} == {"c"}
    assert all(f.remedy for f in bad)


def test_of_two_hosts_that_differ_both_are_named_with_what_the_other_has() -> None:
    other = replace(TABLE, digest="ffff")
    findings = compare(answers(a=report("a"), b=report("b", pool__tables=(other,))))
    bad = {f.object: f.found for f in findings if f.probe == "hosts.bytes"}
    assert bad == {
        "a": "sees other bytes of table words: 0badcafe, ffff on b",
        "b": "sees other bytes of table words: ffff, 0badcafe on a",
    }


def test_tables_of_an_older_generation_are_not_compared() -> None:
    findings = compare(three(pool__generation=6, pool__tables=()))
    assert states(findings) == {"hosts.generation c": State.CRITICAL}


def test_host_that_does_not_answer_is_unknown_and_spoils_nothing() -> None:
    findings = compare(answers(a=report("a"), b=report("b"), c=None))
    assert states(findings) == {"hosts.answer c": State.UNKNOWN}
    assert found(findings, "hosts.answer").found == "timeout: late"


def test_hosts_of_which_none_answers_are_unknown() -> None:
    assert set(states(compare(answers(a=None, b=None))).values()) == {State.UNKNOWN}


def test_hosts_that_all_see_no_pool_are_not_compared() -> None:
    findings = compare(answers(a=report("a", pool=None), b=report("b", pool=None)))
    assert states(findings) == {}


def test_directory_that_one_host_cannot_read_is_not_compared() -> None:
    nothing: dict[str, Any] = {"pool__generation": None, "pool__epoch": None, "pool__tables": ()}
    assert states(compare(three(**nothing))) == {}


def test_measurement_that_a_host_lacks_is_not_compared() -> None:
    assert states(compare(three(bandwidth=None, latency=None))) == {}
