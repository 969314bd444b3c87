# SPDX-License-Identifier: Apache-2.0
"""Loads that end in the middle: Ctrl-C, a source that shrinks, grows or is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome

import engramdax
from engramdax.format.directory import LOADING
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out

MIB = 1 << 20
SOURCE_BYTES = 512 * MIB
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a pool of real memory is the point

Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """Give a folder in shared memory with room for a pool."""
    if not SHARED_MEMORY.is_dir() or os.statvfs(SHARED_MEMORY).f_bavail * os.statvfs(SHARED_MEMORY).f_frsize < (
        1 << 30
    ):
        pytest.skip("less than 1 GiB is free in /dev/shm")
    with tempfile.TemporaryDirectory(prefix="engramdax-test-", dir=SHARED_MEMORY) as name:
        yield Path(name)


@pytest.fixture
def source(place: Path) -> Path:
    """Give a file whose load takes a while and whose bytes take no memory."""
    path = place / "rows.bin"
    with path.open("wb") as file:
        file.truncate(SOURCE_BYTES)
    return path


@pytest.fixture
def large_pool(place: Path, kept: np.ndarray[Any, Any], load_array: Callable[..., object]) -> Path:
    path = place / "large.pool"
    carry_out(plan_file(path, SOURCE_BYTES + 32 * MIB, name="large", consent=Consent()).steps)
    load_array(path, "kept", kept)
    return path


@pytest.fixture
def start_load(program: Path, large_pool: Path, source: Path) -> Iterator[Start]:
    """Give a function that starts the load as a process and returns when it has begun to copy rows."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        # A shell without job control lets its background processes ignore SIGINT, and children inherit that.
        default = ["env", "--default-signal=INT,TERM", str(program)]
        load = ["load", str(source), "--row-bytes", "512", "--name", "half", "--pool", str(large_pool)]
        process = subprocess.Popen([*default, *load], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        with engramdax.open(large_pool) as opened:
            while all(table.state != LOADING for table in opened.directory.tables):
                assert process.poll() is None
                time.sleep(0.001)
                opened.refresh()
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def ended(process: subprocess.Popen[str]) -> Outcome:
    out, err = process.communicate()
    return Outcome(process.returncode, out, err)


def seen(command: Callable[..., Outcome], pool: Path) -> Any:
    return command("ls", "--json", "--pool", pool).json()


def kept_is_intact(pool: Path, kept: np.ndarray[Any, Any]) -> None:
    with engramdax.open(pool) as opened:
        assert opened.problems == ()
        table = opened["kept"]
    assert table.verify() == []
    np.testing.assert_array_equal(table.gather(np.arange(len(kept))), kept)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_publishes_nothing_and_frees_the_space(
    command: Callable[..., Outcome],
    large_pool: Path,
    kept: np.ndarray[Any, Any],
    start_load: Start,
    *,
    number: signal.Signals,
) -> None:
    before = seen(command, large_pool)
    process = start_load()
    process.send_signal(number)
    ended(process).failed(1, "interrupted", "nothing unfinished is published")
    assert seen(command, large_pool) == before
    kept_is_intact(large_pool, kept)
    ended(start_load()).succeeded()
    command("verify", "--pool", large_pool).succeeded()


def truncate(source: Path) -> None:
    os.truncate(source, SOURCE_BYTES // 2)


def empty(source: Path) -> None:
    os.truncate(source, 0)


def append(source: Path) -> None:
    with source.open("ab") as file:
        file.write(b"more")


def overwrite(source: Path) -> None:
    with source.open("r+b") as file:
        file.write(b"other")


def replace(source: Path) -> None:
    other = source.with_name("other")
    other.write_bytes(bytes(512))
    other.replace(source)


def remove(source: Path) -> None:
    source.unlink()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (truncate, ""),  # the reader gets there first and misses bytes, or the size tells afterwards
        (empty, ""),
        (append, "changed while it was read"),
        (overwrite, "changed while it was read"),
        (replace, "another file took its place"),
        (remove, "removed or renamed while it was read"),
    ],
)
def test_source_that_changes_meanwhile_is_never_published(
    command: Callable[..., Outcome],
    large_pool: Path,
    kept: np.ndarray[Any, Any],
    source: Path,
    start_load: Start,
    *,
    change: Callable[[Path], None],
    said: str,
) -> None:
    before = seen(command, large_pool)
    process = start_load()
    change(source)
    ended(process).failed(1, str(source), said, "load again when nothing")
    assert seen(command, large_pool) == before
    kept_is_intact(large_pool, kept)


def test_kill_leaves_space_that_the_next_writer_finds_again(
    command: Callable[..., Outcome], large_pool: Path, kept: np.ndarray[Any, Any], start_load: Start
) -> None:
    before = seen(command, large_pool)
    process = start_load()
    process.kill()
    assert ended(process).code == -signal.SIGKILL
    kept_is_intact(large_pool, kept)
    assert seen(command, large_pool)["tables"] == before["tables"]
    ended(start_load()).succeeded()
    command("verify", "--pool", large_pool).succeeded()
    command("rm", "half", "--pool", large_pool).succeeded()
    assert seen(command, large_pool) == before
