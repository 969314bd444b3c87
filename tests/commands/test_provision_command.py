# SPDX-License-Identifier: Apache-2.0
"""Making pools: what is never overwritten unasked, what cannot be had, and what is left behind then."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from outcomes import Outcome, unchanged

import engramdax
from engramdax.pool.writer import Writer
from tests.hugetlbfs import mounts

Command = Callable[..., Outcome]

MIB = 1 << 20
SIZE = 16 * MIB


def records() -> list[Path]:
    return sorted((Path(os.environ["ENGRAMDAX_STATE_DIR"]) / "pools").glob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Give a folder with nothing else in it."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def test_new_file_becomes_a_pool(command: Command, place: Path) -> None:
    path = place / "new.pool"
    outcome = command("provision", "--file", path, "--size", "16M", "--name", "n").succeeded()
    assert outcome.out.startswith("pool n (")
    assert "16.0 MiB" in outcome.out
    assert str(path) in outcome.out
    status = path.stat()
    assert (status.st_size, status.st_mode & 0o777) == (SIZE, 0o640)
    assert status.st_blocks * 512 >= SIZE  # space really taken
    assert command("ls", "--json", "--pool", path).json()["tables"] == []
    assert len(records()) == 1


@pytest.mark.parametrize("at", [0, 12_345_678, SIZE - 1])
def test_unknown_bytes_need_overwrite_unknown(command: Command, place: Path, at: int) -> None:
    path = place / "bytes"
    with path.open("wb") as file:
        file.truncate(SIZE)
        file.seek(at)
        file.write(b"x")
    with unchanged(path):
        for options in ([], ["--force"], ["--dry-run"]):
            outcome = command("provision", "--file", path, "--size", "16M", *options)
            outcome.failed(3, str(path), f"unknown bytes at {at}", "--overwrite-unknown")
    assert records() == []
    command("provision", "--file", path, "--size", "16M", "--overwrite-unknown").succeeded()
    command("verify", "--pool", path).succeeded()


def test_random_bytes_need_overwrite_unknown(command: Command, place: Path) -> None:
    path = place / "bytes"
    path.write_bytes(np.random.default_rng(1).bytes(SIZE))
    with unchanged(path):
        command("provision", "--file", path, "--size", "16M").failed(3, str(path), "--overwrite-unknown")


def test_file_system_needs_force(command: Command, place: Path) -> None:
    program = shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin:/bin")
    if program is None or shutil.which("blkid", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        pytest.skip("mkfs.ext4 or blkid is not installed")
    path = place / "image"
    with path.open("wb") as file:
        file.truncate(SIZE)
    subprocess.run([program, "-q", "-F", "-L", "precious", path], check=True)
    with unchanged(path):
        for options in ([], ["--overwrite-unknown"], ["--dry-run"]):
            outcome = command("provision", "--file", path, "--size", "16M", *options)
            outcome.failed(3, str(path), "ext4", "precious", "--force")
    command("provision", "--file", path, "--size", "16M", "--force").succeeded()
    command("verify", "--pool", path).succeeded()


def test_pool_needs_force(command: Command, pool: Path) -> None:
    with unchanged(pool):
        for options in ([], ["--overwrite-unknown"], ["--dry-run"]):
            outcome = command("provision", "--file", pool, "--size", "24M", *options)
            outcome.failed(3, str(pool), "pool shelf", "1 table", "--force")
    command("provision", "--file", pool, "--size", "24M", "--force", "--name", "anew").succeeded()
    listed = command("ls", "--json", "--pool", pool).json()
    assert (listed["pool"], listed["tables"]) == ("anew", [])


@pytest.mark.parametrize("damage", ["superblocks", "directory"])
def test_damaged_pool_needs_force_too(
    command: Command, pool: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("engramdax.pool.volume.RETRY_SECONDS", 0.01)
    with pool.open("r+b") as file:
        for offset in (100, 2 * MIB + 100) if damage == "superblocks" else (4 * MIB, 8 * MIB):
            file.seek(offset)
            file.write(b"\xff" * 8)
    with unchanged(pool):
        command("provision", "--file", pool, "--size", "24M").failed(3, str(pool), "--force", "damaged")
    command("provision", "--file", pool, "--size", "24M", "--force").succeeded()


def test_pool_that_is_read_or_written_is_not_overwritten_even_by_force(command: Command, pool: Path) -> None:
    again = ("provision", "--file", pool, "--size", "24M", "--force")
    with engramdax.open(pool), unchanged(pool):
        command(*again).failed(3, str(pool), "is open in process", str(os.getpid()))
    with Writer(pool), unchanged(pool):
        command(*again).failed(1, str(pool), "written by another process", str(os.getpid()))
    command(*again).succeeded()


def test_other_size_than_the_file_has_is_refused(command: Command, pool: Path) -> None:
    with unchanged(pool):
        outcome = command("provision", "--file", pool, "--size", "32M", "--force")
    outcome.failed(3, str(pool), f"{24 * MIB} bytes, not {32 * MIB}", "remove it")


def test_folder_and_pipe_are_no_place_for_a_pool(command: Command, place: Path) -> None:
    command("provision", "--file", place, "--size", "16M").failed(1, str(place), "is a directory")
    pipe = place / "pipe"
    os.mkfifo(pipe)
    command("provision", "--file", pipe, "--size", "16M").failed(1, str(pipe), "is a pipe")
    command("provision", "--file", place / "no" / "x", "--size", "16M").failed(1, "is no directory", "make it first")
    assert list(place.iterdir()) == [pipe]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--file", "x", "--hugepages", "2M", "--size", "16M"], 2, "more than one place"),
        (["--file", "x", "--size", "16M", "--align", "2M"], 2, "--align is for devices"),
        (["--file", "x", "--join"], 2, "--file does not go with --join"),
        (["--join", "--name", "x"], 2, "--name does not go with --join"),
        (["dax0.0", "--pool", "x"], 2, "--pool goes with --join alone"),
        (["dax999.0", "--type", "disk"], 2, "--type disk is unknown"),
        (["dax999.0", "--align", "4K"], 2, "pages of '4K' are unknown"),
        (["dax999.0", "--size", "banana"], 2, "'banana' is no size"),
        (["dax999.0"], 1, "there is no dax999.0 on this host"),
        (["region999"], 1, "there is no region999 on this host"),
        (["namespace999.0"], 1, "there is no namespace999.0 on this host"),
        (["mem999"], 1, "there is no memdev mem999 on this host"),
        (["banana"], 2, "'banana' is no device, namespace, region or memdev"),
        (["/dev/dax999.0"], 1, "/dev/dax999.0 does not exist"),
        (["--file", "x"], 2, "--size is missing"),
        (["--file", "x", "--size", "banana"], 2, "'banana' is no size"),
        (["--file", "x", "--size", "-16M"], 2, "'-16M' is no size"),
        (["--file", "x", "--size", ""], 2, "'' is no size"),
        (["--file", "x", "--size", "0"], 1, "too small"),
        (["--file", "x", "--size", "15M"], 1, "too small"),
        (["--file", "x", "--size", "16M", "--name", ""], 2, "cannot name a pool"),
        (["--file", "x", "--size", "16M", "--name", "a/b"], 2, "cannot name a pool"),
        (["--file", "x", "--size", "16M", "--name", "n" * 65], 2, "cannot name a pool"),
        (["--hugepages", "3M", "--size", "16M"], 2, "huge pages of '3M' are unknown"),
        (["/dev/null", "--size", "16M"], 2, "--size does not go with /dev/null"),
        (["/dev/null"], 1, "not a devdax one"),
    ],
)
def test_impossible_request_is_refused(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch, *, arguments: list[str], code: int, said: str
) -> None:
    monkeypatch.chdir(place)
    command("provision", *arguments).failed(code, said)
    assert list(place.iterdir()) == []
    assert records() == []


def test_dry_run_says_the_steps_and_does_none(command: Command, place: Path) -> None:
    path = place / "planned.pool"
    outcome = command("provision", "--file", path, "--size", "16M", "--dry-run").succeeded()
    lines = outcome.out.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("would ") for line in lines)
    assert str(path) in outcome.out
    planned = command("provision", "--file", path, "--size", "16M", "--dry-run", "--json").json()
    assert planned["done"] is False
    assert [f"would {step}" for step in planned["steps"]] == lines
    assert list(place.iterdir()) == []
    assert records() == []


def test_pool_larger_than_the_disk_is_refused_with_both_numbers(command: Command, place: Path) -> None:
    path = place / "large.pool"
    outcome = command("provision", "--file", path, "--size", "1000T")
    outcome.failed(1, str(place), "bytes free", str(1000 << 40), "smaller --size")
    assert list(place.iterdir()) == []
    assert records() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a tmpfs of 20 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=20m", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"cannot mount a tmpfs: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_full_disk_is_an_error_that_leaves_nothing_behind(command: Command, small_disk: Path) -> None:
    path = small_disk / "large.pool"
    outcome = command("provision", "--file", path, "--size", "24M")
    outcome.failed(1, str(small_disk), f"{20 * MIB} bytes free", str(24 * MIB))
    assert list(small_disk.iterdir()) == []


def test_disk_that_fills_up_on_the_way_is_an_error_that_leaves_nothing_behind(
    command: Command, small_disk: Path
) -> None:
    # A file that is there already is not asked about before it is filled.
    path = small_disk / "large.pool"
    path.touch()
    outcome = command("provision", "--file", path, "--size", "24M")
    outcome.failed(1, f"cannot have {24 * MIB} bytes in {path}", "No space left", "free space")
    assert path.stat().st_size == 0
    assert os.statvfs(small_disk).f_bavail == os.statvfs(small_disk).f_blocks
    assert records() == []
    command("provision", "--file", path, "--size", "18M").succeeded()


def test_limit_on_file_sizes_is_an_error_that_leaves_nothing_behind(process: Command, place: Path) -> None:
    path = place / "large.pool"
    limits = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{limits}; from engramdax.commands.main import main; main()",
            *("provision", "--file", str(path), "--size", "16M"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    outcome = Outcome(done.returncode, done.stdout, done.stderr)
    outcome.failed(1, f"cannot have {SIZE} bytes in {path}", "File too large")
    assert list(place.iterdir()) == []
    assert records() == []


def test_host_that_cannot_remember_the_pool_gets_none(
    command: Command, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = place.parent / "blocked"
    blocked.touch()
    monkeypatch.setenv("ENGRAMDAX_STATE_DIR", str(blocked / "state"))
    command("provision", "--file", place / "x.pool", "--size", "16M").failed(1, str(blocked), "ENGRAMDAX_STATE_DIR")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("left", [0, 6 * MIB, 12 * MIB], ids=["nothing", "table", "metadata"])
def test_load_into_a_sparse_pool_on_a_full_disk_is_an_error(
    command: Command, make_pool: Callable[..., Path], small_disk: Path, left: int
) -> None:
    original = make_pool(48 * MIB, "sparse")
    path = small_disk / "sparse.pool"
    subprocess.run(["cp", "--sparse=always", original, path], check=True)
    # A table with its checksums takes at least 4 MiB, the metadata of a pool 8 MiB.
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    (small_disk / "ballast").write_bytes(bytes(free - left))
    rows = small_disk.parent / "rows.bin"
    rows.write_bytes(bytes(3 * MIB))
    before = command("ls", "--json", "--pool", path).json()
    with unchanged(path):
        outcome = command("load", rows, "--row-bytes", 1024, "--pool", path)
    outcome.failed(1, str(path), "has holes and cannot be filled", "No space left")
    assert command("ls", "--json", "--pool", path).json() == before
    (small_disk / "ballast").unlink()
    command("load", rows, "--row-bytes", 1024, "--pool", path).succeeded()
    command("verify", "--pool", path).succeeded()


def test_huge_pages_are_taken_and_given_back(command: Command, huge_pages: Callable[[], int], tmp_path: Path) -> None:
    before, mounted, name = huge_pages(), mounts(), f"test-{os.getpid()}"
    made = command("provision", "--hugepages", "2M", "--size", "20M", "--name", name, "--json")
    if made.code == 1 and "granted" in made.err:
        pytest.skip("this machine has no 10 huge pages left")
    made = made.json()
    assert made["size"] == 20 * MIB
    info = command("info", "--json", "--pool", name).json()
    assert (info["kind"], info["page_size"]) == ("hugetlbfs", 2 * MIB)
    rows = np.random.default_rng(5).integers(0, 256, (1000, 64), np.uint8)
    np.save(tmp_path / "rows.npy", rows)
    command("load", tmp_path / "rows.npy", "--pool", name).succeeded()
    command("verify", "--pool", name).succeeded()
    command("deprovision", "--pool", name).failed(3, "rows", "--force")
    command("deprovision", "--pool", name, "--force").succeeded()
    assert huge_pages() == before
    assert mounts() == mounted
    assert not Path(made["path"]).exists()
    assert records() == []
