# SPDX-License-Identifier: Apache-2.0
"""Many inputs, one after the other, in a process that may crash, hang or run out of memory without this one.

ENGRAMDAX_FUZZ sets how many inputs the metadata images are (20,000 if unset); the other fuzzers take the share of it
that their inputs are worth. ENGRAMDAX_SEED is the first input's seed, another one each time if unset: an input is made
from its seed alone, so ENGRAMDAX_FUZZ=1 with the seed that a failure names makes the same one again.
"""

from __future__ import annotations

import faulthandler
import json
import math
import mmap
import os
import random
import resource
import signal
import struct
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final, NoReturn, TypeVar

import pytest

T = TypeVar("T")

IMAGES: Final = int(os.environ.get("ENGRAMDAX_FUZZ", "20000"))
SEED: Final = int(os.environ.get("ENGRAMDAX_SEED") or random.SystemRandom().randrange(1 << 40))

STILL_SECONDS: Final = 60
"""An input that takes longer hangs; each takes milliseconds, but the machine may be busy."""

MEMORY_BYTES: Final = 1 << 30
"""What an input may take beside what the process had before; those that are tried have some KiB."""


def share(divisor: int) -> int:
    """Give how many inputs a fuzzer tries whose inputs cost so many times what an image does."""
    return max(1, IMAGES // divisor)


def survive(inputs: int, make: Callable[[random.Random], T], examine: Callable[[T], str]) -> Counter[str]:
    """Examine `inputs` inputs in a child, each made from a seed of its own; give how often `examine` said what.

    Fails with the seed of the input for which either raises, or the child dies, takes no step for STILL_SECONDS, or
    needs more than MEMORY_BYTES.
    """
    progress = mmap.mmap(-1, mmap.PAGESIZE)
    with tempfile.TemporaryFile() as said, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, which the child does not use
        child = os.fork()
        if child == 0:
            _examine_all(inputs, make, examine, progress, said)
        status = None
        try:
            status = _wait(child, progress)
        finally:
            if status is None:  # this test is given up
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        said.seek(0)
        text = said.read().decode(errors="backslashreplace")
    if status != 0:
        (done,) = struct.unpack_from("<Q", progress)
        how = f"ended by signal {-status}" if status < 0 else f"exit code {status}"
        pytest.fail(f"input of seed {SEED + done} ({done} of {inputs}): {how}\n{text}", pytrace=False)
    return Counter(json.loads(text))


def _examine_all(
    inputs: int, make: Callable[[random.Random], T], examine: Callable[[T], str], progress: mmap.mmap, said: IO[bytes]
) -> NoReturn:
    code = 1
    try:
        outcomes: Counter[str] = Counter()
        (pages,) = (int(text) for text in Path("/proc/self/statm").read_text().split()[:1])
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (pages * mmap.PAGESIZE + MEMORY_BYTES, hard))
        # Of a crash, and of what is aborted because it hangs, tracebacks are enough.
        faulthandler.enable(said)
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        for number in range(inputs):
            struct.pack_into("<Q", progress, 0, number)
            outcomes[examine(make(random.Random(SEED + number)))] += 1
        said.write(json.dumps(outcomes).encode())
        said.flush()
        code = 0
    except BaseException:  # noqa: BLE001 - the parent says what it was
        said.write(traceback.format_exc().encode(errors="backslashreplace"))
        said.flush()
    finally:
        # Nothing of pytest's is to happen twice.
        os._exit(code)


def _wait(child: int, progress: mmap.mmap) -> int:
    """Give how the child ended; one that takes no step is killed."""
    pause, seen, since = 0.001, -1, time.monotonic()
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        (done,) = struct.unpack_from("<Q", progress)
        if done != seen:
            seen, since = done, time.monotonic()
        elif time.monotonic() - since > STILL_SECONDS:  # the child says where it is, and ends
            os.kill(child, signal.SIGABRT)
            since = math.inf
        time.sleep(pause)
        pause = min(pause * 2, 0.1)


def report(figure: Callable[[str], None], what: str, inputs: int, outcomes: dict[str, Any]) -> None:
    """Have printed what was tried."""
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    figure(f"{inputs} {what} from seed {SEED}: {counts}")
