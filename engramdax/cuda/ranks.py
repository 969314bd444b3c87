# SPDX-License-Identifier: Apache-2.0
"""Agreements between the processes of a host: how many share its cores, and whose turn a GPU's lanes are.

Each process that has lanes locks a byte of a file in the run directory; how many bytes are locked is how many
processes there are. POSIX locks, which a forked child does not inherit, and which end with the process, however it
ends. Processes that do not see each other's run directory, in containers say, know nothing of each other: they have
`threads=` and ENGRAMDAX_THREADS.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from engramdax._core import lib
from engramdax.errors import BackingError
from engramdax.host import make_dir, run_dir

RANKS: Final = 256
"""Bytes of the file, and so most processes that are counted."""

MPS_PIPES: Final = Path("/tmp/nvidia-mps")  # noqa: S108 - where NVIDIA's daemon has them by default

_files: dict[str, int | None] = {}
_joined: int | None = None
"""The process that did; a forked child has to do it for itself."""


def join() -> bool:
    """Be counted among the processes of this host that have lanes; False where that cannot be. May be called again."""
    global _joined  # noqa: PLW0603 - one lock for the process: with two it would count twice
    fd = _open("ranks")
    if fd is None:
        return False
    if _joined != os.getpid() and not any(_lock(fd, byte) for byte in range(RANKS)):
        return False
    _joined = os.getpid()
    lib.ed_lanes_share(fd, RANKS)
    return True


def have_gpu(uuid: str) -> bool:
    """Tell whether lanes may use a GPU: no other process of ours does, or NVIDIA's MPS lets them run side by side.

    Without MPS the GPU runs one process at a time: a kernel that waits for its rows would use up its process's turn.
    """
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or MPS_PIPES.exists():
        return True
    fd = _open(f"gpu-{uuid}")
    return fd is None or _lock(fd, 0)


def _open(name: str) -> int | None:
    """Give the file of that name, opened once: closing any descriptor of it would end this process's locks."""
    if name not in _files:
        try:
            path = make_dir(run_dir()) / name
            _files[name] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except (BackingError, OSError):
            _files[name] = None
    return _files[name]


def _lock(fd: int, byte: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
    except OSError:
        return False
    return True
