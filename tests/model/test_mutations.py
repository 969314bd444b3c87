# SPDX-License-Identifier: Apache-2.0
"""Each single change of the list is caught by the simulation, and the list is on the page that explains the protocol.

The search begins where the change was caught before. ENGRAMDAX_MUTATION_SCHEDULES bounds it (4,000 if unset).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from mutations import MUTATIONS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "protocol.md"
SCHEDULES = os.environ.get("ENGRAMDAX_MUTATION_SCHEDULES", "4000")


@pytest.mark.slow
@pytest.mark.unsanitized
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(len(MUTATIONS)), ids=[m.what.replace(" ", "-") for m in MUTATIONS])
def test_the_simulation_catches(number: int) -> None:
    command = [sys.executable, HERE / "try_mutation.py", str(number), str(MUTATIONS[number].seed), SCHEDULES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("caught\t"), done.stdout


def test_every_mutation_is_on_the_page() -> None:
    rows = [line.split("|")[2].strip() for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    assert rows == [mutation.what for mutation in MUTATIONS]
    assert len(MUTATIONS) >= 25
