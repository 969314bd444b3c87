# SPDX-License-Identifier: Apache-2.0
"""Pins of generations: counted, seen by other processes, kept over a fork, dropped by the kernel."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from processes import process, run_script

import engramdax
from engramdax.backing import Backing, inspect
from engramdax.locks import Pins, WriterLock, holders, pinned_before, readers, who_reads
from engramdax.pool.access import local_answer

pytestmark = pytest.mark.unsanitized  # next to nothing of it is in C

POOL = UUID(int=1)


@pytest.fixture
def backing(tmp_path: Path) -> Backing:
    path = tmp_path / "pool"
    path.write_bytes(bytes(4096))
    return inspect(path)


@pytest.fixture
def pins(backing: Backing) -> Iterator[Pins]:
    made = Pins(backing, POOL)
    yield made
    made.close()


def test_a_pin_is_seen_by_questions_about_later_generations_only(backing: Backing, pins: Pins) -> None:
    assert not pinned_before(backing, POOL, 100)
    pins.pin(7)
    assert not pinned_before(backing, POOL, 7)
    assert pinned_before(backing, POOL, 8)
    pins.unpin(7)
    assert not pinned_before(backing, POOL, 8)


def test_pins_are_counted(backing: Backing, pins: Pins) -> None:
    pins.pin(3)
    pins.pin(3)
    pins.unpin(3)
    assert pinned_before(backing, POOL, 4)
    pins.unpin(3)
    assert not pinned_before(backing, POOL, 4)


def test_an_answer_waits_for_who_reads_a_directory_and_not_for_ever(backing: Backing, pins: Pins) -> None:
    pins.pin(0)
    pins.pin(5)
    answer = local_answer(backing, POOL)
    assert answer is not None
    assert answer.pinned == (0, 5)
    soon = threading.Timer(0.1, pins.unpin, (0,))
    soon.start()
    answer = local_answer(backing, POOL)
    soon.join()
    assert answer is not None
    assert answer.pinned == (5,)


def test_the_highest_generation_can_be_pinned(backing: Backing, pins: Pins) -> None:
    highest = (1 << 62) - 1
    pins.pin(highest)
    assert not pinned_before(backing, POOL, highest)
    pins.pin(2)
    assert pinned_before(backing, POOL, highest)


def test_two_pins_objects_of_a_process_do_not_undo_each_other(backing: Backing, pins: Pins) -> None:
    other = Pins(backing, POOL)
    pins.pin(3)
    other.pin(3)
    other.close()
    assert pinned_before(backing, POOL, 4)


def test_closing_gives_everything_back_and_unpinning_after_it_is_fine(backing: Backing) -> None:
    pins = Pins(backing, POOL)
    pins.pin(3)
    pins.pin(9)
    pins.close()
    assert not pinned_before(backing, POOL, 100)
    pins.unpin(3)
    pins.close()


def test_readers_are_the_processes_that_hold_a_pin(backing: Backing, pins: Pins) -> None:
    assert readers(backing, POOL) == []
    pins.pin(3)
    assert readers(backing, POOL) == [os.getpid()]


def test_a_reader_that_proc_does_not_show_still_counts(
    backing: Backing, pins: Pins, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert who_reads(backing, POOL) == ""
    pins.pin(3)
    assert who_reads(backing, POOL) == f"process {os.getpid()}"
    # What another container's process, btrfs and overlayfs come to.
    monkeypatch.setattr("engramdax.locks.holders", lambda *_: [])
    assert who_reads(backing, POOL) == "a process that /proc does not show here"


def test_a_writer_is_no_reader(backing: Backing, pins: Pins) -> None:
    with WriterLock(backing, POOL):
        assert readers(backing, POOL) == []
        assert holders(backing.path, "FLOCK") == [os.getpid()]
    assert holders(backing.path, "FLOCK") == []


def test_the_holders_of_a_file_that_is_gone_are_nobody(tmp_path: Path) -> None:
    assert holders(tmp_path / "gone", "FLOCK") == []


FORK = """
import os, sys
from pathlib import Path
from uuid import UUID
from engramdax.backing import inspect
from engramdax.locks import Pins, pinned_before
backing, pool = inspect(Path(sys.argv[1])), UUID(int=1)
pins = Pins(backing, pool)
pins.pin(5)
pins.pin(6)
first = sys.argv[2]
to_child, from_child = os.pipe(), os.pipe()
child = os.fork()
if child == 0:
    os.read(to_child[0], 1)
    if first == "parent":
        assert pinned_before(backing, pool, 6), "the parent took the child's pin"
    pins.unpin(5)
    pins.pin(8)
    os.write(from_child[1], b"x")
    os.read(to_child[0], 1)
    os._exit(0)
if first == "parent":
    pins.unpin(5)
    os.write(to_child[1], b"x")
    os.read(from_child[0], 1)
else:
    os.write(to_child[1], b"x")
    os.read(from_child[0], 1)
    assert pinned_before(backing, pool, 6), "the child took the parent's pin"
    pins.unpin(5)
