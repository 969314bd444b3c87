# SPDX-License-Identifier: Apache-2.0
"""A pool's memory in this process: one MAP_SHARED mapping, made and undone by the C core."""

from __future__ import annotations

import os
import weakref
from pathlib import Path
from typing import Any, Final

from engramdax._core import ffi, lib
from engramdax.errors import BackingError

PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")


class Mapping:
    """`length` bytes of the file or device `fd`, from its start.

    The address is a multiple of `align` bytes. The mapping lives until the last reference to this
    object goes: there is no close(), because a gather in another thread may be reading. Safe to use
    from several threads.
    """

    def __init__(self, fd: int, length: int, *, align: int, writable: bool, huge: bool, path: str) -> None:
        ret: Any = ffi.new("struct ed_mapping *")
        if error := lib.ed_map(fd, length, align, writable, huge, ret):
            raise BackingError(
                f"cannot map {length} bytes of {path}: {os.strerror(-error)}",
                remedy="check the limits of this process (ulimit -v, cgroup) and the device's state",
            )
        self._ret = ret
        self.path = path
        self.writable = writable
        self.length = length
        self.address = int(ffi.cast("uintptr_t", ret.address))
        self._finalizer = weakref.finalize(self, lib.ed_unmap, ret)
        # At exit the kernel unmaps anyway, and another thread may still be inside a gather.
        self._finalizer.atexit = False

    def check(self, offset: int, length: int) -> None:
        """Raise BackingError unless [offset, offset + length) lies inside."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise BackingError(f"bytes {offset} to {offset + length} lie outside the {self.length} of {self.path}")

    def view(self, offset: int, length: int) -> memoryview:
        """Give a view of [offset, offset + length); it must not outlive this object."""
        self.check(offset, length)
        view = memoryview(ffi.buffer(self._ret.address + offset, length))
        return view if self.writable else view.toreadonly()

    def replace(self, fd: int) -> None:
        """Put another file of this length into its place, or zeros of this process alone where there is none (-1).

        Views and pointers stay good. Left as it is where the kernel cannot.
        """
        if lib.ed_map_instead(self._ret, fd) and fd >= 0:
            lib.ed_map_instead(self._ret, -1)

    def populate(self, offset: int, length: int) -> int:
        """Fault the pages of [offset, offset + length) in at once; 0 or -errno.

        Saves a page fault per 4 KiB; a kernel before 5.14 cannot and says -EINVAL, which costs only time.
        """
        return int(lib.ed_populate(self._ret, offset, length, self.writable))

    def page_bytes(self) -> int:
        """Bytes of the pages under a mapping of an ordinary file: 2 MiB where most of it has huge ones.

        Looks at the first 64 MiB, which it faults in.
        """
        self.populate(0, min(self.length, 64 << 20))
        mapped = huge = 0
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            words = line.split()
            if "-" in words[0] and len(words) > 1 and not words[0].endswith(":"):
                inside = int(words[0].split("-")[0], 16) == self.address
            elif inside and words[0] == "Rss:":
                mapped = int(words[1])
            elif inside and words[0] in ("ShmemPmdMapped:", "FilePmdMapped:"):
                huge += int(words[1])
        return 2 << 20 if mapped and huge * 2 > mapped else PAGE_BYTES
