# SPDX-License-Identifier: Apache-2.0
"""The helper that udev runs: what it says of memory, whatever that holds, and that no event is ever harmed by it."""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from compiled import ENVIRONMENT
from dax_tree import MIB, Tree

from engramdax.errors import EngramdaxError
from engramdax.format.geometry import SUPERBLOCK_BYTES, superblock_places
from engramdax.pool.access import LocalAccess
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out
from engramdax.pool.volume import read_superblock

Ask = Callable[[str], dict[str, str]]
SEED = 77


@pytest.fixture
def make(tree: Tree) -> Callable[..., Path]:
    """Give a function that makes a dax device with a pool on it."""

    def make(name: str = "dax0.0", size: int = 32 * MIB, *, pool: str = "shelf", align: int = 2 * MIB) -> Path:
        path = tree.device(name, size, align=align)
        carry_out(plan_file(path, size, name=pool, consent=Consent()).steps)
        return path

    return make


def uuid_of(path: Path) -> str:
    opened = LocalAccess(path, writable=False)
    try:
        return str(read_superblock(opened.media).value.pool)
    finally:
        opened.close()


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def sparse(path: Path, size: int, copies: dict[int, bytes]) -> None:
    """Make a large file with something at a few places."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in copies.items():
            file.seek(offset)
            file.write(data)


@pytest.mark.parametrize("align", [4096, 2 * MIB])
def test_a_pool_is_named(ask: Ask, make: Callable[..., Path], align: int) -> None:
    path = make(align=align)
    assert ask("dax0.0") == {"ENGRAMDAX_POOL_UUID": uuid_of(path), "ENGRAMDAX_POOL_NAME": "shelf"}


@pytest.mark.parametrize("align", [2 * MIB, 1024 * MIB])
@pytest.mark.parametrize("kept", [0, 1, 2])
def test_any_copy_of_the_superblock_does(ask: Ask, tree: Tree, kept: int, align: int) -> None:
    # A pool of 3 GiB, of which only its superblock has to be there.
    size = 3072 * MIB
    path = tree.device("dax0.0", size, align=align)
    data = superblock_bytes(size)
    places = superblock_places(size)
    garbage = dict.fromkeys(places, b"\xa5" * SUPERBLOCK_BYTES)
    sparse(path, size, {**garbage, places[kept]: data})
    assert ask("dax0.0")["ENGRAMDAX_POOL_NAME"] == "shelf"


def superblock_bytes(size: int, **fields: Any) -> bytes:
    from uuid import uuid4

    from engramdax.format.geometry import standard
    from engramdax.format.superblock import Superblock

    return Superblock(uuid4(), uuid4(), "shelf", size, standard(size), shared=True, created=1, **fields).to_bytes()


def test_memory_that_faults_costs_a_copy_and_not_the_name(ask: Ask, tree: Tree) -> None:
    # The first copies are behind the end of a file that sysfs calls larger, so that they fault as poison does.
    size = 3072 * MIB
    path = tree.device("dax0.0", size)
    sparse(path, 2 * MIB, {0: b"\xa5" * 100})
    assert ask("dax0.0") == {}
    sparse(path, 2 * MIB + 4096, {0: b"\xa5" * 100, 2 * MIB: superblock_bytes(size)})
    assert ask("dax0.0")["ENGRAMDAX_POOL_NAME"] == "shelf"
    path.write_bytes(b"")
    assert ask("dax0.0") == {}


def test_a_device_shorter_than_its_superblock_says_has_no_pool(ask: Ask, tree: Tree, make: Callable[..., Path]) -> None:
    make()
    tree.device("dax0.0", 30 * MIB)
    assert ask("dax0.0") == {}


@pytest.mark.parametrize("size", [0, 1, 4095, 2 * MIB - 1, "x", "-1", (1 << 64) - 1, "", "9" * 400])
def test_a_size_that_cannot_hold_a_superblock_is_nothing(
    ask: Ask, tree: Tree, make: Callable[..., Path], size: object
) -> None:
    make()
    tree.write("platform/hmem.0/dax0.0", size=size)
    assert ask("dax0.0") == {}


def test_a_size_that_is_too_large_to_be_true_does_no_harm(ask: Ask, tree: Tree, make: Callable[..., Path]) -> None:
    path = make()
    tree.write("platform/hmem.0/dax0.0", size=(1 << 64) - 4096)
    assert ask("dax0.0")["ENGRAMDAX_POOL_NAME"] == "shelf"
    overwrite(path, 0, bytes(4 * MIB))
    assert ask("dax0.0") == {}


@pytest.mark.parametrize("align", [0, 3, "x", -1, 1 << 63, ""])
def test_an_impossible_align_is_nothing(ask: Ask, tree: Tree, make: Callable[..., Path], align: object) -> None:
    make()
    tree.write("platform/hmem.0/dax0.0", align=align)
    assert ask("dax0.0") == {}


def test_newer_pools_are_not_named(ask: Ask, tree: Tree) -> None:
    path = tree.device("dax0.0", 32 * MIB)
    sparse(path, 32 * MIB, {0: superblock_bytes(32 * MIB, incompat=1)})
    assert ask("dax0.0") == {}
    sparse(path, 32 * MIB, {0: superblock_bytes(32 * MIB, ro_compat=1, compat=1)})
    assert ask("dax0.0")["ENGRAMDAX_POOL_NAME"] == "shelf"


def test_what_is_no_device_or_file_is_nothing(ask: Ask, tree: Tree, make: Callable[..., Path]) -> None:
    path = make()
    memory = path.rename(path.with_name("memory"))
    assert ask("dax0.0") == {}  # nothing there
    os.mkfifo(path)
    assert ask("dax0.0") == {}
    path.unlink()
    path.mkdir()
    assert ask("dax0.0") == {}
    path.rmdir()
    path.symlink_to("/dev/null")  # a device, but not the one that sysfs tells of
    assert ask("dax0.0") == {}
    path.unlink()
    memory.rename(path)
    assert ask("dax0.0") != {}
    assert ask("dax9.9") == {}
    assert ask("..") == {}


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["--sysfs"], ["--sysfs", "/sys"], ["--sysfs", "/sys", "a", "b"]])
def test_wrong_arguments_are_nothing(helper: Path, arguments: list[str]) -> None:
    done = subprocess.run([helper, *arguments], capture_output=True, check=False, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_an_attribute_that_never_answers_ends_at_the_deadline(
    helper: Path, tree: Tree, make: Callable[..., Path]
) -> None:
    make()
    attribute = tree.write("platform/hmem.0/dax0.0") / "align"
    attribute.unlink()
    os.mkfifo(attribute)  # whose open waits for a writer
    began = time.monotonic()
    done = subprocess.run(
        [helper, "--sysfs", tree.sysfs, tree.dev / "dax0.0"],
        capture_output=True,
        check=False,
        env=ENVIRONMENT,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert time.monotonic() - began > 2.5


def test_a_reader_that_went_away_is_no_failure(helper: Path, tree: Tree, make: Callable[..., Path]) -> None:
    make()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [helper, "--sysfs", tree.sysfs, tree.dev / "dax0.0"]
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, env=ENVIRONMENT)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_memory_is_never_changed(ask: Ask, make: Callable[..., Path]) -> None:
    path = make()
    path.chmod(0o440)
    before = path.read_bytes()
    assert ask("dax0.0") != {}
    assert path.read_bytes() == before


def test_damaged_pools_are_named_when_the_package_can_open_them(
    ask: Ask, tree: Tree, make: Callable[..., Path]
) -> None:
    """Whole images, through the file system and the mapping."""
    path = make()
    good = {place: path.read_bytes()[place : place + SUPERBLOCK_BYTES] for place in superblock_places(32 * MIB)}
    source = random.Random(SEED)
    answers = set()
    for _ in range(250):
        for place, data in good.items():
            broken = bytearray(data)
            if source.random() < 0.6:
                for _ in range(source.choice([1, 4, 4096])):
                    broken[source.randrange(SUPERBLOCK_BYTES)] = source.randrange(256)
            overwrite(path, place, bytes(broken))
        try:
            opened = LocalAccess(path, writable=False)
            try:
                wanted = read_superblock(opened.media).value.name
            finally:
                opened.close()
        except EngramdaxError:
            wanted = ""
        answers.add(wanted)
        assert ask("dax0.0").get("ENGRAMDAX_POOL_NAME", "") == wanted, f"seed {SEED}"
    assert answers == {"", "shelf"}
