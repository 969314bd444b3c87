# SPDX-License-Identifier: Apache-2.0
"""docs/start.md from top to bottom: what it has a newcomer do works, and prints what stands there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax.host import SHARED_MEMORY

PAGE = (Path(__file__).parents[2] / "docs" / "start.md").read_text()
BLOCK = re.compile(r"^```(python)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (.*)\n", re.MULTILINE)
POOL = str(SHARED_MEMORY / "tables")
DIRECTORY = "/tmp/try"  # noqa: S108 - of the page, not of this test
OTHER_TERMINAL = "python -i"
FLIPPED = "engramdax verify words"
DIFFERS = (
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(?<=created     )\S+",
    r"(?<=hosts       )\S+",
    r"(?<=page size   ).*",
)
"""What another run prints otherwise."""


def blocks(language: str) -> list[str]:
    return [text for found, text in BLOCK.findall(PAGE) if found == language]


def same(text: str) -> str:
    for pattern in DIFFERS:
        text = re.sub(pattern, "*", text)
    return re.sub(" +$", "", text, flags=re.MULTILINE)  # of the last column


@pytest.fixture
def shared() -> Iterator[Path]:
    """Give a directory of our own in shared memory, where a pool of the page's size has room."""
    if not SHARED_MEMORY.is_dir() or shutil.disk_usage(SHARED_MEMORY).free < 600 << 20:
        pytest.skip(f"the page's pool takes 512 MiB of {SHARED_MEMORY}")
    with tempfile.TemporaryDirectory(prefix="engramdax-test-", dir=SHARED_MEMORY) as directory:
        yield Path(directory)


@pytest.fixture
def environment() -> dict[str, str]:
    """Have the commands of this Python in PATH."""
    place = Path(sys.executable).parent
    if not (place / "engramdax").exists():
        pytest.skip(f"engramdax is not installed beside {sys.executable}")
    return os.environ | {"PATH": f"{place}:{os.environ['PATH']}"}


@pytest.fixture
def data(tmp_path: Path, environment: dict[str, str]) -> Path:
    """Give a directory with what the first block makes."""
    place = tmp_path / "try"
    place.mkdir()
    subprocess.run(["python", "-c", blocks("python")[0]], cwd=place, env=environment, check=True)
    return place


def flip_bits(pool: Path) -> None:
    """Flip a bit in the first and third MiB of the table."""
    with engramdax.open(pool) as opened:
        begin = opened["words"].entry.extent.offset
    memory = np.memmap(pool, mode="r+")
    memory[[begin, begin + (2 << 20)]] ^= 1


def other_terminal(command: str, data: Path, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Start a Python, and wait for its first prompt."""
    python = subprocess.Popen(
        ["bash", "-c", f"exec {command}"],
        cwd=data,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert python.stderr is not None
    while (letter := python.stderr.read(1)) != ">":
        assert letter, python.wait()
    return python


def test_each_command_prints_what_the_page_shows(data: Path, shared: Path, environment: dict[str, str]) -> None:
    pool = shared / "tables"
    terminals: list[subprocess.Popen[str]] = []
    ran = 0
    try:
        for block in blocks(""):
            _, *parts = COMMAND.split(block)
            for command, shown in zip(parts[::2], parts[1::2], strict=True):
                if command.startswith(OTHER_TERMINAL):
                    terminals.append(other_terminal(command, data, environment))
                    continue
                if command == FLIPPED:
                    flip_bits(pool)
                done = subprocess.run(
                    ["bash", "-c", command.replace(POOL, str(pool))],
                    cwd=data,
                    env=environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    check=False,
                )
                printed = done.stdout.replace(str(pool), POOL).replace(str(data), DIRECTORY)
                assert same(printed) == same(shown), command
                ran += 1
            while terminals:  # the other terminal's Python lives until the end of its block
                terminals.pop().communicate()
    finally:
        for python in terminals:
            python.kill()
            python.communicate()
    assert ran > 20
    assert not pool.exists()


def test_rows_that_cannot_be_read_are_named_as_the_page_shows(
    data: Path, make_pool: Callable[..., Path], load_array: Callable[..., object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_pool()
    load_array(path, "words", np.load(data / "words.npy"))
    with engramdax.open(path) as pool:
        table = pool["words"]
    os.truncate(path, table.entry.extent.offset + (2 << 20))
    out = np.empty((4, table.row_bytes), np.uint8)
    exec(blocks("python")[1], {"engramdax": engramdax, "np": np, "table": table, "out": out})  # noqa: S102
    assert capsys.readouterr().out in blocks("")
