# SPDX-License-Identifier: Apache-2.0
"""All schedules of small cases, or, unless ENGRAMDAX_ALL is set (`make model` does), every fourth i and ninth j."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from small_cases import EAGER, LAZY, OPERATIONS, OTHERS, SILENT, run_case

STRIDES = (1, 1) if os.environ.get("ENGRAMDAX_ALL") else (4, 9)


@pytest.mark.unsanitized
@pytest.mark.timeout(6000)
@pytest.mark.parametrize("stores", [EAGER, LAZY, SILENT], ids=["eager", "lazy", "silent"])
@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_schedule_of_a_small_case_keeps_the_rules(
    operation: str, other: str, stores: float, figure: Callable[[str], None]
) -> None:
    schedules, ends = run_case(operation, other, stores, STRIDES)
    figure(f"{schedules} schedules with {ends} ends")
    assert schedules > 50
