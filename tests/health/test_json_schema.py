# SPDX-License-Identifier: Apache-2.0
"""The schema in the docs against what the commands print, and against what they never print."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from reports import POOL, REPORT, TABLE

from engramdax.commands.top import View, to_json
from engramdax.fleet import Answered, Fleet
from engramdax.health.finding import Finding, State
from engramdax.health.history import Verified
from engramdax.health.hosts import Answer, Comparison, examine_hosts
from engramdax.health.readers import Reader
from engramdax.health.report import PoolSeen, Report, TableSeen, examine

PAGE = Path(__file__).parents[2] / "docs/health/schema.json"
SCHEMA = json.loads(PAGE.read_text())
VALID = Draft202012Validator(SCHEMA, format_checker=Draft202012Validator.FORMAT_CHECKER)


def problems(document: Any) -> list[str]:
    return [error.message for error in VALID.iter_errors(json.loads(json.dumps(document)))]


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Path:
    path = make_pool()
    load_array(path, "words", np.zeros((1000, 64), np.uint8))
    return path


def test_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("share", [None, 1.0])
def test_report_of_a_host_is_of_the_schema(pool: Path, share: float | None) -> None:
    assert problems(examine(str(pool), share=share).to_json()) == []


def test_report_of_a_host_without_a_pool_is_of_the_schema() -> None:
    assert problems(examine("/nowhere/at/all").to_json()) == []


def test_answers_of_many_hosts_are_of_the_schema(pool: Path, local_nodes: None) -> None:
    script = f'[ %host = bad ] && exit 7; exec {sys.executable} -m engramdax "$@"'
    fleet = Fleet("good,bad", f"sh -c {shlex.quote(script)} sh", timeout=60)
    comparison = examine_hosts(fleet, ["--pool", str(pool)])
    assert {a.answered for a in comparison.answers} == {Answered.REPORT, Answered.RUBBISH}
    assert problems(comparison.to_json()) == []


def test_rates_are_of_the_schema(pool: Path) -> None:
    view = View(str(pool), ())
    view.look()
    view.measure()
    assert problems(to_json(view)) == []
    assert problems(to_json(View("/nowhere/at/all", ()))) == []


def test_every_field_has_a_place() -> None:
    kinds = {"report": Report, "pool": PoolSeen, "table": TableSeen, "reader": Reader, "finding": Finding}
    own = {"report": {"format", "state"}}
    for name, kind in kinds.items():
        schema = SCHEMA["$defs"][name]
        expected = {f.name for f in fields(kind)} | own.get(name, set())
        assert set(schema["required"]) == set(schema["properties"]) == expected, name
    verified = SCHEMA["$defs"]["table"]["properties"]["verified"]["oneOf"][1]
    assert set(verified["required"]) == {f.name for f in fields(Verified)}
    answer = SCHEMA["$defs"]["comparison"]["properties"]["hosts"]["items"]
    assert set(answer["required"]) == {f.name for f in fields(Answer)}
    assert set(answer["properties"]["answered"]["enum"]) == set(Answered)
    assert set(SCHEMA["$defs"]["state"]["enum"]) == set(State)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        found += _places(below, (*path, key))
    return found


UUIDS = replace(
    POOL,
    uuid="22222222-bbbb-4bbb-8bbb-bbbbbbbbbbbb",
    tables=(replace(TABLE, load="11111111-aaaa-4aaa-8aaa-aaaaaaaaaaaa"),),
)
ONE = replace(REPORT, pool=UUIDS)
COMPARED = Comparison((Answer("a", Answered.REPORT, 0.5, ONE),), (Finding("hosts.pool", State.OK, "x"),)).to_json()


@pytest.mark.parametrize("document", [ONE.to_json(), COMPARED], ids=["host", "hosts"])
def test_anything_else_in_any_place_is_not(document: Any) -> None:
    assert problems(document) == []
    for place in _places(document):
        changed: Any = json.loads(json.dumps(document))
        parent = changed
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = [[0]]  # which nothing is anywhere
        assert problems(changed), place
        if isinstance(parent, dict) and place[-2:-1] not in (("versions",), ("links",)):
            del parent[place[-1]]
            assert problems(changed), place
