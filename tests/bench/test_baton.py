# SPDX-License-Identifier: Apache-2.0
"""Contenders in processes of their own: one runs, the others stand still."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engramdax.bench import peers
from engramdax.bench.baton import Runner
from engramdax.bench.peers import find_peer
from engramdax.bench.scratch import TABLE
from engramdax.bench.worker import Failed, Limit, Setup, Taken, Turn

TURN = Turn(rows=300, ids="uniform", calls=20, limit=Limit(20, 1.0), gap=0.0, seed=[0], check=True)


@pytest.fixture
def make_runner(
    make_pool: Callable[..., Path], load_array: Callable[..., object], tmp_path: Path
) -> Iterator[Callable[..., Runner]]:
    path = make_pool()
    load_array(path, TABLE, np.random.default_rng(0).integers(0, 256, (5000, 64), np.uint8))
    runners = []

    def make(name: str, peer: Path | None = None) -> Runner:
        runners.append(Runner(Setup(name, path, 1, peer, None, tmp_path)))
        return runners[-1]

    yield make
    for runner in runners:
        runner.close()


def states(runner: Runner) -> set[str]:
    """Of all its threads, as the kernel tells them."""
    stats = Path(f"/proc/{runner._pid}/task").glob("*/stat")
    return {stat.read_text().rpartition(")")[2].split()[0] for stat in stats}


@pytest.mark.parametrize("name", ["gather", "prepared", "openmp", "numpy", "limit"])
def test_contender_brings_the_right_bytes_and_a_time_for_each_call(
    make_runner: Callable[..., Runner], name: str
) -> None:
    taken = make_runner(name).take(TURN)
    assert isinstance(taken, Taken)
    assert taken.nanoseconds.shape == (20,)
    assert (taken.nanoseconds > 0).all()


def test_all_threads_of_a_contender_stand_still_between_its_turns(make_runner: Callable[..., Runner]) -> None:
    runner = make_runner("openmp")
    for _ in range(3):
        assert states(runner) == {"T"}
        assert isinstance(runner.take(TURN), Taken)
    assert states(runner) == {"T"}


def test_contender_that_died_is_told_and_not_waited_for(make_runner: Callable[..., Runner]) -> None:
    runner = make_runner("numpy")
    os.kill(runner._pid, signal.SIGKILL)
    for _ in range(2):
        taken = runner.take(TURN)
        assert isinstance(taken, Failed)
        assert "ended" in taken.reason


def test_contender_whose_module_cannot_be_imported_is_absent_with_its_reason(
    make_runner: Callable[..., Runner], tmp_path: Path
) -> None:
    (tmp_path / "engramdb").mkdir()
    (tmp_path / "engramdb" / "__init__.py").write_text("raise ImportError('built for another CPU')")
    runner = make_runner("engramdb", tmp_path)
    assert "built for another CPU" in runner.failed
    assert isinstance(runner.take(TURN), Failed)


def test_peer_is_found_in_the_directory_given(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    assert find_peer("torch", tmp_path, lambda _text: None).path == tmp_path


def test_peer_that_pip_cannot_install_is_absent_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(peers.REQUIREMENTS, "no_such_peer", "no-such-peer==1")
    said: list[str] = []
    peer = find_peer("no_such_peer", None, said.append)
    assert "no-such-peer==1" in peer.absent
    assert "no-such-peer==1" in said[0]
    assert not list((tmp_path / "engramdax" / "peers").iterdir())
