# SPDX-License-Identifier: Apache-2.0
"""Links, counted errors, and events that devices reported."""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from reports import found, states

from engramdax.health import events, pcie
from engramdax.health.finding import State
from engramdax.health.subject import Sources, Subject
from tests.devices.trees import Sysfs

PORT, DEVICE = "pci0000:0c/0000:0c:00.0", "pci0000:0c/0000:0c:00.0/0000:0d:00.0"
GOOD = {"current_link_speed": "32.0 GT/s PCIe", "current_link_width": "16"}
MOST = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
COUNTS = "RxErr 0\nBadTLP {count}\nTOTAL_ERR_{name} {count}"


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    (tmp_path / "host").mkdir()
    return Sysfs(tmp_path / "host")


def linked(sysfs: Sysfs, device: dict[str, Any], port: dict[str, Any], **sources: Any) -> Subject:
    """Give a pool on a memdev behind a port with these attributes."""
    sysfs.device("pci", PORT, **port)
    sysfs.device("pci", DEVICE, **device)
    sysfs.device("cxl", f"{DEVICE}/mem0", "cxl_mem", serial="0xe1", ram__size=hex(256 << 20), pmem__size="0x0")
    endpoint = "platform/ACPI0017:00/root0/port1/endpoint3"
    place = sysfs.device("cxl", endpoint, "cxl_port", devtype="cxl_port")
    (place / "uport").symlink_to(os.path.relpath(sysfs.root / "devices" / DEVICE / "mem0", place))
    sysfs.device("cxl", f"{endpoint}/decoder3.0", devtype="cxl_decoder_endpoint", locked=0, mode="ram")
    parent = sysfs.cxl_region("region2", ["decoder3.0"])
    sysfs.dax_region(parent, id=2, size=256 << 20, align=2 << 20)
    sysfs.dax("dax2.0", parent)
    tree = sysfs.read()
    subject = Subject(Sources(sysfs=sysfs.root, **sources), tree=tree, device=tree.dax("dax2.0"), root=True)
    assert subject.device is not None
    assert [m.serial for m in subject.device.memdevs] == [0xE1]
    return subject


def counts(correctable: int = 0, nonfatal: int = 0, fatal: int = 0) -> dict[str, str]:
    return {
        "aer_dev_correctable": COUNTS.format(count=correctable, name="COR"),
        "aer_dev_nonfatal": COUNTS.format(count=nonfatal, name="NONFATAL"),
        "aer_dev_fatal": COUNTS.format(count=fatal, name="FATAL"),
    }


def test_full_link_without_errors_is_ok(sysfs: Sysfs) -> None:
    findings = list(pcie.probe(linked(sysfs, {**GOOD, **MOST, **counts()}, MOST)))
    assert states(findings) == {}
    link = found(findings, "pcie.link", "0xe1")
    assert link.found == "32 GT/s on 16 lanes"
    assert link.figure == pytest.approx(63.0e9, rel=0.001)


@pytest.mark.parametrize(
    ("now", "most", "port", "state"),
    [
        (GOOD | {"current_link_width": "8"}, MOST, MOST, State.WARNING),
        (GOOD | {"current_link_speed": "16.0 GT/s PCIe"}, MOST, MOST, State.WARNING),
        (GOOD | {"current_link_width": "8"}, MOST, MOST | {"max_link_width": "8"}, State.OK),
        (GOOD | {"current_link_speed": "Unknown"}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_width": "255"}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_width": "0"}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_width": "\x1b[2J"}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_width": "1" * 5000}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_speed": "3.2.0 GT/s"}, MOST, MOST, State.UNKNOWN),
        (GOOD | {"current_link_speed": "9" * 400 + " GT/s"}, MOST, MOST, State.UNKNOWN),
        (GOOD, {}, MOST, State.UNKNOWN),
        ({}, MOST, MOST, State.UNKNOWN),
        (GOOD, MOST, {}, State.OK),
    ],
)
def test_link_is_compared_with_what_both_ends_can_do(
    sysfs: Sysfs, now: dict[str, str], most: dict[str, str], port: dict[str, str], state: State
) -> None:
    assert found(pcie.probe(linked(sysfs, now | most, port)), "pcie.link").state is state


