# SPDX-License-Identifier: Apache-2.0
"""The helper, compiled with sanitizers, and devices for it: files for their memory, and a sysfs of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from compiled import ENVIRONMENT, FLAGS, ROOT, SANITIZERS, UDEV
from dax_tree import Tree


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a function that compiles and links a program with sanitizers."""
    folder = tmp_path_factory.mktemp("programs")

    def build(name: str, *sources: Path) -> Path:
        command = ["cc", *FLAGS, *SANITIZERS, *map(str, sources), "-o", str(folder / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT)
        assert done.returncode == 0, done.stderr
        return folder / name

    return build


@pytest.fixture(scope="session")
def helper(build: Callable[..., Path]) -> Path:
    """Give the helper with sanitizers."""
    return build("engramdax-dax-id", *sorted(UDEV.glob("*.c")), ROOT / "c" / "media.c")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Give a sysfs without a device."""
    return Tree(tmp_path / "sys", tmp_path / "dev")


@pytest.fixture
def ask(helper: Path, tree: Tree) -> Callable[[str], dict[str, str]]:
    """Give a function that lets the helper look at a device of `tree`, and checks that no event would be harmed."""

    def ask(name: str) -> dict[str, str]:
        command = [helper, "--sysfs", tree.sysfs, tree.dev / name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")
        return dict(line.split("=", 1) for line in done.stdout.splitlines())

    return ask
