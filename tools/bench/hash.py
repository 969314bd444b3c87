# SPDX-License-Identifier: Apache-2.0
"""The Engram hash in C beside vectorised numpy, in turn: both layers of DeepSeek-V4.1-Flash, 48 ids per token.

Each round times numpy, the C core on one thread and on all, on the same tokens, so that whatever else the
machine does meets all three. Prints the ratios of medians and of 99th percentiles.

usage: python -m tools.bench.hash [--rounds 300] [--tokens 256 8192]
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from engramdax._core import lib
from engramdax.ngram import Hasher, Layout
from tools.bench.numpy_hash import NumpyHasher

if TYPE_CHECKING:
    from collections.abc import Callable

RAW_VOCAB = 129_280
COMPRESSED_VOCAB = 99_092


def v41_layout() -> Layout:
    """Give V4.1's layout with a made-up token map of the same size, which costs the same look-ups."""
    chance = np.random.default_rng(0)
    shared = chance.integers(0, COMPRESSED_VOCAB, RAW_VOCAB - COMPRESSED_VOCAB)
    return Layout.make(
        layer_ids=[1, 14],
        max_ngram=4,
        heads_per_order=8,
        vocab_size=16_000_000,
        pad_id=2,
        compressed_vocab=COMPRESSED_VOCAB,
        token_map=chance.permutation(np.concatenate([np.arange(COMPRESSED_VOCAB), shared])),
    )


def nanoseconds(call: Callable[[], Any]) -> int:
    """Time one call."""
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def compare(layout: Layout, tokens: int, rounds: int) -> dict[str, list[int]]:
    """Give the times of each in nanoseconds, after some rounds to warm up; the ids must be equal."""
    ours, plain = Hasher(layout), NumpyHasher(layout)
    chance = np.random.default_rng(tokens)
    out = np.empty((tokens, len(layout.layer_ids), layout.heads), np.int32)
    times: dict[str, list[int]] = {"numpy": [], "one thread": [], "all threads": []}
    for number in range(rounds + rounds // 10):
        ids = chance.integers(0, RAW_VOCAB, tokens, dtype=np.int32)
        measured = {
            "numpy": nanoseconds(lambda ids=ids: plain(ids)),  # type: ignore[misc]
            "one thread": nanoseconds(lambda ids=ids: ours(ids, out=out, threads=1)),  # type: ignore[misc]
            "all threads": nanoseconds(lambda ids=ids: ours(ids, out=out)),  # type: ignore[misc]
        }
        if number >= rounds // 10:
            for name, taken in measured.items():
                times[name].append(taken)
    if not np.array_equal(out, plain(ids)):
        raise SystemExit("the ids differ")
    return times


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 8192])
    options = parser.parse_args()
    layout = v41_layout()
    for tokens in options.tokens:
        times = compare(layout, tokens, options.rounds)
        print(f"{tokens} tokens, {tokens * 48} ids, times faster than numpy (median, 99th percentile):")
        for name, threads in (("one thread", 1), ("all threads", lib.ed_team_limit())):
            middle, late = (np.percentile(times["numpy"], q) / np.percentile(times[name], q) for q in (50, 99))
            print(f"  {name:<11} ({threads}): {middle:5.1f} {late:5.1f}")


if __name__ == "__main__":
    main()