def test_errors_of_device_and_ports_are_added_up(sysfs: Sysfs) -> None:
    subject = linked(sysfs, {**GOOD, **MOST, **counts(3)}, {**MOST, **counts(4, fatal=1)})
    findings = list(pcie.probe(subject))
    assert found(findings, "pcie.errors", "0xe1 correctable").figure == 7
    assert states(findings) == {
        "pcie.errors 0xe1 correctable": State.WARNING,
        "pcie.errors 0xe1 fatal": State.CRITICAL,
    }


@pytest.mark.parametrize("count", ["many", "²", "9" * 20, "9" * 5000, "-1"])
def test_errors_that_nobody_counts_are_unknown(sysfs: Sysfs, count: str) -> None:
    subject = linked(sysfs, {**GOOD, **MOST, "aer_dev_fatal": f"TOTAL_ERR_FATAL {count}"}, MOST)
    assert found(pcie.probe(subject), "pcie.errors").state is State.UNKNOWN


def rasdaemon(path: Path, rows: list[tuple[str, str, str, str]]) -> Path:
    """Make a database as rasdaemon 0.8 makes it, with rows of timestamp, memdev, serial and log type."""
    columns = "id INTEGER PRIMARY KEY, timestamp TEXT, memdev TEXT, host TEXT, serial INTEGER, log_type TEXT"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE cxl_general_media_event ({columns})")
        database.execute("CREATE TABLE mc_event (id INTEGER PRIMARY KEY, timestamp TEXT, err_count INTEGER)")
        insert = "INSERT INTO cxl_general_media_event (timestamp, memdev, serial, log_type) VALUES (?, ?, ?, ?)"
        database.executemany(insert, rows)
        database.commit()
    return path


NOW = time.strftime("%Y-%m-%d %H:%M:%S %z")


@pytest.mark.parametrize(
    ("rows", "state", "count"),
    [
        ([], State.OK, 0),
        ([("2020-01-01 00:00:00 +0000", "mem0", "225", "Failure")], State.OK, 0),
        ([(NOW, "mem0", "7", "Failure")], State.OK, 0),
        ([(NOW, "mem5", "225", "Informational")], State.WARNING, 1),
        ([(NOW, "mem0", "225", "Fatal")], State.CRITICAL, 1),
    ],
)
def test_events_in_rasdaemons_database_count(
    sysfs: Sysfs, tmp_path: Path, rows: list[tuple[str, str, str, str]], state: State, count: int
) -> None:
    path = rasdaemon(tmp_path / "ras-mc_event.db", rows)
    (tmp_path / "7").mkdir()
    (tmp_path / "7/comm").write_text("rasdaemon\n")
    (finding,) = events.probe(linked(sysfs, {}, {}, rasdaemon=path, proc=tmp_path))
    assert (finding.state, finding.figure, finding.object) == (state, count, "0xe1 recorded")


def test_database_that_cannot_be_read_is_unknown(sysfs: Sysfs, tmp_path: Path) -> None:
    path = tmp_path / "ras-mc_event.db"
    path.write_bytes(content := b"no database at all, though long enough to look like one" * 30)
    findings = list(events.probe(linked(sysfs, {}, {}, rasdaemon=path, tracing=tmp_path)))
    assert {f.state for f in findings} == {State.UNKNOWN}
    assert "cannot be read" in findings[0].found
    assert path.read_bytes() == content


