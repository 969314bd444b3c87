# SPDX-License-Identifier: Apache-2.0
"""The file for node_exporter, read by prometheus-client's own parser, promtool and node_exporter where they are."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from reports import POOL, REPORT, TABLE

from engramdax.errors import BackingError, EngramdaxError, RefusedError
from engramdax.health.finding import Finding, State
from engramdax.health.history import Verified
from engramdax.health.metrics import write_metrics
from engramdax.health.report import Report

FINDINGS = (
    Finding("device.present", State.OK, "dax0.0"),
    Finding("memdev.temperature", State.WARNING, "71 degrees", object="0xe1", figure=71, unit="celsius"),
    Finding("memdev.life_used", State.UNKNOWN, "not told", object="0xe1"),
    Finding("memdev.poison", State.CRITICAL, "row 1", object="0xe1", figure=2),
    Finding("memdev.poison", State.WARNING, "free space", object="0xe1", figure=2),
    Finding("table.bytes", State.OK, "fine", object='odd "name"\\with\nlines', figure=0),
)
VERIFIED = replace(TABLE, verified=Verified(1000.0, 1.0, 0))
WHOLE = replace(REPORT, findings=FINDINGS, pool=replace(POOL, tables=(VERIFIED,)))


def parsed(path: Path) -> dict[tuple[str, ...], float]:
    """Give all samples: name and values of the labels."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(path.read_text())
        for sample in family.samples
    }


def written(tmp_path: Path, report: Report = WHOLE) -> Path:
    write_metrics(report, tmp_path / "engramdax.prom")
    return tmp_path / "engramdax.prom"


def test_figures_have_base_units_and_names_of_the_project(tmp_path: Path) -> None:
    samples = parsed(written(tmp_path))
    assert samples["engramdax_memdev_temperature_celsius", "0xe1"] == 71
    assert samples["engramdax_pool_size_bytes", "rack1", "uuid-1"] == 1 << 30
    assert samples["engramdax_table_verified_timestamp_seconds", "rack1", "words"] == 1000
    assert samples["engramdax_health_state",] == 2
    assert all(name.startswith("engramdax_") for name, *_ in samples)


def test_what_is_not_known_is_left_out_and_its_probe_did_not_succeed(tmp_path: Path) -> None:
    samples = parsed(written(tmp_path))
    assert samples["engramdax_probe_success", "0xe1", "memdev.life_used"] == 0
    assert ("engramdax_probe_state", "0xe1", "memdev.life_used") not in samples
    assert not any("life_used" in name for name, *_ in samples)
    assert samples["engramdax_probe_success", "0xe1", "memdev.poison"] == 1
    nothing = parsed(written(tmp_path, replace(REPORT, pool=None, findings=())))
    assert nothing["engramdax_health_state",] == 3
    assert not any("pool" in name for name, *_ in nothing)


def test_worst_of_several_findings_of_one_thing_counts(tmp_path: Path) -> None:
    assert parsed(written(tmp_path))["engramdax_probe_state", "0xe1", "memdev.poison"] == 2


def test_names_with_quotes_and_line_ends_come_through(tmp_path: Path) -> None:
    assert parsed(written(tmp_path))["engramdax_table_bad_blocks", 'odd "name"\\with\nlines'] == 0


def test_file_has_no_timestamps_and_is_for_all_to_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    for family in text_string_to_metric_families(path.read_text()):
        assert all(sample.timestamp is None for sample in family.samples)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in tmp_path.iterdir()] == ["engramdax.prom"]


def test_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    path = written(tmp_path)
    with path.open() as before:
        inode = os.fstat(before.fileno()).st_ino
        written(tmp_path, replace(WHOLE, time=2.0))
        assert path.stat().st_ino != inode
        assert "engramdax_health_last_run_timestamp_seconds 1.0" in before.read()


def test_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackingError, match="cannot write"):
        write_metrics(WHOLE, tmp_path / "missing" / "x.prom")
    with pytest.raises(RefusedError):
        write_metrics(WHOLE, Path("/dev/null"))


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(EngramdaxError, match="prometheus-client is not installed") as caught:
        write_metrics(WHOLE, tmp_path / "x.prom")
    assert "engramdax[metrics]" in caught.value.remedy


def test_promtool_has_nothing_to_say_against_it(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's prometheus)")
    text = written(tmp_path).read_bytes()
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"")


def test_node_exporter_serves_it(tmp_path: Path) -> None:
    exporter = shutil.which("prometheus-node-exporter")
    if exporter is None:
        pytest.skip("prometheus-node-exporter is not installed")
    written(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = ["--collector.disable-defaults", "--collector.textfile", f"--collector.textfile.directory={tmp_path}"]
    with subprocess.Popen(
        [exporter, f"--web.listen-address={address}", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            text = _fetch(f"http://{address}/metrics")
        finally:
            server.terminate()
    assert 'engramdax_memdev_temperature_celsius{object="0xe1"} 71' in text
    assert "node_textfile_scrape_error 0" in text


def _fetch(url: str) -> str:
    end = time.monotonic() + 30
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - of this test
                body: Any = answer.read()
                return str(body, "utf-8")
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
