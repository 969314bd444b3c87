# SPDX-License-Identifier: Apache-2.0
"""How many threads gather, and how long idle ones spin: by call, by `configure`, by environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import engramdax
from engramdax._core import lib
from engramdax.errors import ParameterError

pytestmark = pytest.mark.unsanitized  # next to nothing of it is in C

ROOT = Path(engramdax.__file__).parents[1]

REPORT = """
import os, sys, numpy as np, engramdax
from engramdax._core import lib
t = engramdax.open(sys.argv[1])["table0"]
for _ in range(3):
    t.gather(np.arange(20_000))
names = [open(f"/proc/self/task/{task}/comm").read() for task in os.listdir("/proc/self/task")]
print(lib.ed_team_limit(), names.count("engramdax\\n"))
engramdax.configure(threads=3)
t.gather(np.arange(20_000))
engramdax.configure(threads=None)
print(lib.ed_team_limit())
"""


# Its seventh line makes the warning.
NAMED = """
import sys, warnings
import engramdax
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        engramdax.open(sys.argv[1])
for one in caught:
    print(one.filename, one.lineno, one.message)
"""
NUMBER = "it is no number from {} to {}; correct or unset it"


def test_the_environment_sets_the_number_of_threads(load: Callable, script: Callable):
    path = load().path
    for threads in (1, 2, 5):
        done = script(REPORT, path, ENGRAMDAX_THREADS=str(threads), ENGRAMDAX_SPIN_US="0")
        assert done.stdout.split() == [str(threads), str(threads - 1), str(threads)], done.stderr


@pytest.mark.parametrize("value", ["0", "-1", "256", "two", "1.5", " ", "²"])
def test_a_wrong_number_in_the_environment_is_named_where_a_pool_is_opened(
    load: Callable, script: Callable, value: str
):
    path = load().path
    done = script(NAMED, path, ENGRAMDAX_THREADS=value)
    assert done.stdout == f"<string> 7 ENGRAMDAX_THREADS={value!r} is ignored: {NUMBER.format(1, 255)}\n", done.stderr
    done = script(NAMED, path, ENGRAMDAX_SPIN_US="-5", ENGRAMDAX_THREADS="")
    assert done.stdout == f"<string> 7 ENGRAMDAX_SPIN_US='-5' is ignored: {NUMBER.format(0, 1_000_000)}\n", done.stderr


def test_threads_that_open_pools_at_once_are_told_once_of_a_wrong_number(load: Callable, script: Callable):
    source = """
        import sys, threading, warnings
        from engramdax import gathering
        sys.setswitchinterval(1e-7)
        told, failed = [], []
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *rest: told.append(str(message))
        def tell():
            start.wait()
            try:
                gathering.warn_of_environment()
            except Exception as e:
                failed.append(repr(e))
        for round in range(5000):
            gathering._ignored.update({f"VARIABLE{i}": f"{round} {i}" for i in range(3)})
            start = threading.Barrier(4)
            threads = [threading.Thread(target=tell) for _ in range(4)]
            for one in threads:
                one.start()
            for one in threads:
                one.join()
        print(failed, len(told), len(set(told)))
    """
    done = script(source)
    assert done.stdout == "[] 15000 15000\n", done.stderr


def test_a_warning_names_the_program_however_its_path_to_the_package_is_written(load: Callable, script: Callable):
    begin = f"import sys; sys.path.insert(0, {str(ROOT.parent)!r} + '/./' + {ROOT.name!r})\n"
    done = script(begin + NAMED, load().path, ENGRAMDAX_THREADS="two")
    assert done.stdout.startswith("<string> 8 ENGRAMDAX_THREADS='two'"), (done.stdout, done.stderr)


def test_a_command_says_each_in_a_line_and_its_processes_do_not_again():
    environment = os.environ | {"ENGRAMDAX_THREADS": "abc", "ENGRAMDAX_LINGER_US": "1e3"}
    wanted = [
        f"engramdax: warning: ENGRAMDAX_THREADS='abc' is ignored: {NUMBER.format(1, 255)}",
        f"engramdax: warning: ENGRAMDAX_LINGER_US='1e3' is ignored: {NUMBER.format(0, 1_000_000)}",
    ]
    bench = "bench cpu --size 16M --rows 4 --row-bytes 64 --pages 4k --rounds 1 --skip torch --skip engramdb"
    for arguments in ("--version", bench):
        done = subprocess.run(
            [sys.executable, "-m", "engramdax", *arguments.split()],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        assert [line for line in done.stderr.splitlines() if "ENGRAMDAX" in line] == wanted
        assert "Warning" not in done.stderr


def test_configure_sets_the_limit_and_takes_it_back():
    before = lib.ed_team_limit()
    try:
        engramdax.configure(threads=7, spin_us=0)
        assert lib.ed_team_limit() == 7
        engramdax.configure(threads=100_000)
        assert lib.ed_team_limit() == 255
    finally:
        engramdax.configure(threads=None, spin_us=100)
    assert lib.ed_team_limit() == before


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"threads": -3}, {"spin_us": -1}, {"spin_us": 1_000_001}])
def test_numbers_that_make_no_sense_are_refused(arguments: dict[str, int]):
    with pytest.raises(ParameterError):
        engramdax.configure(**arguments)


@pytest.mark.parametrize("value", [2.5, 2.0, True, "2", np.float64(2), np.True_, [2]])
def test_what_is_no_whole_number_is_refused(load: Callable, value: object):
    loaded = load(rows=10)
    for use in (
        lambda: engramdax.configure(threads=value),
        lambda: engramdax.configure(spin_us=value),
        lambda: loaded.table.gather([1], threads=value),
        lambda: loaded.table.prefetch([1], threads=value),
    ):
        with pytest.raises(ParameterError, match="is no whole number"):
            use()


def test_numpy_integers_are_numbers_of_threads(load: Callable):
    loaded = load(rows=10)
    assert np.array_equal(loaded.table.gather([1], threads=np.int32(2)), loaded.expected([1]))


@pytest.mark.parametrize("tune", ["fast", "", 2.5, True, False, -1, 512, b"auto", [1]])
def test_a_distance_that_makes_no_sense_is_refused(load: Callable, tune: object):
    path = load(rows=10).path
    with pytest.raises(ParameterError, match="give 0 to 511 rows, or 'auto'"):
        engramdax.open(path, tune=tune)


@pytest.mark.parametrize("tune", ["auto", None, 0, 511])
def test_a_distance_changes_no_row(load: Callable, tune: object):
    loaded = load()
    table = engramdax.open(loaded.path, tune=tune)["table0"]
    ids = np.arange(0, 20_000, 7)
    assert np.array_equal(table.gather(ids), loaded.expected(ids))


def test_an_idle_worker_sleeps_and_wakes_again(load: Callable, script: Callable):
    done = script(
        """
        import os, sys, time, numpy as np, engramdax
        engramdax.configure(threads=4, spin_us=0)
        t = engramdax.open(sys.argv[1])["table0"]
        ids = np.arange(20_000)
        expected = t.gather(ids, threads=1)
        for _ in range(100):
            time.sleep(0.001)
            pending = t.prefetch(ids)
            while not pending.done:
                time.sleep(0.0001)
            assert np.array_equal(pending.wait(), expected)
        def states():
            stats = [open(f"/proc/self/task/{task}/stat").read() for task in os.listdir("/proc/self/task")]
            return "".join(stat.split(") ")[1][0] for stat in stats if "(engramdax)" in stat)
        deadline = time.monotonic() + 60
        while states() != "SSS" and time.monotonic() < deadline:
            time.sleep(0.001)
        print(states())
        """,
        load().path,
    )
    assert done.stdout == "SSS\n", done.stderr


WORTH_SHARING, WORTH_CALLING_FOR = 200, 400
"""Rows of 320 bytes: of the first, workers who are awake do a part; for the second, those who sleep are called, too."""


@pytest.mark.parametrize(
    ("calls", "shared"),
    [
        (f"gather(t, {WORTH_SHARING})", False),
        (f"gather(t, {WORTH_CALLING_FOR})", True),
        (f"gather(t, {WORTH_SHARING}, threads=2)", True),
        (f"engramdax.gather_many([(t, ids[:{WORTH_SHARING}], None)] * 1)", False),
        (f"engramdax.gather_many([(t, ids[:{WORTH_SHARING // 2}], None)] * 2)", False),
        (f"engramdax.gather_many([(t, ids[:{WORTH_CALLING_FOR // 2}], None)] * 2)", True),
        (f"gather(t, {WORTH_SHARING}); gather(t, {WORTH_SHARING})", True),
        (f"gather(t, {WORTH_SHARING}); gather(t, 30); time.sleep(1); gather(t, {WORTH_SHARING})", False),
        (f"gather(t, {WORTH_SHARING}); engramdax.gather_many([(t, ids[:{WORTH_SHARING}], None)])", True),
        ("gather(t, 30); gather(t, 30)", False),
        (f"gather(t, {WORTH_SHARING}); t.prefetch(ids[:10]).wait()", True),
    ],
)
def test_workers_are_called_for_little_only_if_more_follows(load: Callable, script: Callable, calls: str, shared: bool):
    done = script(
        f"""
        import os, sys, time, numpy as np, engramdax
        engramdax.configure(threads=2, spin_us=500_000)
        t = engramdax.open(sys.argv[1])["table0"]
        ids = np.arange(2_000)
        gather = lambda t, rows, **how: t.gather(ids[:rows], **how)
        {calls}
        tasks = [open(f"/proc/self/task/{{task}}/comm").read() for task in os.listdir("/proc/self/task")]
        print("engramdax\\n" in tasks)
        """,
        load().path,
    )
    assert (done.stdout, done.stderr) == (f"{shared}\n", "")


def test_little_work_calls_nobody_who_sleeps(load: Callable, script: Callable):
    done = script(
        f"""
        import os, sys, time, numpy as np, engramdax
        engramdax.configure(threads=3, spin_us=100)
        t = engramdax.open(sys.argv[1])["table0"]
        ids = np.arange(20_000)
        def woken():
            status = [open(f"/proc/self/task/{{task}}/status").read() for task in os.listdir("/proc/self/task")]
            workers = [s for s in status if s.startswith("Name:\\tengramdax\\n")]
            return sum(int(s.partition("\\nvoluntary_ctxt_switches:")[2].split()[0]) for s in workers)
        t.gather(ids)
        time.sleep(0.3)
        before = woken()
        for _ in range(5):
            time.sleep(0.05)
            t.gather(ids[:{WORTH_SHARING}])
        little = woken() - before
        for _ in range(5):
            time.sleep(0.05)
            t.gather(ids)
        time.sleep(0.3)
        print(before > 0, little, woken() - before > 0)
        """,
        load().path,
    )
    assert (done.stdout, done.stderr) == ("True 0 True\n", "")


@pytest.mark.parametrize("threads", [0, -1])
def test_a_call_with_no_threads_is_refused(load: Callable, threads: int):
    loaded = load(rows=10)
    ids = np.arange(3)
    for call in (loaded.table.gather, loaded.table.prefetch):
        with pytest.raises(ParameterError, match=f"threads={threads}"):
            call(ids, threads=threads)
    with pytest.raises(ParameterError, match=f"threads={threads}"):
        engramdax.gather_many([(loaded.table, ids, None)], threads=threads)
