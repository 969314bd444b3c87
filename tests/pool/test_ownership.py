# SPDX-License-Identifier: Apache-2.0
"""One writer host: released, taken over, and deposed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import process
from shared_pool import SharedPool

import engramdax
from engramdax.commands.main import run
from engramdax.errors import DeposedError, RefusedError
from engramdax.pool import ownership
from engramdax.pool.access import LocalAccess
from engramdax.pool.volume import read_superblock
from engramdax.pool.writer import Writer

pytestmark = pytest.mark.unsanitized  # next to nothing of it is in C


@pytest.fixture
def shared(tmp_path: Path) -> SharedPool:
    return SharedPool(tmp_path, "alpha", "beta")


@pytest.fixture
def own(shared: SharedPool) -> Callable[..., int]:
    return lambda *options: run(["own", "--pool", str(shared.path), *options])


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (40_000, 64), dtype=np.uint8)


def right(shared: SharedPool, name: str, expected: np.ndarray) -> bool:
    with engramdax.open(shared.path) as pool:
        table = pool[name]
        return bool((table.gather(np.arange(len(expected))) == expected).all()) and table.verify() == []


def test_a_released_pool_is_written_by_its_heir_and_no_more_by_its_owner(shared: SharedPool, own: Callable) -> None:
    with shared.on("alpha"):
        shared.load("a", rows(1))
        assert own("--release") == 0
        with pytest.raises(RefusedError, match=r"this host released pool shared to host beta \("):
            Writer(shared.path)
    with shared.on("beta"):
        shared.load("b", rows(2))
        assert right(shared, "a", rows(1))
        assert right(shared, "b", rows(2))
    with shared.on("alpha"), pytest.raises(RefusedError, match="is written by host beta"):
        Writer(shared.path)


def test_a_pool_released_to_nobody_is_anybodys_who_takes_it_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engramdax.pool.ownership.SETTLE_SECONDS", 0.0)
    shared = SharedPool(tmp_path, "alpha", "beta", "gamma")
    pool = ["--pool", str(shared.path)]
    with shared.on("alpha"):
        assert run(["own", "--release", *pool]) == 0
    with shared.on("gamma"):
        with pytest.raises(RefusedError, match="is written by host alpha"):
            Writer(shared.path)
        assert run(["own", "--take-over", *pool]) == 0
        shared.load("c", rows(3))
        assert right(shared, "c", rows(3))
        assert run(["own", "--release", "--to", "beta", *pool]) == 0
    with shared.on("beta"):
        shared.load("d", rows(4))


def test_a_release_that_another_host_made_use_of_in_between_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a schedule of the simulated rack: the other host wrote already when this one's claim came."""
    monkeypatch.setattr("engramdax.pool.ownership.SETTLE_SECONDS", 0.0)
    shared = SharedPool(tmp_path, "alpha", "beta", "gamma")
    with shared.on("alpha"):
        assert run(["own", "--release", "--pool", str(shared.path)]) == 0
    # Of two claims of one epoch the higher host's counts; the other would be refused.
    early, late = sorted(("beta", "gamma"), key=shared.ids.__getitem__)
    write_claim = ownership.write_claim

    def become(host: str) -> ownership.TakeOver:
        with shared.on(host), closing(LocalAccess(shared.path, writable=True)) as access:
            return ownership.become_owner(access, read_superblock(access.media).value)

    def after_the_other(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(ownership, "write_claim", write_claim)
        assert become(early).proven
        write_claim(*arguments, **options)

    monkeypatch.setattr(ownership, "write_claim", after_the_other)
    found = become(late)
    assert found.before.directory.released
    assert not found.proven
    assert {host.name for host in found.silent} == {"alpha", early}


def test_a_take_over_without_proof_stops_the_owner_and_writes_nothing(
    shared: SharedPool, own: Callable, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.on("alpha"):
        shared.load("a", rows(1))
        before = engramdax.open(shared.path).generation
    with shared.on("beta"):
        assert own("--take-over") == 1
        said = capsys.readouterr().out
        assert "this host has claimed the pool of host alpha" in said
        assert f"alpha ({shared.ids['alpha']}) did not answer" in said
        with pytest.raises(RefusedError, match=r"host beta .* is taking pool shared over"):
            Writer(shared.path)
    with shared.on("alpha"):
        with pytest.raises(RefusedError, match=r"host beta .* is taking pool shared over"):
            Writer(shared.path)
        assert engramdax.open(shared.path).generation == before
        assert right(shared, "a", rows(1))
    with shared.on("beta"):
        assert own("--take-over", "--fenced") == 0
        shared.load("b", rows(2))
        assert right(shared, "b", rows(2))


def test_a_take_over_is_proven_when_the_other_host_answers_that_no_writer_lives_there(
    shared: SharedPool, own: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.on("alpha"):
        shared.load("a", rows(1))
        assert run(["info", "--json", "--pool", str(shared.path)]) == 0
    # Given before and not when asked: in a file all hosts have one lock, and beta's command holds it then.
    (shared.folder / "answer").write_text(capsys.readouterr().out)
    monkeypatch.setenv("ENGRAMDAX_ASK", f"cat {shared.folder / 'answer'}")
    with shared.on("beta"):
        assert own("--take-over") == 0
        assert "this host owns the pool now, in place of host alpha" in capsys.readouterr().out
        shared.load("b", rows(2))


def test_a_host_on_which_a_writer_lives_says_so(shared: SharedPool) -> None:
    from engramdax.pool.access import local_answer
    from engramdax.pool.peers import CommandPeers

    with shared.on("alpha"), Writer(shared.path) as writer:
        pool = writer.superblock.pool
        alpha, beta = writer.directory.hosts
        answer = local_answer(writer.access.backing, pool)  # type: ignore[attr-defined]
        assert answer is not None
        assert answer.writing
        # The file's lock is seen from every process of this machine.
        asked = CommandPeers(shared.ask()).ask([alpha], pool)[alpha]
        assert asked is not None
        assert asked.writing
        with shared.on("beta"):
            failing = CommandPeers("sh -c 'echo no route >&2; exit 7'")
            assert failing.ask([beta], pool) == {beta: None}
            assert failing.problems == ["beta: `sh` ended with 7: no route"]
            # Another host than the one that was asked has not answered.
            assert CommandPeers(shared.ask().replace("{host}", "beta")).ask([alpha], pool) == {alpha: None}


def test_a_command_that_cannot_be_split_is_a_warning_and_asks_nobody(
    shared: SharedPool, own: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGRAMDAX_ASK", "ssh {host} 'engramdax info")
    with shared.on("beta"), pytest.warns(RuntimeWarning, match="ENGRAMDAX_ASK=.* is ignored: No closing quotation"):
        assert own("--take-over") == 1
    assert "did not answer" in capsys.readouterr().out


def test_a_writer_that_was_deposed_stops_and_what_was_published_stays(shared: SharedPool, tmp_path: Path) -> None:
    from engramdax.pool.access import LocalAccess
    from engramdax.pool.ownership import become_owner

    with shared.on("alpha"):
        shared.load("a", rows(1))
        writer = Writer(shared.path)
        with shared.on("beta"):
            access = LocalAccess(shared.path, writable=True)
            assert become_owner(access, writer.superblock, fenced=True).proven
            access.close()
        with pytest.raises(DeposedError, match=r"host beta \(.*\) took pool shared over \(epoch 2\)"):
            writer.remove("a")
        with pytest.raises(DeposedError):
            writer.store(20 << 20, bytes(1 << 20))
        writer.close()
    with shared.on("beta"):
        assert right(shared, "a", rows(1))


def test_own_tells_who_writes(shared: SharedPool, own: Callable, capsys: pytest.CaptureFixture[str]) -> None:
    with shared.on("beta"):
        assert own() == 0
    assert f"pool shared is written by host alpha ({shared.ids['alpha']}), epoch 1" in capsys.readouterr().out
    for wrong in (
        ("--release", "--take-over"),
        ("--fenced",),
        ("--to", "beta"),
        ("--hosts", "beta"),
        ("--release", "--timeout", "5"),
    ):
        assert own(*wrong) == 2


def test_a_pool_of_one_host_has_nothing_to_hand_over(make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    assert run(["own", "--pool", str(path)]) == 0
    assert run(["own", "--release", "--pool", str(path)]) == 2
    assert run(["own", "--take-over", "--pool", str(path)]) == 2


HOLD = """
import sys, engramdax
pool = engramdax.open(sys.argv[1])
table = pool["a"]
print("holding", flush=True)
sys.stdin.readline()
"""


def test_space_waits_for_every_admitted_host(
    shared: SharedPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with shared.on("alpha"):
        shared.load("a", rows(1))
        assert run(["rm", "a", "--pool", str(shared.path)]) == 0
        assert run(["reclaim", "--pool", str(shared.path)]) == 3
        said = capsys.readouterr().out
        assert "of removed tables wait" in said
        assert f"host beta ({shared.ids['beta']}) did not answer" in said
        monkeypatch.setenv("ENGRAMDAX_ASK", shared.ask())
        assert run(["reclaim", "--pool", str(shared.path)]) == 0
        assert "wait" not in capsys.readouterr().out


def test_space_waits_for_a_reader_of_another_host(
    shared: SharedPool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENGRAMDAX_ASK", shared.ask())
    with shared.on("alpha"):
        shared.load("a", rows(1))
        with shared.on("beta"), process(HOLD, shared.path) as reader:
            assert reader.hear() == "holding"
            with shared.on("alpha"):
                assert run(["rm", "a", "--pool", str(shared.path)]) == 0
                assert run(["reclaim", "--pool", str(shared.path)]) == 3
                assert "readers on host beta" in capsys.readouterr().out
            assert reader.end() == 0
        assert run(["reclaim", "--pool", str(shared.path)]) == 0
        assert "wait" not in capsys.readouterr().out


def test_info_tells_what_readers_here_hold_of_a_pool_that_is_shared(
    shared: SharedPool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared.on("alpha"):
        shared.load("a", rows(1))
        with engramdax.open(shared.path):
            assert run(["info", "--pool", str(shared.path)]) == 0
        assert "here        1 generation held by readers\n" in capsys.readouterr().out
        monkeypatch.setattr("engramdax.pool.access.local_answer", lambda *_: None)  # as of a device, to who is not root
        assert run(["info", "--pool", str(shared.path)]) == 0
        assert "here        unknown: only root sees who maps the device\n" in capsys.readouterr().out
