# SPDX-License-Identifier: Apache-2.0
"""What health says of memory devices by what `cxl` prints: what it does not say is unknown, never ok."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from reports import found
from tools_output import HEALTHY, OTHER_VERSIONS, Cxl

from engramdax.devices.tree import DaxDevice, Origin
from engramdax.health import cxl as cxl_tool
from engramdax.health import memdevs, poison
from engramdax.health.finding import Finding, State
from engramdax.health.subject import Sources, Subject
from tests.devices.trees import Host

ASKED = ("memdev.health", "memdev.temperature", "memdev.life_used")


def device(host: Host, origin: Origin) -> DaxDevice:
    (one,) = [d for d in host.read().dax_devices if d.origin is origin]
    return one


def subject(host: Host, origin: Origin = Origin.CXL_PMEM, *, root: bool = True) -> Subject:
    return Subject(Sources(), tree=host.read(), device=device(host, origin), root=root)


def by_probe(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {f.probe: f for f in findings}


def listing(**changes: Any) -> str:
    return json.dumps([{"memdev": "mem1", "serial": 225, "health": {**HEALTHY, **changes}}])


def test_healthy_memdev_is_ok_with_its_figures(host: Host, cxl: Cxl) -> None:
    cxl.prints(listing())
    findings = list(memdevs.probe(subject(host)))
    assert {f.state for f in findings} == {State.OK}
    assert {f.object.split()[0] for f in findings} == {"0xe1"}
    assert (found(findings, "memdev.temperature").figure, found(findings, "memdev.life_used").figure) == (25, 0.15)
    assert found(findings, "memdev.firmware").found == "BWFW VERSION 00"
    assert [f.figure for f in findings if f.probe == "memdev.corrected"] == [20, 30]


@pytest.mark.parametrize(
    ("probe", "changes", "state"),
    [
        ("memdev.health", {"hw_replacement_needed": True}, State.CRITICAL),
        ("memdev.health", {"media_data_lost": True}, State.CRITICAL),
        ("memdev.health", {"maintenance_needed": True}, State.WARNING),
        ("memdev.health", {"media_normal": False}, State.WARNING),
        ("memdev.health", {"media_normal": "yes"}, State.UNKNOWN),
        ("memdev.temperature", {"ext_temperature": "warning"}, State.WARNING),
        ("memdev.temperature", {"ext_temperature": "critical", "temperature": 95}, State.CRITICAL),
        ("memdev.temperature", {"ext_temperature": "unknown"}, State.UNKNOWN),
        ("memdev.temperature", {"temperature": "hot"}, State.UNKNOWN),
        ("memdev.temperature", {"temperature": -5}, State.OK),
        ("memdev.life_used", {"life_used_percent": 100, "ext_life_used": "unknown"}, State.CRITICAL),
        ("memdev.life_used", {"ext_life_used": "warning"}, State.WARNING),
        ("memdev.life_used", {"life_used_percent": 10**400, "ext_life_used": "unknown"}, State.UNKNOWN),
        ("memdev.temperature", {"temperature": 10**400}, State.UNKNOWN),
        ("memdev.corrected", {"ext_corrected_volatile": "warning"}, State.WARNING),
    ],
)
def test_what_a_memdev_says_of_itself_counts(
    host: Host, cxl: Cxl, probe: str, changes: dict[str, Any], state: State
) -> None:
    cxl.prints(listing(**changes))
    findings = [f for f in memdevs.probe(subject(host)) if f.probe == probe]
    assert findings[0].state is state


def test_alarm_of_the_device_counts_where_it_gives_no_state(host: Host, cxl: Cxl) -> None:
    value = json.loads(listing(ext_temperature="unknown", temperature=40))
    value[0]["alert_config"] = {"dev_over_temperature_crit_alert_threshold": 35}
    cxl.prints(json.dumps(value))
    finding = by_probe(memdevs.probe(subject(host)))["memdev.temperature"]
    assert (finding.state, finding.found) == (State.CRITICAL, "40 degrees Celsius, alarm from 35 on")


@pytest.mark.parametrize("said", OTHER_VERSIONS.values(), ids=OTHER_VERSIONS)
@pytest.mark.parametrize("origin", [Origin.CXL_PMEM, Origin.CXL_RAM])
def test_what_cannot_be_understood_is_unknown(host: Host, cxl: Cxl, said: str, origin: Origin) -> None:
    cxl.prints(said, said)
    findings = by_probe(memdevs.probe(subject(host, origin)))
    assert {findings[probe].state for probe in ASKED} == {State.UNKNOWN}
    assert all(f.found.isprintable() for probe, f in findings.items() if probe in ASKED)
    poisoned = found(poison.probe(subject(host, origin)), "memdev.poison")
    assert poisoned.state is State.UNKNOWN


def test_missing_tool_is_unknown_with_the_package_to_install(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("engramdax.devices.tools.SBIN", str(tmp_path))
    finding = by_probe(memdevs.probe(subject(host)))["memdev.health"]
    assert (finding.state, finding.found) == (State.UNKNOWN, "cxl is not installed")
    assert "cxl" in finding.remedy


def test_tool_that_is_too_old_is_unknown(host: Host, cxl: Cxl) -> None:
    cxl.prints("", code=129, stderr="  Error: unknown switch `L'\n")
    assert by_probe(memdevs.probe(subject(host)))["memdev.health"].state is State.UNKNOWN
    finding = found(poison.probe(subject(host)), "memdev.poison")
    assert finding.state is State.UNKNOWN
    assert "unknown switch `L'" in finding.found
    assert finding.remedy == "install a newer cxl"


def test_tool_that_hangs_is_unknown(host: Host, cxl: Cxl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cxl_tool, "SECONDS", 0.2)
    (cxl.folder / "cxl").write_text("#!/bin/sh\nexec sleep 60\n")
    (cxl.folder / "cxl").chmod(0o755)
    finding = by_probe(memdevs.probe(subject(host)))["memdev.health"]
    assert finding.state is State.UNKNOWN
    assert "was not done after 0.2 s" in finding.found


def test_ordinary_user_is_told_what_needs_root(host: Host, cxl: Cxl) -> None:
    cxl.prints('[{"memdev":"mem1","serial":225}]')
    finding = by_probe(memdevs.probe(subject(host, root=False)))["memdev.health"]
    assert (finding.state, finding.found, finding.remedy) == (State.UNKNOWN, "only root may ask it", "run as root")
    finding = found(poison.probe(subject(host, root=False)), "memdev.poison")
    assert (finding.state, finding.remedy) == (State.UNKNOWN, "run as root")


def test_serial_as_a_negative_number_is_the_same_serial(host: Host, cxl: Cxl) -> None:
    serial = device(host, Origin.CXL_RAM).memdevs[0].serial
    assert serial is not None
    assert serial >> 63
    cxl.prints(json.dumps([{"memdev": "mem0", "serial": serial - (1 << 64), "health": HEALTHY}]))
    assert by_probe(memdevs.probe(subject(host, Origin.CXL_RAM)))["memdev.health"].state is State.OK


def test_pool_without_memdevs_says_nothing_of_them(host: Host, cxl: Cxl) -> None:
    assert list(memdevs.probe(subject(host, Origin.HMEM))) == []
    assert list(poison.probe(subject(host, Origin.HMEM))) == []


@pytest.fixture
def able(host: Host) -> Iterator[Callable[[], None]]:
    """Give a function that lets mem0 have a poison list, as the kernel shows it."""
    made: list[Path] = []

    def make() -> None:
        made.append(device(host, Origin.CXL_RAM).memdevs[0].path / "trigger_poison_list")
        made[-1].touch()

    yield make
    for path in made:
        path.unlink()


def test_empty_poison_list_is_ok_where_the_kernel_can_ask(host: Host, cxl: Cxl, able: Callable[[], None]) -> None:
    cxl.prints("", '[{"memdev":"mem0"}]')
    before = found(poison.probe(subject(host, Origin.CXL_RAM)), "memdev.poison")
    assert before.state is State.UNKNOWN
    able()
    finding = found(poison.probe(subject(host, Origin.CXL_RAM)), "memdev.poison")
    assert (finding.state, finding.figure) == (State.OK, 0)
    cxl.prints("", '[{"memdev":"mem0"}]', stderr="Failed to enable trace: -1\n")
    finding = found(poison.probe(subject(host, Origin.CXL_RAM)), "memdev.poison")
    assert (finding.state, finding.found) == (State.UNKNOWN, "Failed to enable trace: -1")


@pytest.mark.parametrize(
    "errors",
    [
        "[]",
        "[{}]",
        f'[{{"offset":1,"length":"0x{"f" * 6000}"}}]',
        '[{"offset":"here","length":64}]',
        '[{"offset":1}]',
        "7",
        '["x"]',
    ],
)
def test_poison_list_that_makes_no_sense_is_unknown(
    host: Host, cxl: Cxl, able: Callable[[], None], errors: str
) -> None:
    able()
    cxl.prints("", f'[{{"memdev":"mem0","media_errors":{errors}}}]')
    finding = found(poison.probe(subject(host, Origin.CXL_RAM)), "memdev.poison")
    assert finding.state is State.UNKNOWN


@pytest.mark.parametrize("text", ["-1 8", "1", "0 0", "1 -8", f"{'9' * 30} 8", f"{'9' * 5000} 8", "² 8"])
def test_bad_blocks_that_make_no_sense_are_unknown(host: Host, text: str) -> None:
    namespace = device(host, Origin.CXL_PMEM).namespace
    assert namespace is not None
    assert namespace.region is not None
    listed = namespace.region.path / "badblocks"
    listed.write_text(f"{text}\n")
    try:
        finding = found(poison.probe(subject(host, root=False)), "nvdimm.bad_blocks")
    finally:
        listed.unlink()
    assert (finding.state, finding.found) == (State.UNKNOWN, f"{listed}: it makes no sense")


def _memdev_objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict) and isinstance(value.get("memdev"), str) and "host" in value:
        yield value
    for below in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _memdev_objects(below)


@pytest.mark.parametrize("origin", [Origin.CXL_PMEM, Origin.CXL_RAM])
def test_devices_that_have_no_health_information_are_unknown(host: Host, cxl: Cxl, origin: Origin) -> None:
    """As `cxl list` of a captured host said: QEMU's devices have alarms and firmware, and no health object."""
    said = list(_memdev_objects(host.said("cxl")))
    assert {one["memdev"] for one in said} == {"mem0", "mem1"}
    assert all("alert_config" in one and "health" not in one for one in said)
    cxl.prints(json.dumps(said))
    findings = by_probe(memdevs.probe(subject(host, origin)))
    assert {findings[probe].state for probe in ASKED} == {State.UNKNOWN}
    assert findings["memdev.firmware"].state is State.OK
