# SPDX-License-Identifier: Apache-2.0
"""A pool as one process holds it: descriptor, mapping, superblock and pins."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from engramdax._core import ffi, lib
from engramdax.backing import Backing, Kind, inspect_fd, open_fd
from engramdax.errors import FormatError, RefusedError
from engramdax.host import host_id, host_name
from engramdax.locks import Pins
from engramdax.media import MappedMedia
from engramdax.pool.volume import Found, read_directory, read_superblock

if TYPE_CHECKING:
    from pathlib import Path

    from engramdax.format.directory import Directory
    from engramdax.format.superblock import Superblock
    from engramdax.mapping import Mapping


@dataclass(frozen=True, slots=True)
class Opened:
    """What stands at a path, opened and mapped, before anything of a pool is believed."""

    backing: Backing
    fd: int
    mapping: Mapping
    media: MappedMedia


def open_media(path: Path, *, writable: bool) -> Opened:
    """Open and map what stands at `path`; the caller closes `fd`, the mapping outlives that."""
    fd = open_fd(path, writable=writable)
    try:
        backing = inspect_fd(fd, path)
        if backing.size == 0:
            raise FormatError(f"{path} is empty", remedy="`engramdax provision` makes a pool")
        mapping = backing.map(fd, writable=writable)
        return Opened(backing, fd, mapping, MappedMedia(mapping, sync_fd=backing.sync_fd(fd)))
    except BaseException:
        os.close(fd)
        raise


AHEAD_BYTES: Final = 12 << 10
"""How far ahead a gather prefetches from DRAM, where 8 to 16 KiB are equally good."""
LEAST_ROWS_AHEAD: Final = 3

MAX_ROWS_AHEAD: Final = int(lib.ED_MAX_AHEAD)
CALIBRATION_ROWS: Final = 4096


class Attachment:
    """A pool opened for reading. Lives until the last Pool and Table on it are gone. Thread-safe.

    `tune` is how many rows ahead gathers prefetch: a number, "auto" to measure it with the first table,
    or None to measure it on devices, which may be several times slower than DRAM, and only there.
    """

    def __init__(self, path: Path, *, tune: int | Literal["auto"] | None = None) -> None:
        self._tune: int | str | None = tune
        self._ahead_bytes = AHEAD_BYTES
        self._tuning = threading.Lock()
        opened = open_media(path, writable=False)
        self.fd, self.backing, self.mapping, self.media = (
            opened.fd,
            opened.backing,
            opened.mapping,
            opened.media,
        )
        self._finalizer = weakref.finalize(self, os.close, self.fd)
        try:
            found = read_superblock(self.media)
        except FormatError as e:
            raise e.at(path) from None
        self.superblock: Superblock = found.value
        self.superblock_problems = found.problems
        self.pins = Pins(self.backing, self.superblock.pool, of=self.fd)
        weakref.finalize(self, self.pins.close)

    def rows_ahead(self, core_table: Any) -> int:
        """Give the distance of prefetching for this pool, measured at the first call where it has to be."""
        with self._tuning:
            if self._tune is None:
                self._tune = "auto" if self.backing.kind is Kind.DEVDAX else "dram"
            row_bytes = int(core_table.row_bytes)
            if self._tune == "auto" and core_table.rows >= CALIBRATION_ROWS:  # fewer fit a cache
                core_table.rows_ahead = _rows_in(self._ahead_bytes, row_bytes)
                rows = int(lib.ed_gather_calibrate(core_table, CALIBRATION_ROWS, ffi.new("double *")))
                self._ahead_bytes, self._tune = rows * row_bytes, "measured"
            return self._tune if isinstance(self._tune, int) else _rows_in(self._ahead_bytes, row_bytes)

    def read_directory(self) -> Found[Directory]:
        """Read the current directory and pin its generation; the caller unpins it.

        All generations are pinned while it is read: what it names must not be freed before it is pinned.
        """
        self.pins.pin(0)
        try:
            try:
                found = read_directory(self.media, self.superblock)
            except FormatError as e:
                raise e.at(self.backing.path) from None
            check_admitted(self.superblock, found.value, self.backing.path)
            self.pins.pin(found.value.generation)
        finally:
            self.pins.unpin(0)
        return found


def _rows_in(ahead_bytes: int, row_bytes: int) -> int:
    return min(max(ahead_bytes // row_bytes, LEAST_ROWS_AHEAD), MAX_ROWS_AHEAD)


def check_admitted(superblock: Superblock, directory: Directory, path: Path) -> None:
    """Refuse a shared pool whose owner has not admitted this host: nobody asks for its pins."""
    if superblock.shared and host_id() not in {host.id for host in directory.hosts}:
        owner = next((host.name for host in directory.hosts if host.id == directory.owner), str(directory.owner))
        raise RefusedError(
            f"{path}: this host ({host_id()}) is not admitted to the shared pool {superblock.name}",
            remedy=f"on {owner}, its owner, run `{admission(superblock)}`",
        )


def admission(superblock: Superblock) -> str:
    """Give the command by which the owner of a pool admits this host."""
    return f"engramdax hosts admit {host_id()} --name {host_name()} --pool {superblock.name}"
