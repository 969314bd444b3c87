# SPDX-License-Identifier: Apache-2.0
"""Paths that hold no pool that this user could use."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, digest, unchanged

from engramdax.format.geometry import SUPERBLOCK_BYTES

Command = Callable[..., Outcome]

NOBODY = 65534

# Each kind of command runs once before the privileges go, for nobody may be unable to import anything.
AS_NOBODY = f"""
import contextlib, io, os
from engramdax.commands.main import main, run
with contextlib.redirect_stderr(io.StringIO()):
    for command in ["ls"], ["verify"], ["rm", "t"], ["load", "/"], ["deprovision"]:
        run([*command, "--pool", "/"])
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
main()
"""
AS_I_AM = "from engramdax.commands.main import main; main()"


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.npy"
    np.save(path, np.zeros((4, 4), np.uint8))
    return path


def failed_alike(command: Command, target: Path, rows: Path, code: int, *said: str) -> None:
    """Check every command that takes a pool."""
    ids = rows.with_name("ids.npy")
    np.save(ids, np.zeros(1, np.int32))
    for arguments in (
        ["ls"],
        ["info"],
        ["info", "t"],
        ["verify"],
        ["rm", "t"],
        ["load", rows],
        ["gather", "t", "--ids", ids, "--out", rows.with_name("out.npy")],
        ["deprovision"],
        ["deprovision", "--force"],
    ):
        command(*arguments, "--pool", target).failed(code, str(target), *said)
    assert not rows.with_name("out.npy").exists()


def test_missing_path_is_refused(command: Command, rows: Path, tmp_path: Path) -> None:
    failed_alike(command, tmp_path / "absent.pool", rows, 1, "does not exist", "engramdax provision")


def test_directory_is_refused(command: Command, rows: Path, tmp_path: Path) -> None:
    failed_alike(command, tmp_path, rows, 1, "is a directory", "name a file or a devdax device")
    assert list(tmp_path.iterdir())


def test_pipe_is_refused_without_waiting_for_its_other_end(command: Command, rows: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    failed_alike(command, pipe, rows, 1, "is a pipe", "devdax device or a regular file")


def test_character_device_that_is_no_devdax_is_refused(command: Command, rows: Path) -> None:
    failed_alike(command, Path("/dev/null"), rows, 1, "not a devdax one", "engramdax discover")


def test_empty_file_is_refused(command: Command, rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "empty.pool"
    path.touch()
    failed_alike(command, path, rows, 1, "is empty", "engramdax provision")
    assert path.stat().st_size == 0


@pytest.mark.parametrize("size", [1, 63, SUPERBLOCK_BYTES - 1, SUPERBLOCK_BYTES, 1 << 20])
def test_file_smaller_than_a_pool_is_refused(command: Command, rows: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "small.pool"
    path.write_bytes(np.random.default_rng(size).bytes(size))
    with unchanged(path):
        failed_alike(command, path, rows, 1, "no pool here", "engramdax provision")


def test_start_of_a_pool_is_refused(command: Command, rows: Path, pool: Path, tmp_path: Path) -> None:
    path = tmp_path / "start.pool"
    path.write_bytes(pool.read_bytes()[:SUPERBLOCK_BYTES])
    with unchanged(path):
        failed_alike(command, path, rows, 1, "4096")


def test_file_that_is_no_pool_is_refused(command: Command, rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.pool"
    path.write_bytes(np.random.default_rng(0).bytes(20 << 20))
    with unchanged(path):
        failed_alike(command, path, rows, 1, "no pool here", "engramdax provision")


def test_link_into_nothing_is_refused(command: Command, rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "link.pool"
    path.symlink_to(tmp_path / "absent")
    command("provision", "--file", path, "--size", "16M").failed(1, f"{path} is a link into nothing")
    failed_alike(command, path, rows, 1, "does not exist")


def test_file_in_the_way_of_a_folder_is_refused(command: Command, rows: Path) -> None:
    failed_alike(command, rows / "x.pool", rows, 1, "Not a directory")


@pytest.fixture
def public_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder that every user may enter; pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="engramdax-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for variable in ("ENGRAMDAX_STATE_DIR", "ENGRAMDAX_RUN_DIR"):
            monkeypatch.setenv(variable, str(folder / "host"))
        yield folder


def as_ordinary_user(*arguments: Any) -> Outcome:
    """Run a command as a user whom permissions bind."""
    start = [
        sys.executable,
        "-c",
        AS_NOBODY if os.geteuid() == 0 else "from engramdax.commands.main import main; main()",
    ]
    done = subprocess.run([*start, *map(str, arguments)], capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("verb", "access"),
    [("ls", "reading"), ("verify", "reading"), ("rm kept", "writing"), ("deprovision", "writing")],
)
def test_pool_without_permission_is_refused(pool: Path, public_folder: Path, verb: str, access: str) -> None:
    path = public_folder / "secret.pool"
    path.write_bytes(pool.read_bytes())
    path.chmod(0)
    before = digest(path) if os.geteuid() == 0 else None
    outcome = as_ordinary_user(*verb.split(), "--pool", path)
    outcome.failed(1, str(path), f"no permission to open {path} for {access}", "group")
    if before:
        assert digest(path) == before


def test_pool_that_may_be_read_only_is_listed_and_not_changed(pool: Path, public_folder: Path) -> None:
    path = public_folder / "readable.pool"
    path.write_bytes(pool.read_bytes())
    path.chmod(0o444)
    with unchanged(path):
        assert [t["name"] for t in as_ordinary_user("ls", "--json", "--pool", path).json()["tables"]] == ["kept"]
        as_ordinary_user("verify", "--pool", path).succeeded()
        as_ordinary_user("rm", "kept", "--pool", path).failed(1, f"no permission to open {path} for writing")


def test_source_without_permission_is_refused(pool: Path, public_folder: Path) -> None:
    source = public_folder / "secret.bin"
    source.write_bytes(bytes(64))
    source.chmod(0)
    with unchanged(pool):
        outcome = as_ordinary_user("load", source, "--row-bytes", 8, "--pool", pool)
    outcome.failed(2, str(source), "is not readable")
