# SPDX-License-Identifier: Apache-2.0
"""Nothing hangs, crashes or complains when the interpreter ends during gathers."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

# Threads that are inside C code when their interpreter ends run into the sanitizer's own end.
pytestmark = pytest.mark.unsanitized

# CPython 3.11's take_gil() asks whether the interpreter ends, and reads its thread's state after that, which the main
# thread may have freed meanwhile (seen in a core; once in a thousand children or two). The allocator for debugging,
# which -X dev brings, turns that into a crash; with Python's usual one the thread ends as it should.
USUAL_MEMORY = {"PYTHONMALLOC": "pymalloc"}

# Children of one process, since each needs an interpreter that has everything imported: they end as any does.
ENDS = """
import os, random, signal, sys, threading, time
import numpy as np
import engramdax
engramdax.configure(threads=3)
table = engramdax.open(sys.argv[1])["table0"]
ids = np.random.default_rng(0).integers(0, 20_000, 60_000)
how = sys.argv[2]

def gathers():
    while True:
        table.gather(ids[: random.randrange(1, 60_000)])

def prefetches():
    while True:
        handles = [table.prefetch(ids[:5000]) for _ in range(3)]
        handles[0].wait()

parent = os.getpid()
endings = []
for n in range(int(sys.argv[3])):
    pid = os.fork()
    if pid == 0:
        break
    endings.append(os.waitpid(pid, 0)[1])
if os.getpid() == parent:
    print(sorted({os.waitstatus_to_exitcode(status) for status in endings}), flush=True)
    os._exit(0)

signal.alarm(60)
random.seed(n)
for target in (gathers, gathers, prefetches):
    threading.Thread(target=target, daemon=True).start()
kept = table.prefetch(ids)  # goes with the module
cycle = [table.prefetch(ids)]
cycle.append(cycle)
time.sleep(random.random() * 0.01)
if how == "exit":
    sys.exit(3)
if how == "_exit":
    os._exit(3)
if how == "exception":
    sys.stderr = None
    raise RuntimeError("on purpose")
if how == "signal":
    os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("how", "status", "times"),
    [("exit", 3, 15), ("_exit", 3, 5), ("exception", 1, 8), ("end", 0, 15), ("signal", -signal.SIGTERM, 5)],
)
def test_daemon_threads_are_inside_gathers(load: Callable, script: Callable, how: str, status: int, times: int):
    done = script(ENDS, load().path, how, times, **USUAL_MEMORY)
    assert (done.stdout, done.stderr) == (f"[{status}]\n", "")


def test_a_process_that_never_forked_ends_with_everything_pending(load: Callable, script: Callable):
    path = load().path
    for _ in range(3):
        done = script(
            """
            import sys, threading, numpy as np, engramdax
            engramdax.configure(threads=3)
            pool = engramdax.open(sys.argv[1])
            table = pool["table0"]
            ids = np.arange(20_000)
            handles = [table.prefetch(ids) for _ in range(100)]
            def gathers():
                while True:
                    table.gather(ids)
            for _ in range(3):
                threading.Thread(target=gathers, daemon=True).start()
            """,
            path,
            **USUAL_MEMORY,
        )
        assert (done.returncode, done.stderr) == (0, "")