def test_database_with_a_damaged_name_is_unknown(sysfs: Sysfs, tmp_path: Path) -> None:
    path = tmp_path / "ras-mc_event.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mc_event (id INTEGER PRIMARY KEY)")
        database.commit()
    path.write_bytes(path.read_bytes().replace(b"tablemc_event", b"tablemc_\xffvent"))
    findings = list(events.probe(linked(sysfs, {}, {}, rasdaemon=path, tracing=tmp_path)))
    assert {f.state for f in findings} == {State.UNKNOWN}
    assert "cannot be read" in findings[0].found


def test_database_with_a_damaged_length_is_unknown(sysfs: Sysfs, tmp_path: Path) -> None:
    path = tmp_path / "ras-mc_event.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute(f"CREATE TABLE mc_event ({', '.join(f'number{n} INTEGER' for n in range(12))})")
        database.commit()
    data = bytearray(path.read_bytes())
    name = data.index(b"tablemc_event")
    assert data[name - 10] & 0x80  # the length of the first record, of two bytes
    data[name - 9 : name - 1] = b"\xff" * 7 + b"\x7f"
    path.write_bytes(data)
    with pytest.raises(MemoryError), closing(sqlite3.connect(path)) as database:
        database.execute("select name from sqlite_master").fetchall()
    findings = list(events.probe(linked(sysfs, {}, {}, rasdaemon=path, tracing=tmp_path)))
    assert {f.state for f in findings} == {State.UNKNOWN}
    assert "cannot be read: it is damaged" in findings[0].found


def test_rasdaemon_that_knows_no_cxl_events_counts_as_none(sysfs: Sysfs, tmp_path: Path) -> None:
    path = tmp_path / "ras-mc_event.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE mc_event (id INTEGER PRIMARY KEY, timestamp TEXT, err_count INTEGER)")
        database.commit()
    (finding,) = events.probe(linked(sysfs, {}, {}, rasdaemon=path, tracing=tmp_path))
    assert finding.state is State.UNKNOWN


def test_database_of_a_rasdaemon_that_runs_no_more_is_not_all(sysfs: Sysfs, tmp_path: Path) -> None:
    path = rasdaemon(tmp_path / "ras-mc_event.db", [])
    findings = list(events.probe(linked(sysfs, {}, {}, rasdaemon=path, tracing=tmp_path, proc=tmp_path)))
    assert [f.state for f in findings] == [State.OK, State.UNKNOWN]


def test_real_kernel_without_cxl_events_is_unknown(sysfs: Sysfs, tmp_path: Path) -> None:
    subject = linked(sysfs, {}, {}, rasdaemon=tmp_path / "none.db", tracing=tmp_path)
    (finding,) = events.probe(subject)
    assert (finding.state, finding.remedy) == (State.UNKNOWN, "install rasdaemon")
    subject.root = False
    (finding,) = events.probe(subject)
    assert "only root" in finding.found


# Lines as a 6.12 kernel traces them.
TRACE = """\
# tracer: nop
#
  irq/35-pciehp-98  [000] .....   301.52: cxl_general_media: memdev=mem0 host=0000:0d:00.0 serial=225 log=Fatal : \
time=0 uuid=fbcd0a77-c260-417f-85a9-088b1621eba6 len=128 flags='' handle=1 related_handle=0 maint_op_class=0 : \
dpa=2000 dpa_flags='' descriptor='UNCORRECTABLE_EVENT' type='ECC Error' transaction_type='Host Read'
  irq/35-pciehp-98  [000] .....   302.52: cxl_general_media: memdev=mem0 host=0000:0e:00.0 serial=7 log=Warning : dpa=0
"""


def test_traced_event_is_told_of_its_own_device_alone(sysfs: Sysfs, tmp_path: Path) -> None:
    instance = tmp_path / "instances" / events.INSTANCE
    instance.mkdir(parents=True)
    (instance / "trace").write_text(TRACE)
    subject = linked(sysfs, {}, {}, rasdaemon=tmp_path / "none.db", tracing=tmp_path)
    (finding,) = events.probe(subject)
    assert (finding.state, finding.figure) == (State.CRITICAL, 1)
    assert "cxl_general_media" in finding.found
