# SPDX-License-Identifier: Apache-2.0
"""Reports as JSON: what one host prints another one reads, and believes nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports import REPORT

from engramdax.health.finding import EXIT_CODES, Finding, State, worst
from engramdax.health.report import Report, examine
from engramdax.health.subject import Sources

ERRORS = (ValueError, KeyError, TypeError, AttributeError)


def test_report_comes_back_as_it_was(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> None:
    pool = make_pool()
    load_array(pool, "words", np.zeros((1000, 64), np.uint8))
    report = examine(str(pool), share=1.0, sources=Sources(sysfs=pool.parent))
    assert Report.from_json(json.loads(json.dumps(report.to_json()))) == report
    assert Report.from_json(REPORT.to_json()) == REPORT


def test_keys_of_a_newer_version_are_left_alone() -> None:
    value = REPORT.to_json()
    value["new"] = value["pool"]["new"] = value["pool"]["tables"][0]["new"] = value["findings"][0]["new"] = 1
    assert Report.from_json(value) == REPORT


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += _places(below, (*path, key))
    return found


@pytest.mark.parametrize("place", _places(REPORT.to_json()), ids=str)
@pytest.mark.parametrize("wrong", [object(), None, "text", -1, [], {}, True])
def test_any_other_value_is_refused_or_fits(place: tuple[Any, ...], wrong: Any) -> None:
    value: Any = json.loads(json.dumps(REPORT.to_json()))
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = wrong
    try:
        report = Report.from_json(value)
    except ERRORS:
        return
    assert not isinstance(wrong, bool) or place[-1] in ("shared", "state")
    assert Report.from_json(report.to_json()) == report


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda c: st.dictionaries(st.text(), c)))
def test_no_json_at_all_is_a_traceback(value: Any) -> None:
    with pytest.raises(ERRORS):
        Report.from_json(value)


def test_unknown_is_worse_than_ok_and_better_than_a_warning() -> None:
    assert worst([State.OK, State.UNKNOWN]) is State.UNKNOWN
    assert worst([State.WARNING, State.UNKNOWN, State.OK]) is State.WARNING
    assert worst([State.WARNING, State.CRITICAL]) is State.CRITICAL
    assert worst([]) is State.UNKNOWN
    assert [EXIT_CODES[s] for s in (State.OK, State.WARNING, State.CRITICAL, State.UNKNOWN)] == [0, 1, 2, 3]


@pytest.mark.parametrize("figure", ["7", True, 1 << 64, -(10**400), 1e999, float("nan")])
def test_figure_that_is_no_number_is_refused(figure: Any) -> None:
    with pytest.raises(TypeError):
        Finding.from_json({**Finding("p", State.OK, "x").to_json(), "figure": figure})


@pytest.mark.parametrize("name", ["time", "bandwidth", "latency"])
@pytest.mark.parametrize("number", [10**400, float("inf"), float("nan")])
def test_report_with_a_number_beyond_all_measures_is_refused(name: str, number: float) -> None:
    with pytest.raises(ValueError, match="no number of 64 bits"):
        Report.from_json({**REPORT.to_json(), name: number})
