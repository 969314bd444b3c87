# SPDX-License-Identifier: Apache-2.0
"""The page on health against the code: probes, keys of the JSON, metrics, alert rules and dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from engramdax.fleet import Answered
from engramdax.health import metrics, report
from engramdax.health.finding import EXIT_CODES, Finding, State
from engramdax.health.hosts import Answer
from engramdax.health.readers import Reader
from engramdax.health.report import PROBES, PoolSeen, Report, TableSeen

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/health.md").read_text()
RULES = ROOT / "docs/health/alerts.yml"
DASHBOARD = ROOT / "docs/health/dashboard.json"

NAME = re.compile(r"engramdax_[a-z_]+")
PROBE = re.compile(rf'"((?:{"|".join(PROBES)}|hosts)\.[a-z_]+)"')
SOURCES = list((ROOT / "engramdax/health").glob("*.py"))


def known_metrics() -> set[str]:
    text = (ROOT / "engramdax/health/metrics.py").read_text()
    fixed = set(re.findall(r"\"((?:health|version|probe|pool|table)_[a-z_]+)\"", text))
    return {f"engramdax_{name}" for name in fixed | {name for name, _ in metrics.FIGURES.values()}}


def test_every_probe_is_on_the_page() -> None:
    probes = {probe for path in SOURCES for probe in PROBE.findall(path.read_text())}
    probes |= {"memdev.health", "memdev.temperature", "memdev.life_used"}
    listed = set(re.findall(r"^\| `([a-z_]+\.[a-z_]+)`", PAGE, re.MULTILINE))
    assert listed == probes


def test_every_key_of_the_json_is_on_the_page() -> None:
    for kind in (Report, PoolSeen, TableSeen, Finding, Reader, Answer):
        for field in fields(kind):
            assert f"`{field.name}`" in PAGE, (kind, field.name)
    assert f"`format`, {report.FORMAT}" in PAGE
    for answered in Answered:
        assert f"`{answered}`" in PAGE


def test_exit_codes_are_on_the_page() -> None:
    for state, code in EXIT_CODES.items():
        assert f"| {code} | {state} |" in PAGE
    assert set(EXIT_CODES) == set(State)


def test_every_metric_is_on_the_page_and_no_other() -> None:
    listed = set(re.findall(r"^\| `(engramdax_[a-z_]+)`", PAGE, re.MULTILINE))
    assert listed == known_metrics()


def test_rules_and_dashboard_name_metrics_that_there_are() -> None:
    for path in (RULES, DASHBOARD):
        used = set(NAME.findall(path.read_text()))
        assert used
        assert used <= known_metrics()


def test_dashboard_is_json_with_panels_that_ask_something() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    assert all(p["targets"][0]["expr"] for p in panels)


def test_prometheus_takes_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's prometheus)")
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
