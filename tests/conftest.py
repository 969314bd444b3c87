# SPDX-License-Identifier: Apache-2.0
"""A host of its own for every test, and pools on it."""

from __future__ import annotations

import fcntl
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from ClusterShell.Task import task_self
from ClusterShell.Worker.Exec import ExecWorker

from engramdax import hugepages
from engramdax.format.directory import TableEntry
from engramdax.ingest.open import open_sources
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out
from engramdax.pool.writer import Writer

MIB = 1 << 20
FIGURE = "figure"

# How long something takes on a busy machine is no failure.
hypothesis.settings.register_profile("engramdax", deadline=None)
hypothesis.settings.load_profile("engramdax")


@pytest.fixture(autouse=True)
def _own_host(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees or leaves anything in the directories of the machine that it runs on."""
    host = tmp_path_factory.mktemp("host")
    monkeypatch.setenv("ENGRAMDAX_STATE_DIR", str(host / "state"))
    monkeypatch.setenv("ENGRAMDAX_RUN_DIR", str(host / "run"))
    monkeypatch.delenv("ENGRAMDAX_POOL", raising=False)
    monkeypatch.delenv("ENGRAMDAX_ASK", raising=False)
    monkeypatch.setenv("ENGRAMDAX_FLEET", "")
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)  # which hides output that is lost at the end


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Give a function that has a line printed when all tests have ended, also from a worker of pytest-xdist."""
    return lambda line: request.node.user_properties.append((FIGURE, line))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the lines of `figure`."""
    reports = [r for name in ("passed", "failed") for r in terminalreporter.getreports(name)]
    lines = [f"{r.location[2]}: {line}" for r in reports for name, line in r.user_properties if name == FIGURE]
    if lines:
        terminalreporter.section("figures")
        for line in sorted(lines):
            terminalreporter.line(line)


@pytest.fixture
def local_nodes() -> Iterator[None]:
    """Let ClusterShell start here what it would send to hosts, as its configuration (distant_workername) can say."""
    task = task_self()
    before = task.default("distant_worker")
    task.set_default("distant_worker", ExecWorker)
    yield
    task.set_default("distant_worker", before)


@pytest.fixture
def huge_pages() -> Iterator[Callable[[], int]]:
    """Give a function that counts the kernel's huge pages of 2 MiB; skip where they cannot be had.

    The kernel has one reserve of them, so one test at a time may change it, of all runs on this machine.
    """
    reserve = hugepages.RESERVES / "hugepages-2048kB" / "nr_hugepages"
    if not os.access(reserve, os.W_OK):
        pytest.skip(f"only root may reserve huge pages of 2M, and {reserve} must be there")
    with (Path(tempfile.gettempdir()) / "engramdax-test-hugepages.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = int(reserve.read_text())
        yield lambda: int(reserve.read_text())
        reserve.write_text(str(before))


@pytest.fixture
def make_pool(tmp_path: Path) -> Callable[..., Path]:
    """Give a function that provisions a pool in a file of `tmp_path` and gives its path."""
    numbers = itertools.count()

    def make(size: int = 32 * MIB, name: str | None = None) -> Path:
        name = name or f"pool{next(numbers)}"
        path = tmp_path / f"{name}.pool"
        carry_out(plan_file(path, size, name=name, consent=Consent()).steps)
        return path

    return make


@pytest.fixture
def load_array(tmp_path: Path) -> Callable[..., TableEntry]:
    """Give a function that loads a two-dimensional array as a table, through a .npy file."""
    numbers = itertools.count()

    def load(path: Path, name: str, array2d: np.ndarray[Any, Any], heads: tuple[int, ...] | None = None) -> TableEntry:
        file = tmp_path / f"array{next(numbers)}.npy"
        np.save(file, array2d)
        (source,) = open_sources([file])
        with source, Writer(path) as writer:
            return load_tables(writer, [Load(source, name, heads)])[0]

    return load
