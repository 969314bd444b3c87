# SPDX-License-Identifier: Apache-2.0
"""Loads that are killed at random moments.

ENGRAMDAX_KILLS sets how many (40 if unset), ENGRAMDAX_SEED the moments (another choice each time if unset).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deaths import KILLED, Seen, exit_code, fork

from engramdax.commands.main import run
from engramdax.pool.provision import Consent, plan_file
from engramdax.pool.steps import carry_out

MIB = 1 << 20
KILLS = int(os.environ.get("ENGRAMDAX_KILLS", "40"))
SEED = int(os.environ.get("ENGRAMDAX_SEED") or random.SystemRandom().randrange(1 << 32))
TABLE_BYTES = 200 * MIB
PROGRAM = Path(sys.executable).with_name("engramdax")

EVERY = 8
"""One in so many loads is a process of its own, killed anywhere from its start; the others are forked from
this one, which has everything imported, so that the kills fall into the load itself."""


@pytest.mark.timeout(120 + 10 * KILLS)
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_load_costs_no_table_and_no_space(place: Path, load_array: Callable[..., object]) -> None:
    print(f"ENGRAMDAX_SEED={SEED} ENGRAMDAX_KILLS={KILLS}")
    moments = random.Random(SEED)
    generator = np.random.default_rng(SEED)
    contents: dict[str, np.ndarray[Any, Any]] = {
        "kept": generator.integers(0, 256, (30_000, 100), np.uint8),
        "large": np.frombuffer(generator.bytes(TABLE_BYTES), np.uint8),
    }
    source, pool = place / "large.bin", place / "pool"
    source.write_bytes(contents["large"].data)
    carry_out(plan_file(pool, TABLE_BYTES + 48 * MIB, name="crash", consent=Consent()).steps)
    load_array(pool, "kept", contents["kept"])
    load = ["load", str(source), "--row-bytes", "512", "--pool", str(pool)]
    remove = ["rm", "large", "--pool", str(pool)]

    def start(number: int) -> tuple[Callable[[], int], Callable[[], None]]:
        """Start the load; give what waits for its exit code and what kills it."""
        if number % EVERY or not PROGRAM.exists():
            child = fork(lambda: run(load))
            return lambda: exit_code(child), lambda: os.kill(child, -KILLED)
        process = subprocess.Popen([PROGRAM, *load], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return process.wait, process.kill

    durations = [0.0, 0.0]
    for number in (0, 1, 1):
        began = time.monotonic()
        wait, _ = start(number)
        assert wait() == 0
        durations[number] = time.monotonic() - began
        clean = Seen(pool, contents)
        assert run(remove) == 0
    empty = Seen(pool, contents)

    found = Counter[str]()
    for number in range(KILLS):
        wait, kill = start(number)
        time.sleep(moments.uniform(0, 1.05 * durations[min(1, number % EVERY)]))
        kill()
        code = wait()
        assert code in (KILLED, 0)
        after = Seen(pool, contents)
        assert "kept" in after.tables
        assert "large" in after.tables or code == KILLED
        found["published" if "large" in after.tables else "unfinished" if after.unfinished else "not begun"] += 1
        if "large" in after.tables:
            assert run(remove) == 0
        assert run(load) == 0
        again = Seen(pool, contents)
        assert again.tables == {"kept", "large"}
        assert (again.free, again.unfinished, again.retired, again.degraded) == (clean.free, [], (), False)
        assert run(remove) == 0
        assert Seen(pool, contents).free == empty.free
    print(f"found after the kills: {dict(found)}")
    assert found["unfinished"]