assert not pinned_before(backing, pool, 6)
assert pinned_before(backing, pool, 7)
pins.unpin(6)
assert pinned_before(backing, pool, 7), "the child holds it still"
os.write(to_child[1], b"x")
assert os.waitpid(child, 0)[1] == 0
assert not pinned_before(backing, pool, 1000), "the child's pins outlived it"
print("ok")
"""


@pytest.mark.parametrize("first", ["parent", "child"])
def test_parent_and_child_of_a_fork_hold_pins_of_their_own(backing: Backing, first: str) -> None:
    assert run_script(FORK, backing.path, first) == "ok\n"


FORK_WITHOUT_DESCRIPTORS = """
import os, resource, sys
from pathlib import Path
from uuid import UUID
from engramdax.backing import inspect
from engramdax.locks import Pins, pinned_before
backing, pool = inspect(Path(sys.argv[1])), UUID(int=1)
several = [Pins(backing, pool) for _ in range(3)]
for pins in several:
    pins.pin(5)
limits = resource.getrlimit(resource.RLIMIT_NOFILE)
highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (several[-1]._fd + 1, limits[1]))
go = None
child = os.fork()
resource.setrlimit(resource.RLIMIT_NOFILE, limits)
if child == 0:
    for pins in several:
        pins.unpin(5)
        pins.pin(6)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert pinned_before(backing, pool, 6), "the child took the parent's pin"
for pins in several:
    pins.pin(5)
    pins.unpin(5)
print("ok")
"""


def test_a_fork_without_free_descriptors_keeps_all_pins(backing: Backing) -> None:
    assert run_script(FORK_WITHOUT_DESCRIPTORS, backing.path) == "ok\n"


KILLED_READER = """
import sys
from pathlib import Path
from uuid import UUID
from engramdax.backing import inspect
from engramdax.locks import Pins
pins = Pins(inspect(Path(sys.argv[1])), UUID(int=1))
pins.pin(5)
print("pinned", flush=True)
sys.stdin.readline()
"""


def test_the_kernel_drops_the_pins_of_a_killed_process(backing: Backing) -> None:
    with process(KILLED_READER, backing.path) as reader:
        reader.hear()
        assert pinned_before(backing, POOL, 6)
        assert readers(backing, POOL) == [reader.pid]
        reader.kill()
        assert not pinned_before(backing, POOL, 6)


def test_pins_of_many_threads_add_up(backing: Backing, pins: Pins) -> None:
    def work(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(300):
            generation = int(chance.integers(1, 5))
            pins.pin(generation)
            assert pinned_before(backing, POOL, generation + 1)
            pins.unpin(generation)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not pinned_before(backing, POOL, 100)
    assert not pins._held


def test_threads_that_pin_while_others_fork_lose_nothing(backing: Backing, pins: Pins) -> None:
    # In a process of its own: forking a test runner with threads is nobody's idea of safe.
    script = """
import os, sys, threading
from pathlib import Path
from uuid import UUID
from engramdax.backing import inspect
from engramdax.locks import Pins, pinned_before
backing, pool = inspect(Path(sys.argv[1])), UUID(int=1)
pins = Pins(backing, pool)
pins.pin(50)
stop = False
def work():
    while not stop:
        pins.pin(60)
        pins.unpin(60)
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        pins.pin(70)
        pins.unpin(70)
        pins.unpin(50)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pinned_before(backing, pool, 51)
stop = True
for thread in threads:
    thread.join()
pins.unpin(50)
assert not pinned_before(backing, pool, 1000)
print("ok")
"""
    assert run_script(script, backing.path) == "ok\n"


GARBAGE = """
import faulthandler, gc, sys, threading
import engramdax
faulthandler.dump_traceback_later(20, exit=True)
pool = engramdax.open(sys.argv[1])
class Knot: pass
def garbage():
    knot = Knot()
    knot.table, knot.me = pool["t"], knot
# Every allocation may collect now, also the one in the middle of pinning.
gc.set_threshold(1, 1, 1)
for _ in range(3000):
    garbage()
pool.refresh()
gc.collect()
pool.close()
print("ok")
"""


def test_tables_in_reference_cycles_may_be_collected_in_the_middle_of_pinning(
    make_pool: Callable[..., Path], load_array: Callable[..., object]
) -> None:
    path = make_pool()
    load_array(path, "t", np.zeros((10, 8), np.uint8))
    assert run_script(GARBAGE, path) == "ok\n"
    assert not pinned_before(inspect(path), POOL, 1000)


def test_a_finalizer_in_the_middle_of_any_method_does_not_wait_for_itself(backing: Backing, pins: Pins) -> None:
    pins.pin(1)
    pins.pin(2)
    real = pins._lock

    def lock_and_collect(fd: int, kind: int, generation: int) -> None:
        real(fd, kind, generation)
        if generation == 9:
            pins.unpin(1)

    pins._lock = lock_and_collect  # type: ignore[method-assign]
    pins.pin(9)
    assert not pinned_before(backing, POOL, 2)
    assert pinned_before(backing, POOL, 3)


def test_a_pool_that_is_gone_leaves_no_pin(make_pool: Callable[..., Path], load_array: Callable[..., object]) -> None:
    path = make_pool()
    load_array(path, "t", np.zeros((10, 8), np.uint8))
    pool = engramdax.open(path)
    table = pool["t"]
    del pool, table
    gc.collect()
    assert readers(inspect(path), POOL) == []
