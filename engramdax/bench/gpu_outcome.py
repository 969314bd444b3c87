# SPDX-License-Identifier: Apache-2.0
"""What the contest on the GPU found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Series:
    """One contender at one number of tokens; microseconds on the device and, of the call itself, on the host."""

    contender: str
    tokens: int
    device_us: list[float] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)
    wall: bool = False
    """Times are of the host's clock, since part of the work is the host's."""

    peer: bool = True
    """Whether a contender that is not ours is one that ours are compared with. False of torch on our pool's pages where
    it is measured on a copy of its own, too: a program without a pool has no 2 MiB pages."""


@dataclass(frozen=True, slots=True)
class Step:
    """Medians in microseconds: products of matrices, a Prefetcher's gathers for two layers, and both together."""

    tokens: int
    matrix_rows: int
    work_us: float
    gathers_us: float
    both_us: float

    @property
    def growth(self) -> float:
        """How much longer the work takes with the gathers beside it, as a share of what they take alone."""
        return (self.both_us - self.work_us) / self.gathers_us


@dataclass
class Outcome:
    """All series, what could not be measured and why, and what the GPU is."""

    series: list[Series]
    heads: int
    absent: dict[str, str]
    gpu: str
    registration_s: float
    hot_rows: int
    hot_bytes: int
    hot_share: dict[int, float]
    mix: dict[str, Any]
    """The shares that were measured, by contender."""

    steps: list[Step]
    cores_burnt: dict[int, float]
    """CPU time of the team and the poller, over the time of the rounds, by tokens."""

    pause_s: float
    """How long nothing was done before each call; 0: each contender was in a loop of its own."""
