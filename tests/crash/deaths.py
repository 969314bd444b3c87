# SPDX-License-Identifier: Apache-2.0
"""Commands in forked children that die by SIGKILL, from outside or at a chosen step, and what must hold after."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import engramdax
from engramdax.commands.main import run
from engramdax.format.directory import LOADING
from engramdax.format.geometry import LINE, Extent
from engramdax.media import MappedMedia

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

KILLED = -signal.SIGKILL


def fork(act: Callable[[], int]) -> int:
    """Start `act` in a child that has everything imported already; give its process id."""
    process = os.fork()
    if process == 0:
        code = 125
        try:
            silence = os.open(os.devnull, os.O_RDWR)
            for descriptor in (1, 2):
                os.dup2(silence, descriptor)
            code = act()
        finally:
            os._exit(code)
    return process


def exit_code(process: int) -> int:
    """Wait for a child; its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


Half = Callable[[], None]


def watch_steps(act: Callable[[int, Half | None], None]) -> None:
    """Call `act` in front of each store and fence of this process, with its number from 1 on; for one thread at a time.

    With a store of several lines it gets a function that stores the first half of them. There is no way back: this is
    for a process that ends with what is watched.
    """
    store, fence = MappedMedia.store, MappedMedia.fence
    mutex = threading.Lock()
    numbers = count(1)

    def watched_store(self: MappedMedia, offset: int, data: ReadableBuffer) -> None:
        lines = memoryview(data).cast("B")
        half = len(lines) // LINE // 2 * LINE
        with mutex:
            act(next(numbers), (lambda: store(self, offset, lines[:half])) if half else None)
        store(self, offset, data)

    def watched_fence(self: MappedMedia) -> None:
        with mutex:
            act(next(numbers), None)
        fence(self)

    MappedMedia.store = watched_store  # type: ignore[method-assign]
    MappedMedia.fence = watched_fence  # type: ignore[method-assign]


def run_dying(arguments: list[str], step: int, *, torn: bool) -> int:
    """Run a command in a child that dies at its `step`-th store or fence; give its exit code.

    It dies in front of the step, or, `torn`, with half of the lines of a store out. A step that is never
    reached lets it live.
    """

    def die(number: int, half: Half | None) -> None:
        if number == step:
            if torn and half:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def act() -> int:
        watch_steps(die)
        return run(arguments)

    return exit_code(fork(act))


class Seen:
    """A pool as a new reader finds it: every table that it sees is right, or this fails.

    `contents` are the rows that each table must have, by name, in a multiple of 8 bytes.
    """

    def __init__(self, path: Path, contents: dict[str, np.ndarray[Any, Any]]) -> None:
        with warnings.catch_warnings(action="ignore", category=engramdax.DegradedPoolWarning):
            opened = engramdax.open(path)
        with opened:
            self.tables = set(opened.tables)
            self.unfinished = [t.name for t in opened.directory.tables if t.state == LOADING]
            self.free: list[Extent] = opened.free()
            self.retired = opened.directory.retired
            self.generation = opened.generation
            self.degraded = bool(opened.problems)
            geometry = opened.superblock.geometry
            slots = [np.memmap(path, np.uint8, "r", place, geometry.slot_bytes) for place in geometry.slots]
            length = LINE + int.from_bytes(slots[0][52:56].tobytes(), "little")
            self.slots_agree = np.array_equal(slots[0][:length], slots[1][:length])
            for name in opened.tables:
                assert opened[name].verify() == []
                entry = opened.directory.table(name)
                assert entry is not None
                # Not gathered: a child forked after OpenMP has run would inherit its dead threads.
                rows = np.memmap(path, np.uint8, "r", entry.extent.offset, entry.bytes)
                assert np.array_equal(rows.view(np.uint64), contents[name].reshape(-1).view(np.uint64))
