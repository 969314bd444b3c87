# SPDX-License-Identifier: Apache-2.0
"""A process that keeps one core busy, as a neighbour on a server does."""

from __future__ import annotations

import os
from contextlib import contextmanager
from multiprocessing import get_context
from typing import TYPE_CHECKING

from engramdax.bench.worker import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import Event


def spin(cpu: int, started: Event) -> None:
    """Stay on one CPU and never sleep."""
    die_with_parent()
    os.sched_setaffinity(0, {cpu})
    started.set()
    while True:
        pass


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep the last CPU of this process's affinity busy meanwhile."""
    context = get_context("spawn")
    started = context.Event()
    process = context.Process(target=spin, args=(max(os.sched_getaffinity(0)), started), daemon=True)
    process.start()
    try:
        started.wait(timeout=30)
        yield
    finally:
        process.kill()
        process.join()
