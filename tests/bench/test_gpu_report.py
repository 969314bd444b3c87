# SPDX-License-Identifier: Apache-2.0
"""What `bench gpu` makes of what it measured; measuring itself needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from engramdax.bench.gpu_host_peers import OF_OUR_PAGES, OF_PINNED_MEMORY
from engramdax.bench.gpu_outcome import Outcome, Series, Step
from engramdax.bench.gpu_report import as_json, best_peers, heading, lines, tokens_within

TIMES = {
    "engramdax mix": (30.0, 150.0),
    "vllm": (80.0, 1300.0),
    OF_PINNED_MEMORY: (160.0, 600.0),
    OF_OUR_PAGES: (20.0, 90.0),
}


def outcome_of(*, pause_s: float = 0.0) -> Outcome:
    """Medians in microseconds of 64 and 1,024 tokens, the third of five calls each."""
    series = [
        Series(name, tokens, [t * f for f in (0.9, 0.95, 1, 1.5, 2)], [9.0], peer=name != OF_OUR_PAGES)
        for name, times in TIMES.items()
        for tokens, t in zip((64, 1024), times, strict=True)
    ]
    step = Step(1024, 4096, work_us=1350.0, gathers_us=300.0, both_us=1440.0)
    return Outcome(series, 24, {"sglang": "no wheel"}, "a GPU", 1.0, 0, 0, {}, {}, [step], {}, pause_s)


def test_the_best_peer_is_neither_ours_nor_reads_our_pages():
    assert best_peers(outcome_of()) == {64: ("vllm", 80.0), 1024: (OF_PINNED_MEMORY, 600.0)}


def test_results_are_parts_of_the_best_peers_median():
    results = {(r["contender"], r["tokens"]): r for r in as_json(outcome_of())["results"]}
    assert results["engramdax mix", 64]["of_best_peer"] == pytest.approx(30 / 80)
    assert results["engramdax mix", 1024]["of_best_peer"] == pytest.approx(150 / 600)
    assert results["engramdax mix", 1024]["rows"] == 1024 * 24
    assert results["engramdax mix", 1024]["p99_us"] == pytest.approx(np.percentile([135, 142.5, 150, 225, 300], 99))
    assert {name for (name, _), r in results.items() if r["peer"]} == {"vllm", OF_PINNED_MEMORY}


def test_the_report_says_whether_there_was_a_pause():
    assert not any("of nothing before each call" in line for line in heading(outcome_of()))
    assert "4 ms of nothing before each call" in heading(outcome_of(pause_s=0.004))
    assert as_json(outcome_of(pause_s=0.004))["pause_s"] == 0.004


def test_the_report_says_what_gathers_cost_other_work_and_what_is_missing():
    said = "\n".join(heading(outcome_of()))
    assert "beside them 90 us more than 1350: 30%" in said
    assert "absent: sglang: no wheel" in said
    assert len(lines(outcome_of())) == 2 * len(TIMES)


def test_tokens_within_a_window_are_found_between_those_that_were_measured():
    within = tokens_within(outcome_of(), 90.0)
    assert within["engramdax mix"] == pytest.approx(64 + (1024 - 64) * (90 - 30) / (150 - 30))
    assert within[OF_PINNED_MEMORY] < 64
