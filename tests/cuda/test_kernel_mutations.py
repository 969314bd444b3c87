# SPDX-License-Identifier: Apache-2.0
"""Each single change of the list is caught by random trials on the emulated GPU (test_kernels_emulated.py).

Some of them in each run, chosen at random: each wants the kernels compiled anew. ENGRAMDAX_MUTATIONS sets how many
(3 if unset; 1000 for all), ENGRAMDAX_MUTATION_TRIALS bounds the search (1,000 if unset).
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable

import pytest
from emulator_program import KERNELS, Emulator, compilers
from kernel_mutations import MUTATIONS

TRIALS = os.environ.get("ENGRAMDAX_MUTATION_TRIALS", "1000")
COUNT = min(int(os.environ.get("ENGRAMDAX_MUTATIONS", "3")), len(MUTATIONS))


@pytest.mark.slow
@pytest.mark.skipif(compilers() is None, reason="no compiler for C++ (Debian: g++)")
@pytest.mark.timeout(60 + 60 * COUNT)
def test_the_trials_catch_them(tmp_path_factory: pytest.TempPathFactory, figure: Callable[[str], None]) -> None:
    emulator = Emulator(tmp_path_factory.mktemp("emulator"))
    chosen = random.SystemRandom().sample(MUTATIONS, COUNT)
    figure(f"{COUNT} of {len(MUTATIONS)} mutations of the kernels: {'; '.join(m.what for m in chosen)}")
    for mutation in chosen:
        mutant = emulator.mutant(mutation.source(KERNELS.read_text()))
        command = [mutant, "0", TRIALS, *([mutation.kind] if mutation.kind else [])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # A trial that goes wrong says so; any other end would say that the mutation is none.
        assert done.returncode == 1, f"{mutation.what}: {done.stderr or done.stdout}"
        assert "seed " in done.stderr, mutation.what


def test_each_mutation_changes_the_kernels() -> None:
    text = KERNELS.read_text()
    assert all(mutation.source(text) != text for mutation in MUTATIONS)
