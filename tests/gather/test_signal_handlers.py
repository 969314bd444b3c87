# SPDX-License-Identifier: Apache-2.0
"""SIGBUS is shared with the rest of the process: everybody gets the faults that are theirs.

Each case runs in a process of its own, on a pool whose file is cut off behind the first page of its table,
and with a second file, of which `hole` is a page that cannot be read and is none of engramdax's business.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from loaded import Loaded

SETUP = """
import ctypes, faulthandler, mmap, os, signal, sys, threading, time
import numpy as np
import engramdax
from engramdax._core import lib

PAGE = mmap.PAGESIZE
faulthandler.disable()
engramdax.configure(threads=3)
table = engramdax.open(sys.argv[1])["table0"]
other = ctypes.CDLL(sys.argv[2])
hole_fd = os.open(sys.argv[1] + ".hole", os.O_RDWR | os.O_CREAT)
os.ftruncate(hole_fd, PAGE)
hole_map = mmap.mmap(hole_fd, PAGE)
hole = ctypes.c_void_p(np.frombuffer(hole_map, np.uint8).ctypes.data)
hole_end = ctypes.c_void_p(hole.value + PAGE)
os.ftruncate(hole_fd, 0)

def cut():
    os.truncate(sys.argv[1], table._entry.extent.offset + PAGE)

def good(count=5):
    assert np.array_equal(table.gather(np.zeros(count, int))[0], table.gather([0])[0])

def bad(gather=table.gather, ids=np.arange(6000)):
    try:
        gather(ids)
    except engramdax.PoisonedRowsError as e:
        assert len(e.positions) == 6000 - PAGE // 320, len(e.positions)
    else:
        raise AssertionError("no error")

def read_hole():
    return other.other_read(hole, hole_end, hole)

def touch_hole():
    ctypes.string_at(hole, 1)
"""


@pytest.fixture(scope="session")
def other_handler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler (cc) for the other library")
    target = tmp_path_factory.mktemp("other") / "other_handler.so"
    source = Path(__file__).with_name("other_handler.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", target, source], check=True)
    return target


@pytest.fixture
def case(load: Callable[..., Loaded], other_handler: Path, script: Callable) -> Callable[..., Any]:
    """Give a function that runs a case and gives how it ended and what it printed."""
    loaded = load(rows=6000)

    def run(source: str) -> subprocess.CompletedProcess[str]:
        done: subprocess.CompletedProcess[str] = script(SETUP + source, loaded.path, other_handler)
        return done

    return run


def lives(done: subprocess.CompletedProcess[str]) -> bool:
    assert (done.returncode, done.stdout) == (0, "end\n"), f"{done.returncode}: {done.stderr}"
    return True


def test_a_handler_that_was_there_before_gets_its_own_faults(case: Callable):
    assert lives(
        case("""
assert other.other_install() == 1
good()
for n in range(1, 6):
    assert read_hole() == -1
    assert other.other_own_faults() == n
cut()
for _ in range(3):
    bad()
    assert read_hole() == -1
assert other.other_own_faults() == 8
print("end")
""")
    )


def test_a_handler_that_comes_later_gets_its_own_faults_and_passes_on_ours(case: Callable):
    # Its handler leaves by a jump: the second of two faults in a row used to go to the handler before it.
    assert lives(
        case("""
good()
assert other.other_install() == 1
for n in range(1, 4):
    assert read_hole() == -1
good()  # puts engramdax in front again
for n in range(4, 9):
    assert read_hole() == -1
    assert other.other_own_faults() == n
cut()
bad()
assert read_hole() == -1
assert other.other_passed() == 0
print("end")
""")
    )


def test_a_handler_that_comes_during_a_gather_passes_on_ours(case: Callable):
    # It blocks all signals while it runs; engramdax jumped out of it with SIGBUS blocked, and died of the next.
    assert lives(
        case("""
good()
cut()
ids = np.arange(6000)
rounds = 0
while other.other_passed() == 0 and rounds < 3000:
    rounds += 1
    pending = table.prefetch(ids)
    other.other_install()
    bad(lambda ids: pending.wait())
assert other.other_passed(), "no fault came to the other handler first"
for gather in (table.gather, lambda ids: table.prefetch(ids).wait()):
    bad(gather)
