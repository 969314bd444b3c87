# SPDX-License-Identifier: Apache-2.0
"""What a process gathers, as other processes see it."""

from __future__ import annotations

import os
import signal
import stat
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax.activity import Rate, Snapshot
from engramdax.counters import PAGE_BYTES, SLOTS, counters_dir

MOST_ROWS = 3000

PREPARE = """
import os, signal, sys, time
import numpy as np
import engramdax
pool = engramdax.open(sys.argv[1])
table = pool["words"]
ids = np.arange(7, dtype=np.int64)
def gather_quietly(ids):
    try:
        table.gather(ids)
    except engramdax.PoisonedRowsError:
        pass
def fork():
    heard, say = os.pipe()
    parent, child = os.getpid(), os.fork()
    if child == 0:
        table.gather(ids[:3])
        os.write(say, b"x")
        while os.getppid() == parent:  # and not beyond the end of a test that fails
            time.sleep(0.1)
        os._exit(0)
    os.read(heard, 1)
    return child
print("ready", flush=True)
"""


@pytest.fixture
def pool(make_pool: Callable[..., Path], load_array: Callable[..., Any]) -> Path:
    path = make_pool()
    for name in ("words", "others"):
        load_array(path, name, np.zeros((MOST_ROWS, 64), np.uint8))
    return path


