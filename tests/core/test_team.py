# SPDX-License-Identifier: Apache-2.0
"""The team of workers, by itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

ROOT = Path(__file__).parents[2]


def compiled(name: str, folder: Path, *options: str, team: Path = ROOT / "c/team.c") -> Path:
    """Give tests/core/NAME.c, compiled with the team alone."""
    program = folder / name
    sources = [ROOT / f"tests/core/{name}.c", team]
    flags = ["-std=c11", "-O2", f"-I{ROOT / 'c'}", *options]
    subprocess.run(["cc", *flags, "-o", program, *sources, "-lpthread"], check=True)
    return program


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give team_places, compiled."""
    return compiled("team_places", tmp_path_factory.mktemp("team"))


@pytest.mark.parametrize(
    "helpers", [(1,) * 5, (2, 2), (4, 1), (1, 4), (3,) * 5, (7, 4, 2, 1), (16,) * 3, (63,), (15,) * 16], ids=str
)
def test_jobs_side_by_side_get_as_many_workers_as_they_want(places: Path, helpers: tuple[int, ...]) -> None:
    """Also where those that a job would have are busy with another one."""
    workers = max(5, sum(helpers))
    done = subprocess.run([places, str(workers), *map(str, helpers)], timeout=60, check=False)
    assert done.returncode == 0


def test_no_job_waits_for_a_worker_that_sleeps_while_others_are_at_its_place(tmp_path: Path) -> None:
    """With workers who take any place at once, also while a job is put up and their own places are not free yet."""
    text = (ROOT / "c/team.c").read_text()
    assert text.count("PATIENCE = 256") == 1
    team = tmp_path / "team.c"
    team.write_text(text.replace("PATIENCE = 256", "PATIENCE = 1"))
    program = compiled("team_places", tmp_path, team=team)
    for _ in range(12):
        assert subprocess.run([program, "63", "63"], timeout=60, check=False).returncode == 0


def test_jobs_of_a_forked_child_have_no_chunks_of_those_that_its_parent_had_begun(tmp_path: Path) -> None:
    done = subprocess.run([compiled("team_fork", tmp_path), "40"], timeout=60, check=False)
    assert done.returncode == 0


def test_a_caller_calls_two_sleepers_at_most_and_none_for_a_job_that_is_done(tmp_path: Path) -> None:
    """The others are called by those."""
    done = subprocess.run([compiled("team_calls", tmp_path, "-Wl,--wrap=syscall")], timeout=60, check=False)
    assert done.returncode == 0


def test_threads_get_parts_of_a_job_by_what_they_did_of_jobs_before(tmp_path: Path) -> None:
    done = subprocess.run([compiled("team_division", tmp_path)], timeout=60, check=False)
    assert done.returncode == 0


def test_a_worker_that_comes_late_helps_others_with_theirs_where_its_own_chunks_are_done(tmp_path: Path) -> None:
    """Of a job with several chunks a thread."""
    done = subprocess.run([compiled("team_late", tmp_path)], timeout=60, check=False)
    assert done.returncode == 0


def test_a_worker_at_the_place_of_one_that_sleeps_has_another_called(tmp_path: Path) -> None:
    """Who is there because it looked at the slot when an earlier job was in it."""
    text = (ROOT / "c/team.c").read_text()
    points = {
        "        if (place && !is_taken(s, place)) {\n            // The lines": "        ed_test_stop(1, s);\n{}",
        "        atomic_store(&beds[self].busy, true);\n": "        ed_test_stop(2, s);\n{}",
        "    if (put_up(job, helpers, false))\n        call_sleepers(job);\n": (
            "    if (put_up(job, helpers, false)) {{\n"
            "        ed_test_stop(3, (unsigned)job->slot);\n        call_sleepers(job);\n    }}\n"
        ),
    }
    for before, after in points.items():
        assert text.count(before) == 1
        text = text.replace(before, after.format(before))
    team = tmp_path / "team.c"
    team.write_text("extern void ed_test_stop(int point, unsigned slot);\n" + text)
    program = compiled("team_moved", tmp_path, team=team)
    assert subprocess.run([program], timeout=60, check=False).returncode == 0
