# SPDX-License-Identifier: Apache-2.0
"""Each single change of the list is caught by random trials on the emulated GPU (test_kernels_emulated.py).

ENGRAMDAX_MUTATION_TRIALS bounds the search (1,000 if unset).
"""

from __future__ import annotations

import os
import subprocess

import pytest
from emulator_program import KERNELS, Emulator, compilers
from kernel_mutations import MUTATIONS, Mutation

TRIALS = os.environ.get("ENGRAMDAX_MUTATION_TRIALS", "1000")


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Emulator:
    """Give the emulator, which takes other kernels, too."""
    return Emulator(tmp_path_factory.mktemp("emulator"))


@pytest.mark.slow
@pytest.mark.skipif(compilers() is None, reason="no compiler for C++ (Debian: g++)")
@pytest.mark.parametrize("mutation", MUTATIONS, ids=[m.what.replace(" ", "-") for m in MUTATIONS])
def test_the_trials_catch(emulator: Emulator, mutation: Mutation) -> None:
    mutant = emulator.mutant(mutation.source(KERNELS.read_text()))
    command = [mutant, "0", TRIALS, *([mutation.kind] if mutation.kind else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # A trial that goes wrong says so; any other end would say that the mutation is none.
    assert done.returncode == 1, done.stderr or done.stdout
    assert "seed " in done.stderr


def test_each_mutation_changes_the_kernels() -> None:
    text = KERNELS.read_text()
    assert all(mutation.source(text) != text for mutation in MUTATIONS)