class Gathering:
    """A process with the table "words"; it does a line of Python after the other."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.hear()

    def hear(self) -> str:
        assert self.popen.stdout is not None
        return self.popen.stdout.readline().strip()

    def do(self, line: str) -> str:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()
        return self.hear()


LOOP = """
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"""


@contextmanager
def gathering(pool: Path) -> Iterator[Gathering]:
    with subprocess.Popen(
        [sys.executable, "-c", PREPARE + LOOP, pool], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as popen:
        try:
            yield Gathering(popen)
        finally:
            popen.kill()


def counted(rates: list[Rate], seconds: float) -> dict[str, tuple[int, int]]:
    """Give (calls, rows) by table."""
    found: dict[str, tuple[int, int]] = {}
    for rate in rates:
        calls, rows = found.get(rate.table, (0, 0))
        found[rate.table] = (calls + round(rate.calls * seconds), rows + round(rate.rows * seconds))
    return found


@pytest.mark.parametrize(
    ("line", "calls", "rows"),
    [
        ("table.gather(ids)", 1, 7),
        ("table.gather(np.zeros(3000, np.int32))", 1, 3000),
        ("table.gather(ids, engine='openmp')", 1, 7),
        ("f = table.gatherer(ids, np.empty((7, 64), np.uint8)); f(); f()", 2, 14),
        ("table.prefetch(ids).wait()", 1, 7),
        ("engramdax.gather_many([(table, ids, None), (table, ids[:3], None)])", 2, 10),
        ("table.gather(ids[:0])", 1, 0),
        ("[table.gather(ids) for _ in range(1000)]", 1000, 7000),
    ],
    ids=["gather", "large", "openmp", "gatherer", "prefetch", "many", "nothing", "often"],
)
def test_each_way_to_gather_is_counted(pool: Path, line: str, calls: int, rows: int) -> None:
    with gathering(pool) as process:
        before = Snapshot.take()
        assert process.do(line) == "done"
        after = Snapshot.take()
        seconds = after.time - before.time
        (rate,) = after.rates(before)
        assert (rate.pid, rate.table, rate.row_bytes, rate.unreadable) == (process.popen.pid, "words", 64, 0)
        assert counted([rate], seconds) == {"words": (calls, rows)}


def test_threads_lose_no_row(pool: Path) -> None:
    with gathering(pool) as process:
        before = Snapshot.take()
        process.do(
            "from concurrent.futures import ThreadPoolExecutor as T; "
            "list(T(8).map(lambda _: [table.gather(ids) for _ in range(500)], range(8)))"
        )
        after = Snapshot.take()
        assert counted(after.rates(before), after.time - before.time) == {"words": (4000, 28000)}


def test_tables_have_slots_of_their_own_which_are_free_again(pool: Path) -> None:
    with gathering(pool) as process:
        process.do("other = pool['others']; again = pool['words']; again.gather(ids); other.gather(ids[:2])")
        (activity,) = Snapshot.take().activities
        assert sorted(c.name for c in activity.counts.values()) == ["others", "words"]
        before = Snapshot.take()
        process.do("del other; table.gather(ids); again.gather(ids); del again")
        after = Snapshot.take()
        assert counted(after.rates(before), after.time - before.time) == {"words": (2, 14)}
        process.do("del table; pool['others'].gather(ids)")
        (activity,) = Snapshot.take().activities
        assert activity.counts == {}


def test_a_forked_child_counts_for_itself(pool: Path) -> None:
    with gathering(pool) as process:
        before = Snapshot.take()
        process.do("child = fork()")
        process.do("table.gather(ids)")
        after = Snapshot.take()
        found = {r.pid: round(r.rows * (after.time - before.time)) for r in after.rates(before)}
        (child,) = found.keys() - {process.popen.pid}
        assert found == {process.popen.pid: 7, child: 3}
        process.do("os.kill(child, signal.SIGKILL); os.waitpid(child, 0)")
        assert [a.pid for a in Snapshot.take().activities] == [process.popen.pid]


def test_a_child_that_has_no_descriptor_left_can_go_on(pool: Path) -> None:
    with gathering(pool) as process:
        process.do("import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))")
        process.do("free = [fd for fd in range(64) if not os.path.exists(f'/proc/self/fd/{fd}')]")
        process.do("taken = [os.dup(0) for _ in free]")
        process.do(
            "child = os.fork(); child or (signal.alarm(20), [os.close(fd) for fd in taken], "
            "engramdax.open(sys.argv[1])['others'].gather(ids), os._exit(7))"
        )
        assert process.do("os.write(1, b'%d ' % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))") == "7 done"


def test_a_user_cannot_have_root_remove_files_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "elsewhere" / "1234-deadbeef"
    kept.parent.mkdir()
    kept.touch()
    folder = tmp_path / "users" / "1000" / "engramdax"
    folder.mkdir(parents=True)
    (folder / "counters").symlink_to(kept.parent)
    monkeypatch.setattr("engramdax.activity.USERS", tmp_path / "users")
    monkeypatch.setattr("os.geteuid", lambda: 0)
    Snapshot.take()
    assert kept.exists()


def test_a_dead_process_leaves_nothing_behind(pool: Path) -> None:
    with gathering(pool) as process:
        (page,) = counters_dir().iterdir()
        assert stat.S_IMODE(page.stat().st_mode) & 0o022 == 0
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
        assert page.exists()
        assert Snapshot.take().activities == ()
        assert not page.exists()
    # Whoever makes a page looks for them, too.
    with gathering(pool) as process:
        (page,) = counters_dir().iterdir()
        process.popen.send_signal(signal.SIGKILL)
        process.popen.wait()
    with gathering(pool):
        assert not page.exists()
        assert len(list(counters_dir().iterdir())) == 1


def test_a_process_that_ends_takes_its_page_with_it(pool: Path) -> None:
    subprocess.run([sys.executable, "-c", PREPARE, pool], check=True, stdout=subprocess.DEVNULL)
    assert list(counters_dir().iterdir()) == []


def test_rows_that_cannot_be_read_are_counted(pool: Path) -> None:
    with gathering(pool) as process:
        process.do("os.truncate(sys.argv[1], table.entry.extent.offset); gather_quietly(np.array([0, 2999]))")
        (activity,) = Snapshot.take().activities
        assert [c.unreadable for c in activity.counts.values()] == [2]


@pytest.mark.parametrize(
    "content",
    [b"", b"x" * PAGE_BYTES, struct.pack("<8sIII", b"ENGRMCNT", 9, SLOTS, 1).ljust(PAGE_BYTES, b"\0"), b"ENGRMCNT"],
    ids=["empty", "alien", "newer", "short"],
)
def test_a_page_that_is_none_is_passed_over(pool: Path, content: bytes) -> None:
    with gathering(pool) as process:
        page = counters_dir() / "1-cafecafe"
        page.write_bytes(content)
        hold = f"import fcntl; f = open({str(page)!r}, 'r+b'); fcntl.flock(f, fcntl.LOCK_EX)"
        process.do(hold)
        others = {name: counters_dir() / name for name in ("2-0123abcd", "3-0123abcd", "4-0123abcd", "notes")}
        link, folder, fifo, notes = others.values()
        link.symlink_to(pool)
        folder.mkdir()
        os.mkfifo(fifo)
        notes.write_text("somebody's")
        assert [a.pid for a in Snapshot.take().activities] == [process.popen.pid]
        assert all(path.exists() for path in (pool, *others.values()))


def test_gathers_go_on_where_no_page_can_be(pool: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ENGRAMDAX_RUN_DIR", str(tmp_path / "file"))
    with gathering(pool) as process:
        assert process.do("table.gather(ids)") == "done"
        assert Snapshot.take().activities == ()


def test_more_tables_than_slots_are_gathered_from_all_the_same(pool: Path) -> None:
    from types import SimpleNamespace
    from uuid import uuid4

    from engramdax.counters import counter_of

    with engramdax.open(pool) as opened:
        entry = opened["words"].entry
        made = [
            counter_of(opened.uuid, SimpleNamespace(load=uuid4(), name=entry.name, layout=entry.layout))  # type: ignore[arg-type]
            for _ in range(SLOTS + 2)
        ]
        assert made[-1] is None
        assert opened["words"].gather([1]).shape == (1, 64)
        made.clear()
        assert counter_of(opened.uuid, entry) is not None
