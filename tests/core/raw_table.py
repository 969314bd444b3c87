# SPDX-License-Identifier: Apache-2.0
"""Tables of the C core on memory that a test owns, with pages around it that nobody may touch."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engramdax._core import ffi, lib

PAGE = mmap.PAGESIZE
PROT_NONE = 0
CANARY = 0xA5


class FencedMemory:
    """`size` bytes between two pages without access, random but the same in every run."""

    def __init__(self, size: int) -> None:
        pages = -(-size // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        everything = np.frombuffer(self._map, np.uint8)
        self.bytes = everything[PAGE : PAGE + pages * PAGE]
        self.bytes[:] = np.random.default_rng(1).integers(0, 256, self.bytes.size, np.uint8)
        libc = ctypes.CDLL(None, use_errno=True)
        for place in (everything.ctypes.data, everything.ctypes.data + PAGE + pages * PAGE):
            assert libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(PAGE), PROT_NONE) == 0

    def first(self, size: int) -> npt.NDArray[np.uint8]:
        """Right behind the page before."""
        return self.bytes[:size]

    def last(self, size: int) -> npt.NDArray[np.uint8]:
        """Right before the page behind."""
        return self.bytes[self.bytes.size - size :]


class RawTable:
    """An `ed_table` on `memory`. `spans` are (offset, stride, bytes)."""

    def __init__(
        self,
        memory: npt.NDArray[np.uint8],
        rows: int,
        spans: Sequence[tuple[int, int, int]],
        *,
        ahead: int = 12,
        heads: Sequence[int] = (),
    ) -> None:
        self.memory, self.rows, self.spans, self.heads = memory, rows, spans, heads
        self.row_bytes = sum(size for _, _, size in spans)
        self._spans: Any = ffi.new("struct ed_span[]", [list(span) for span in spans])
        self._begins: Any = ffi.new("int64_t[]", [0, *itertools.accumulate(heads)]) if heads else ffi.NULL
        core: Any = ffi.new("struct ed_table *")
        core.base = ffi.cast("uint8_t *", memory.ctypes.data)
        core.guard_begin, core.guard_end = core.base, core.base + memory.size
        core.rows, core.row_bytes = rows, self.row_bytes
        core.spans, core.span_count = self._spans, len(spans)
        core.head_begins, core.head_count = self._begins, len(heads)
        core.rows_ahead = ahead
        self.core = core

    def expected(self, ids: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """What numpy makes of a gather; ids that are no rows give zeros."""
        flat = ids.reshape(-1).astype(np.int64)
        good = (flat >= 0) & (flat < self.rows)
        parts = []
        for offset, stride, size in self.spans:
            rows = np.lib.stride_tricks.as_strided(self.memory[offset:], (self.rows, size), (stride, 1))
            parts.append(np.where(good[:, None], rows[np.where(good, flat, 0)], np.uint8(0)))
        return np.concatenate(parts, axis=1)

    def gather(
        self, ids: npt.NDArray[Any], kernel: str, *, flags: int = 0, out_shift: int = 0, id_shift: int = 0
    ) -> tuple[int, npt.NDArray[np.uint8]]:
        """Run one kernel; give its outcome and the rows. `*_shift` is the address modulo 64 of a buffer.

        Fails where a byte outside the output was written.
        """
        out, around = placed(ids.size * self.row_bytes, out_shift)
        id_bytes, _ = placed(ids.nbytes, id_shift)
        id_bytes[:] = np.frombuffer(ids.tobytes(), np.uint8)
        outcome = lib.ed_gather_bare(
            self.core,
            ffi.cast("void *", id_bytes.ctypes.data),
            ids.size,
            flags | (lib.ED_IDS_64 if ids.itemsize == 8 else 0),
            ffi.cast("uint8_t *", out.ctypes.data),
            kernel.encode(),
        )
        for side in around:
            assert (side == CANARY).all(), "the kernel wrote beside its output"
        return int(outcome), out.reshape(ids.size, self.row_bytes)


def placed(size: int, shift: int) -> tuple[npt.NDArray[np.uint8], tuple[npt.NDArray[np.uint8], ...]]:
    """Give `size` bytes whose address modulo 64 is `shift`, and 64 canary bytes or more on each side of them."""
    whole = np.full(size + 256, CANARY, np.uint8)
    begin = 64 + (shift - whole.ctypes.data) % 64
    return whole[begin : begin + size], (whole[:begin], whole[begin + size :])


def kernels() -> list[str]:
    """Names of the kernels that this CPU and this build have."""
    table = RawTable(np.zeros(64, np.uint8), 1, [(0, 64, 64)])
    ids = np.zeros(0, np.int32)
    return [name for name in ("avx512", "avx2", "sse2", "neon") if table.gather(ids, name)[0] == lib.ED_ALL_VALID]
