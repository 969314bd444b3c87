# SPDX-License-Identifier: Apache-2.0
"""The team of workers, by itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give team_places, compiled."""
    program = tmp_path_factory.mktemp("team") / "team_places"
    sources = [ROOT / "tests/core/team_places.c", ROOT / "c/team.c"]
    subprocess.run(["cc", "-std=c11", "-O2", f"-I{ROOT / 'c'}", "-o", program, *sources, "-lpthread"], check=True)
    return program


@pytest.mark.parametrize(
    "helpers", [(1,) * 5, (2, 2), (4, 1), (1, 4), (3,) * 5, (7, 4, 2, 1), (16,) * 3, (63,), (15,) * 16], ids=str
)
def test_jobs_side_by_side_get_as_many_workers_as_they_want(places: Path, helpers: tuple[int, ...]):
    """Also where those that a job would have are busy with another one."""
    workers = max(5, sum(helpers))
    done = subprocess.run([places, str(workers), *map(str, helpers)], timeout=60, check=False)
    assert done.returncode == 0
