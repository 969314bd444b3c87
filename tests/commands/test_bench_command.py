# SPDX-License-Identifier: Apache-2.0
"""`bench cpu` on tables of a few MiB, without peers that would have to be installed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from outcomes import Outcome

from engramdax.bench.scratch import SHARED_MEMORY

Command = Callable[..., Outcome]

NEEDED = 64 << 20
SHMEM_PAGES = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
SMALL = ("bench", "cpu", "--size", "4M", "--row-bytes", "64", "--rounds", "1", "--skip", "torch", "--skip", "engramdb")
WITHOUT_PEERS = {"gather", "prepared", "openmp", "numpy", "limit"}


@pytest.fixture
def small_pages() -> None:
    """Skip where a pool on 4 KiB pages cannot be had."""
    if shutil.disk_usage(SHARED_MEMORY).free < NEEDED:
        pytest.skip(f"{SHARED_MEMORY} has less than {NEEDED} bytes free")
    if SHMEM_PAGES.exists() and any(f"[{mode}]" in SHMEM_PAGES.read_text() for mode in ("always", "advise", "force")):
        pytest.skip(f"{SHARED_MEMORY} gives huge pages")


def left_behind() -> list[Path]:
    return list(SHARED_MEMORY.glob(f"engramdax-bench-{os.getpid()}"))


@pytest.mark.usefixtures("small_pages")
def test_small_run_tells_medians_tails_and_ratios_and_leaves_nothing(command: Command) -> None:
    value = command(*SMALL, "--pages", "4k", "--rows", "1", "--rows", "3000", "--json").json()
    assert value["absent"] == {}
    assert value["table_bytes"] == 4 << 20
    assert value["machine"]["cpus"] >= 1
    assert 0 <= value["others_cpu_share"] <= 1
    assert value["versions"]["numpy"] == f"numpy {np.__version__}"
    assert {(r["rows"], r["contender"]) for r in value["results"]} == {
        (rows, name) for rows in (1, 3000) for name in WITHOUT_PEERS
    }
    for r in value["results"]:
        assert (r["pages"], r["row_bytes"], r["ids"], r["busy_core"], r["gap_us"]) == ("4k", 64, "uniform", False, 0)
        assert 0 < r["median_us"] <= r["p99_us"]
        assert r["gb_per_s"] == pytest.approx(r["rows"] * 64 / r["median_us"] / 1e3)
        assert r["calls"] > 0
        assert r["contender"] != "gather" or r["times_ours"] == 1
        assert bool(r["detail"]) == (r["contender"] == "limit")
    assert left_behind() == []


@pytest.mark.usefixtures("small_pages")
def test_table_for_people_names_every_contender(command: Command) -> None:
    out = command(*SMALL, "--pages", "4k", "--rows", "16").succeeded().out
    for words in ("rows of 64 bytes, 4k pages, uniform ids", "numpy.take", 'engine="openmp"', "limit", "TIMES OURS"):
        assert words in out


@pytest.mark.usefixtures("small_pages")
def test_ids_of_a_trace_are_measured_beside_uniform_ones(command: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.npz"
    np.savez(trace, token_ids=np.random.default_rng(0).integers(0, 1000, 5000))
    value = command(*SMALL, "--pages", "4k", "--rows", "384", "--trace", trace, "--json").json()
    assert {r["ids"] for r in value["results"]} == {"uniform", "trace"}


@pytest.mark.usefixtures("small_pages")
def test_busy_core_compares_team_and_openmp_apart_and_back_to_back(command: Command) -> None:
    value = command(*SMALL, "--pages", "4k", "--busy-core", "--json").json()
    assert {(r["contender"], r["gap_us"], r["rows"]) for r in value["results"]} == {
        (name, gap, 4096) for name in ("gather", "openmp") for gap in (200, 0)
    }
    assert all(r["busy_core"] for r in value["results"])


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("ending", ["png", "svg"])
def test_plot_is_written(command: Command, tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"latency.{ending}"
    command(*SMALL, "--pages", "4k", "--rows", "1", "--rows", "100", "--plot", path).succeeded()
    begins = path.read_bytes()[:5]
    assert begins == (b"\x89PNG\r" if ending == "png" else b"<?xml")


def test_plot_without_matplotlib_is_refused_before_anything_runs(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command(*SMALL, "--plot", tmp_path / "p.png").failed(
        1, "matplotlib is not installed", "pip install 'engramdax[plot]'"
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may reserve huge pages")
def test_huge_pages_without_root_are_told_to_be_missing(command: Command) -> None:
    command(*SMALL, "--pages", "2m", "--rows", "1").failed(3, "huge pages", "root")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--skip", "tensorflow"], ["--skip tensorflow is unknown", "torch or engramdb"]),
        (["--pages", "1g"], ["--pages 1g is unknown"]),
        (["--ids", "trace"], ["--trace FILE.npz"]),
        (["--rows", "0"], ["--rows 0", "1 or more"]),
        (["--rounds", "0"], ["--rounds 0", "1 or more"]),
        (["--size", "much"], ["'much' is no size"]),
        (["--peers", "/nonexistent"], ["/nonexistent is no directory"]),
        (["--plot", "/nonexistent/p.png"], ["/nonexistent is no directory"]),
        (["--plot", "p.jpeg2000"], [".png"]),
        (["--busy-core", "--rows", "5"], ["--busy-core"]),
    ],
    ids=["skip", "pages", "trace", "rows", "rounds", "size", "peers", "plot-place", "plot-ending", "busy-rows"],
)
def test_option_that_makes_no_sense_is_a_usage_error(command: Command, arguments: list[str], said: list[str]) -> None:
    command(*SMALL, *arguments).failed(2, *said)


def test_bench_of_nothing_is_a_usage_error(command: Command) -> None:
    command("bench").failed(2, "engramdax bench --help")


def test_trace_that_does_not_exist_is_told(command: Command, tmp_path: Path) -> None:
    command(*SMALL, "--trace", tmp_path / "no.npz").failed(1, str(tmp_path / "no.npz"), "does not exist")


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_gives_its_memory_back(program: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        [program, *SMALL, "--pages", "4k", "--rounds", "100000"], stderr=subprocess.PIPE, text=True
    )
    pool = SHARED_MEMORY / f"engramdax-bench-{process.pid}"
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and not (pool.exists() and len(children.read_text().split()) > 2):
        time.sleep(0.01)
    workers = children.read_text().split()
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in said
    assert not pool.exists()
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{worker}").exists() for worker in workers):
        assert time.monotonic() < deadline
        time.sleep(0.01)