assert read_hole() == -1
print("end")
""")
    )


@pytest.mark.parametrize(
    "first", ["", "good()\n", "good(); other.other_install(); good()\n", "other.other_install(); good()\n"]
)
def test_a_fault_that_is_nobodys_kills_as_without_engramdax(case: Callable, first: str):
    done = case(first + "print('end', flush=True); touch_hole(); print('survived')")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "end\n"), done.stderr


def test_a_fault_that_is_nobodys_kills_after_ours_were_survived(case: Callable):
    done = case("cut(); bad(); bad(); print('end', flush=True); touch_hole()")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "end\n"), done.stderr


@pytest.mark.parametrize(
    "order",
    ["faulthandler.enable(); good()", "good(); faulthandler.enable()", "good(); faulthandler.enable(); good()"],
)
def test_faulthandler_still_tells_where_it_happened(case: Callable, order: str):
    done = case(f"{order}\nprint('end', flush=True)\ntouch_hole()")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "end\n"), done.stderr
    assert done.stderr.count("Fatal Python error: Bus error") == 1
    assert "in touch_hole" in done.stderr


def test_faulthandler_does_not_disturb_our_faults(case: Callable):
    # It also sets an alternate stack for the main thread.
    assert lives(case("faulthandler.enable(); good(); cut(); bad(); faulthandler.enable(); bad(); print('end')"))


def test_sigbus_set_back_to_its_default_by_python(case: Callable):
    done = case("""
good(); cut(); bad()
signal.signal(signal.SIGBUS, signal.SIG_DFL)
bad()
print("end", flush=True)
touch_hole()
""")
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "end\n"), done.stderr


def test_a_signal_that_is_sent_goes_to_the_handler_of_python(case: Callable):
    assert lives(
        case("""
seen = []
for when in range(2):
    if when: good()
    signal.signal(signal.SIGBUS, lambda *_: seen.append(1))
    good()
    os.kill(os.getpid(), signal.SIGBUS)
    while len(seen) <= when: time.sleep(0.001)
cut()
bad()
assert seen == [1, 1]
print("end")
""")
    )


def test_a_signal_that_is_sent_goes_to_the_handler_of_a_library(case: Callable):
    assert lives(
        case("""
good(); signal.signal(signal.SIGBUS, signal.SIG_IGN); other.other_install(); good()
for n in range(1, 4):
    signal.pthread_kill(threading.get_ident(), signal.SIGBUS)
    assert other.other_sent() == n
    good()
print("end")
""")
    )


def test_a_signal_that_is_sent_and_ignored_stays_ignored(case: Callable):
    assert lives(
        case("""
good(); signal.signal(signal.SIGBUS, signal.SIG_IGN); good()
for _ in range(3):
    os.kill(os.getpid(), signal.SIGBUS)
    good()
cut(); bad()
print("end")
""")
    )


def test_a_signal_that_is_sent_kills_where_nobody_handles_it(case: Callable):
    for first in ("good()", "other.other_install(); signal.signal(signal.SIGBUS, signal.SIG_DFL); good()"):
        done = case(f"{first}; print('end', flush=True); os.kill(os.getpid(), signal.SIGBUS); time.sleep(60)")
        assert (done.returncode, done.stdout) == (-signal.SIGBUS, "end\n"), done.stderr


def test_memory_that_went_bad_unread_is_counted_and_kills_nobody(case: Callable):
    assert lives(
        case("""
BUS_MCEERR_AO = 5
good()
for n in range(3):
    assert lib.ed_guard_advisories() == n
    assert other.send_sigbus(BUS_MCEERR_AO, hole) == 0
good()
assert lib.ed_guard_advisories() == 3
cut()
bad()
print("end")
""")
    )


def test_handlers_that_come_and_go_while_gathers_fault(case: Callable):
    assert lives(
        case("""
good()
cut()
stop = time.monotonic() + 1
errors = []
def body(gather):
    try:
        while time.monotonic() < stop:
            bad(gather)
    except BaseException as e:
        errors.append(e)
threads = [threading.Thread(target=body, args=(g,)) for g in (table.gather, lambda ids: table.prefetch(ids).wait())]
for thread in threads: thread.start()
while any(thread.is_alive() for thread in threads):
    other.other_install()
    assert read_hole() == -1
    time.sleep(0.0005)
assert not errors, errors
print("end")
""")
    )
