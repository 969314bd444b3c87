# SPDX-License-Identifier: Apache-2.0
"""Files that other processes see whole, or as they were before."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

from engramdax.errors import BackingError, RefusedError
from engramdax.format.superblock import MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_KINDS: Final = {
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}


def replace_file(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    mode: int | None = None,
    pool: Path | None = None,
    remedy: str = "",
) -> None:
    """Let `write` fill a new file beside `path`, and rename it there; `mode` is its permissions, else the umask's.

    A symlink stays, and what it leads to is replaced. On any error `path` is as it was and nothing is left beside it.
    Raises BackingError with `remedy` where the file system refuses, RefusedError as `check_replaceable`. Any number of
    threads and processes may replace the same file; the last one stays.
    """
    check_replaceable(path, pool=pool, remedy=remedy)
    target = Path(os.path.realpath(path))
    # Not made of the target's name, which may be as long as names can be.
    temporary = target.parent / f".engramdax-{os.urandom(8).hex()}"
    try:
        try:
            with temporary.open("xb") as file:
                write(file)
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
            temporary.replace(target)
        except BaseException:
            with suppress(OSError):  # of a path that leads through a file, say
                temporary.unlink(missing_ok=True)
            raise
    except OSError as e:
        raise BackingError(f"cannot write {path}: {e.strerror or e}", remedy=remedy) from None


def check_replaceable(path: Path, *, pool: Path | None = None, sources: Iterable[Path] = (), remedy: str = "") -> None:
    """Check that `path`, symlinks followed, is a file that may be lost, or nothing yet.

    Raises RefusedError for a device, a pipe, a socket, the pool at `pool`, any file that begins as a pool does, and
    `sources`, which are there and make what is to be written; BackingError for a directory, and where the file system
    refuses to say.
    """
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            kind = _KINDS.get(stat.S_IFMT(found.st_mode), "no file")
            raise RefusedError(f"{path} is {kind}, which is not replaced by a file", remedy=remedy)
        if (pool is not None and os.path.samestat(found, pool.stat())) or _begins_as_a_pool(path):
            raise RefusedError(f"{path} is a pool, which is not replaced", remedy=remedy)
        for source in sources:
            if os.path.samestat(found, source.stat()):
                raise RefusedError(f"{path} is the source {source}, which is not replaced", remedy=remedy)
    except FileNotFoundError:
        return
    except OSError as e:
        raise BackingError(f"cannot write {path}: {e.strerror or e}", remedy=remedy) from None


def _begins_as_a_pool(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except PermissionError:  # its directory may allow a replacement all the same
        return False
