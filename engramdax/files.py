# SPDX-License-Identifier: Apache-2.0
"""Files that other processes see whole, or as they were before."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from engramdax.errors import BackingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def replace_file(path: Path, write: Callable[[BinaryIO], object], *, mode: int | None = None, remedy: str = "") -> None:
    """Let `write` fill a new file beside `path`, and rename it there; `mode` is its permissions, else the umask's.

    On any error `path` is as it was and nothing is left beside it. Raises BackingError with `remedy` where the file
    system refuses. Any number of threads and processes may replace the same file; the last one stays.
    """
    temporary = path.parent / f".{path.name}.{os.getpid()}.{threading.get_ident()}"
    try:
        try:
            temporary.unlink(missing_ok=True)  # of a process that died, whose number came round again
            with temporary.open("xb") as file:
                write(file)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # of a path that leads through a file, say
                temporary.unlink(missing_ok=True)
            raise
    except OSError as e:
        raise BackingError(f"cannot write {path}: {e.strerror or e}", remedy=remedy) from None
