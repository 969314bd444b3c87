# SPDX-License-Identifier: Apache-2.0
"""What `--out` of `gather` and `trace` replaces, and what it leaves alone."""

from __future__ import annotations

import json
import os
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome, unchanged

from engramdax.trace.hotlist import read_hot_list

Command = Callable[..., Outcome]

CONFIG = {
    "engram_layer_ids": [1],
    "engram_max_ngram_size": 2,
    "engram_n_heads": 1,
    "engram_vocab_size": 50,
    "engram_num_embeddings": [53],
    "engram_pad_token_id": 0,
    "engram_compressed_vocab_size": 40,
}


@pytest.fixture
def gather(command: Command, pool: Path, tmp_path: Path) -> Command:
    """Give a function that gathers three rows into `--out`."""
    np.save(tmp_path / "ids.npy", np.arange(3))
    return lambda out: command("gather", "kept", "--ids", tmp_path / "ids.npy", "--out", out, "--pool", pool)


@pytest.fixture
def trace(command: Command, tmp_path: Path) -> Command:
    """Give a function that writes the hot list of a short trace to `--out`."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    np.save(tmp_path / "map.npy", np.arange(40))
    np.save(tmp_path / "trace.npy", np.arange(40))
    files = (tmp_path / "trace.npy", "--config", tmp_path / "config.json", "--token-map", tmp_path / "map.npy")
    return lambda out: command("trace", *files, "--out", out)


@pytest.fixture(params=["gather", "trace"])
def write(request: pytest.FixtureRequest) -> Command:
    function: Command = request.getfixturevalue(request.param)
    return function


def test_plain_file_is_made_and_replaced(write: Command, tmp_path: Path) -> None:
    write(tmp_path / "out").succeeded()
    first = (tmp_path / "out").stat().st_ino
    write(tmp_path / "out").succeeded()
    assert (tmp_path / "out").stat().st_ino != first


def test_device_pipe_or_socket_is_refused_and_stays(write: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.fspath(tmp_path / "socket"))
    with listener:
        for place, kind in (
            ("/dev/null", "a character device"),
            (tmp_path / "link", "a character device"),
            (tmp_path / "pipe", "a pipe"),
            (tmp_path / "socket", "a socket"),
        ):
            write(place).failed(3, f"{place} is {kind}", "give another --out")
    assert Path("/dev/null").is_char_device()
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").readlink() == Path("/dev/null")


def test_what_the_output_is_made_of_is_not_replaced_by_it(write: Command, tmp_path: Path) -> None:
    names = "ids.npy", "trace.npy", "config.json", "map.npy"
    sources = {path: path.read_bytes() for path in tmp_path.iterdir() if path.name in names}
    assert sources
    for place in sources:
        link = place.with_suffix(".link")
        link.symlink_to(place)
        for out in (place, link):
            write(out).failed(3, f"{out} is the source {place}", "give another --out")
    assert {path: path.read_bytes() for path in sources} == sources


def test_pool_is_never_replaced_under_any_of_its_names(write: Command, pool: Path, tmp_path: Path) -> None:
    (tmp_path / "soft").symlink_to(pool)
    (tmp_path / "hard").hardlink_to(pool)
    inode = pool.stat().st_ino
    with unchanged(pool):
        for place in (pool, tmp_path / "soft", tmp_path / "hard"):
            write(place).failed(3, f"{place} is a pool", "give another --out")
    assert pool.stat().st_ino == inode


def test_pool_whose_first_superblock_is_lost_is_not_replaced_either(gather: Command, pool: Path) -> None:
    with pool.open("r+b") as file:
        file.write(bytes(4096))
    with unchanged(pool):
        gather(pool).failed(3, f"{pool} is a pool")


def test_symlink_stays_and_what_it_leads_to_is_replaced(gather: Command, kept: Any, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for target in ("below/rows.npy", "below/new.npy"):
        link = tmp_path / f"link-{target[6:]}"
        link.symlink_to(target)
    (tmp_path / "below" / "rows.npy").write_bytes(b"old")
    for name in ("rows.npy", "new.npy"):
        gather(tmp_path / f"link-{name}").succeeded()
        assert (tmp_path / f"link-{name}").is_symlink()
        np.testing.assert_array_equal(np.load(tmp_path / "below" / name), kept[:3])
    assert sorted(path.name for path in (tmp_path / "below").iterdir()) == ["new.npy", "rows.npy"]


def test_symlink_that_leads_round_is_an_error(write: Command, tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    write(tmp_path / "a").failed(1, f"cannot write {tmp_path / 'a'}")
    assert (tmp_path / "a").is_symlink()


def test_name_as_long_as_names_can_be_is_written(write: Command, tmp_path: Path) -> None:
    for length in (250, 255):
        write(tmp_path / ("n" * length)).succeeded()
        assert (tmp_path / ("n" * length)).is_file()


def test_list_of_each_layer_is_checked_before_anything_is_counted(trace: Command, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hot-1.npz")
    trace(tmp_path / "hot-{layer}.npz").failed(3, f"{tmp_path / 'hot-1.npz'} is a pipe")
    (tmp_path / "hot-1.npz").unlink()
    trace(tmp_path / "hot-{layer}.npz").succeeded()
    assert read_hot_list(tmp_path / "hot-1.npz").rows == 53


def test_write_that_ends_half_way_says_why_and_leaves_nothing(
    process: Command, pool: Path, kept: Any, tmp_path: Path
) -> None:
    np.save(tmp_path / "ids.npy", np.arange(len(kept)))
    files = ("--ids", tmp_path / "ids.npy", "--out", tmp_path / "out.npy", "--pool", pool)

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))

    outcome = process("gather", "kept", *files, preexec_fn=bound)
    outcome.failed(1, f"cannot write {tmp_path / 'out.npy'}: ", "give another --out")
    assert "None" not in outcome.err
    assert list(tmp_path.glob("*out*")) == list(tmp_path.glob(".*")) == []


def test_name_that_the_output_cannot_show_is_escaped(process: Command, pool: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    files = ("--ids", tmp_path / "ids.npy", "--pool", pool, "--out")
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    outcome = process("gather", "kept", *files, "caf\N{LATIN SMALL LETTER E WITH ACUTE}", env=ascii_only, cwd=tmp_path)
    assert outcome.succeeded().out.endswith("are in caf\\xe9\n")
    outcome = process("gather", "kept", *files, b"\xff\n".decode(errors="surrogateescape"), cwd=tmp_path)
    assert outcome.succeeded().out.endswith("are in \\xdcff\\x0a\n")
