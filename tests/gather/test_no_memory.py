# SPDX-License-Identifier: Apache-2.0
"""A gather that finds no memory for its own notes says so, and not that rows cannot be read."""

from __future__ import annotations

import pytest

from engramdax._core import ffi, lib
from engramdax.gathering import failure_of


def test_a_call_without_memory_has_an_outcome_of_its_own():
    # So many requests that their notes fit no address space; none of them is looked at.
    outcome = lib.ed_gather(ffi.NULL, 1 << 60, 1, lib.ED_TEAM)
    assert outcome == lib.ED_NO_MEMORY
    with pytest.raises(MemoryError, match="no memory to keep account of a gather"):
        raise failure_of(outcome, [])
