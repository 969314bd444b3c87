# SPDX-License-Identifier: Apache-2.0
"""What health says of a pool in a file: whole, damaged in each of its parts, gone, and used."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from reports import found, spoil, states

from engramdax.format.geometry import standard
from engramdax.health import history, speed
from engramdax.health.finding import State
from engramdax.health.history import History, Speed
from engramdax.health.report import PROBES, Report, examine
from engramdax.health.subject import Sources
from engramdax.host import state_dir

MIB = 1 << 20
ROWS = np.random.default_rng(5).integers(0, 256, (40_000, 64), np.uint8)

HOLD = """
import sys, engramdax
table = engramdax.open(sys.argv[1])["words"]
print("holding", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Path:
    path = make_pool(32 * MIB, "shelf")
    load_array(path, "words", ROWS)
    return path


def look(path: Path, **options: Any) -> Report:
    return examine(str(path), sources=Sources(sysfs=path.parent), **options)


def test_whole_pool_is_ok_in_every_respect(pool: Path) -> None:
    report = look(pool)
    assert states(report.findings) == {}
    assert report.state is State.OK
    assert {f.probe.partition(".")[0] for f in report.findings} == {"device", "pool", "table", "host"}
    assert report.pool is not None
    assert (report.pool.name, report.pool.generation, report.pool.epoch) == ("shelf", 3, 1)
    assert report.bandwidth
    assert report.latency


@pytest.mark.parametrize("slot", [0, 1])
def test_damaged_directory_slot_is_named_and_the_other_serves(pool: Path, slot: int) -> None:
    spoil(pool, standard(32 * MIB).slots[slot] + 70)
    report = look(pool)
    assert states(report.findings) == {f"pool.directory slot {slot}": State.WARNING}
    finding = found(report.findings, "pool.directory", f"slot {slot}")
    assert "payload is damaged; the other slot serves" in finding.found
    assert finding.remedy


def test_slot_that_a_dead_writer_left_behind_is_a_warning(pool: Path, load_array: Callable[..., Any]) -> None:
    geometry = standard(32 * MIB)
    before = pool.read_bytes()[geometry.slots[1] : geometry.slots[1] + geometry.slot_bytes]
    load_array(pool, "more", ROWS[:10])
    with pool.open("r+b") as file:
        file.seek(geometry.slots[1])
        file.write(before)
    report = look(pool)
    assert states(report.findings) == {"pool.directory slot 1": State.WARNING}
    assert "generation 3, epoch 1, the other slot holds 5" in found(report.findings, "pool.directory", "slot 1").found


def test_pool_without_any_directory_is_critical(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engramdax.pool.volume.RETRY_SECONDS", 0.01)
    for slot in standard(32 * MIB).slots:
        spoil(pool, slot)
    report = look(pool)
    assert report.state is State.CRITICAL
    assert [f.object for f in report.findings if f.probe == "pool.directory"] == ["slot 0", "slot 1", ""]
    assert found(report.findings, "table.bytes").state is State.UNKNOWN


def test_damaged_superblock_copy_is_a_warning(pool: Path) -> None:
    spoil(pool, standard(32 * MIB).superblocks[1] + 100)
    report = look(pool)
    assert states(report.findings) == {"pool.superblock": State.WARNING}
    finding = found(report.findings, "pool.superblock")
    assert finding.figure == 1
    assert "1 of 2 copies are good: superblock copy at 2097152" in finding.found


def test_memory_without_a_superblock_is_critical(tmp_path: Path) -> None:
    (tmp_path / "zeros").write_bytes(bytes(32 * MIB))
    report = look(tmp_path / "zeros")
    assert states(report.findings) == {"pool.superblock": State.CRITICAL}
    assert report.pool is None


def test_damaged_block_is_named_with_its_rows(pool: Path, load_array: Callable[..., Any]) -> None:
    entry = look(pool).pool
    assert entry is not None
    places = _extent(pool)
    spoil(pool, places + MIB // 2)
    report = look(pool)
    assert states(report.findings) == {"table.bytes words": State.CRITICAL}
    assert "rows 0 to 16383" in found(report.findings, "table.bytes", "words").found
    assert report.pool is not None
    assert report.pool.tables[0].digest != entry.tables[0].digest


def test_damaged_checksums_are_critical(pool: Path) -> None:
    with_ = _entry(pool)
    spoil(pool, with_.checksums.offset)
    report = look(pool)
    assert states(report.findings) == {"table.bytes words": State.CRITICAL}
    assert "checksums are damaged" in found(report.findings, "table.bytes", "words").found


def test_verify_is_remembered_until_the_table_is_loaded_again(pool: Path, load_array: Callable[..., Any]) -> None:
    assert "never verified" in found(look(pool).findings, "table.bytes").found
    report = look(pool, share=1.0)
    assert report.pool is not None
    assert report.pool.tables[0].verified is not None
    later = look(pool)
    assert "verified at" in found(later.findings, "table.bytes").found
    assert later.pool is not None
    assert later.pool.tables[0].verified == report.pool.tables[0].verified


def test_verify_that_found_damage_stays_critical(
    make_pool: Callable[..., Path], load_array: Callable[..., Any]
) -> None:
    pool = make_pool(64 * MIB)
    load_array(pool, "words", np.zeros((160_000, 64), np.uint8))  # 10 blocks, of which 4 are always looked at
    spoil(pool, _extent(pool) + MIB + 5)
    assert look(pool).state is State.OK
    assert "1 blocks damaged" in found(look(pool, share=1.0).findings, "table.bytes").found
    assert found(look(pool).findings, "table.bytes").state is State.CRITICAL


def test_directory_that_went_back_is_critical(pool: Path, load_array: Callable[..., Any]) -> None:
    before = pool.read_bytes()
    load_array(pool, "more", ROWS[:10])
    assert look(pool).state is State.OK
    pool.write_bytes(before)
    report = look(pool)
    assert states(report.findings) == {"pool.generation": State.CRITICAL}
    assert "went back from epoch 1, generation 5 to 1, 3" in found(report.findings, "pool.generation").found


def test_pool_that_this_host_had_and_that_is_gone_is_critical(pool: Path) -> None:
    pool.unlink()
    report = examine(sources=Sources(sysfs=pool.parent))
    assert states(report.findings) == {"device.present": State.CRITICAL}
    assert re.search(rf"shelf \([0-9a-f-]+\) was at {re.escape(str(pool))}", report.findings[0].found)


def test_host_without_any_pool_is_unknown(tmp_path: Path) -> None:
    report = examine(sources=Sources(sysfs=tmp_path))
    assert states(report.findings) == {"device.present": State.UNKNOWN}


def test_path_where_nothing_is_is_critical(tmp_path: Path) -> None:
    report = look(tmp_path / "dax9.9")
    assert states(report.findings)["device.present"] is State.CRITICAL
    assert report.state is State.CRITICAL


@pytest.mark.parametrize(("mode", "state"), [(0o640, State.OK), (0o602, State.CRITICAL), (0o040, State.CRITICAL)])
def test_permissions_that_let_anybody_write_are_critical(pool: Path, mode: int, state: State) -> None:
    pool.chmod(mode)
    assert found(look(pool).findings, "device.permissions").state is state


def test_unreadable_pool_is_unknown_to_who_may_not_read_it(pool: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a process another user")
    pool.chmod(0o600)
    for parent in (pool.parent, *pool.parent.parents):
        if parent != Path("/") and not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    program = """
import os, sys
os.environ["ENGRAMDAX_STATE_DIR"] = os.environ["ENGRAMDAX_RUN_DIR"] = sys.argv[2]
from engramdax.health.report import examine
from engramdax.health.subject import Sources
from pathlib import Path
os.setgroups([]); os.setgid(65534); os.setuid(65534)
print({f.probe: str(f.state) for f in examine(sys.argv[1], sources=Sources(sysfs=Path(sys.argv[2]))).findings})
"""
    own = pool.parent / "own"
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    done = subprocess.run([sys.executable, "-c", program, pool, own], capture_output=True, text=True, check=True)
    assert "'pool.superblock': 'unknown'" in done.stdout
    assert "critical" not in done.stdout


def test_reader_that_holds_removed_space_is_named(pool: Path, load_array: Callable[..., Any]) -> None:
    from engramdax.pool.writer import Writer

    with subprocess.Popen(
        [sys.executable, "-c", HOLD, pool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "holding\n"
        report = look(pool)
        assert [(r.pid, r.generation) for r in report.readers] == [(reader.pid, 3)]
        assert report.state is State.OK
        with Writer(pool) as writer:
            writer.remove("words")
        report = look(pool)
        finding = found(report.findings, "pool.old_generation")
        assert (finding.object, finding.state) == (f"process {reader.pid}", State.WARNING)
        assert f"{reader.pid} (" in finding.found
        assert "holds generation 3" in finding.found
        reader.kill()
    assert look(pool).readers == ()


def test_own_process_is_no_reader(pool: Path) -> None:
    assert look(pool).readers == ()


def test_slower_than_usual_is_a_warning(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "measure", lambda _: Speed(1.0, 1e9, 1e-6))
    for _ in range(3):
        assert "nothing to compare with" in found(look(pool).findings, "pool.bandwidth").found
    assert "1 GB/s is usual here" in found(look(pool).findings, "pool.bandwidth").found
    monkeypatch.setattr(speed, "measure", lambda _: Speed(1.0, 0.4e9, 3e-6))
    assert states(look(pool).findings) == {"pool.bandwidth": State.WARNING, "pool.latency": State.WARNING}


def test_damaged_history_costs_the_comparison_alone(pool: Path) -> None:
    look(pool)
    (file,) = (state_dir() / "health").iterdir()
    for text in ("", "{", "[]", '{"verified": {"x": 1}, "speeds": [], "age": null}', '{"age": ["a", 1]}'):
        file.write_text(text)
        assert look(pool).state is State.OK
    value = json.loads(file.read_text())
    value["speeds"][0]["bandwidth"] = "fast"
    file.write_text(json.dumps(value))
    assert look(pool).state is State.OK


@pytest.mark.parametrize("age", ["[]", "[1]", '"1"', "[1e999, 2]", "[1.5, 2]", "{}", "7"])
def test_history_of_an_impossible_age_is_forgotten(age: str) -> None:
    pool = UUID(int=5)
    assert History({}, [Speed(1.0, 2.0, 3.0)], (3, 4)).save(pool, set()) == ""
    assert History.of(pool).age == (3, 4)
    path = state_dir() / "health" / f"{pool}.json"
    path.write_text(path.read_text().replace("[3, 4]", age))
    assert History.of(pool) == History()


def test_history_keeps_what_is_published_alone(pool: Path) -> None:
    from uuid import uuid4

    kept = History()
    kept.verified = {load: history.Verified(1.0, 1.0, 0) for load in ("a", "b")}
    uuid = uuid4()
    assert kept.save(uuid, {"a"}) == ""
    assert set(History.of(uuid).verified) == {"a"}


def test_skipped_probes_say_nothing(pool: Path) -> None:
    report = look(pool, skip=("pool", "table.bytes", "host.memlock"))
    probes = {f.probe for f in report.findings}
    assert not any(p.startswith("pool.") for p in probes)
    assert "table.bytes" not in probes
    assert "host.memlock" not in probes
    assert "host.pages" in probes


def test_probe_that_fails_is_unknown_and_hides_no_other(pool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("engramdax.health.metadata._superblock", fail)
    report = look(pool)
    assert states(report.findings) == {"pool": State.UNKNOWN}
    assert "ZeroDivisionError: oops" in found(report.findings, "pool").found
    assert found(report.findings, "table.bytes").state is State.OK


def test_every_probe_belongs_to_a_group(pool: Path) -> None:
    assert {f.probe.partition(".")[0] for f in look(pool).findings} <= set(PROBES)


def _entry(pool: Path) -> Any:
    from engramdax.pool.pool import Pool

    with Pool(pool) as opened:
        return opened.directory.require("words", pool)


def _extent(pool: Path) -> int:
    return int(_entry(pool).extent.offset)
