# SPDX-License-Identifier: Apache-2.0
"""Peers of the GPU contest that do part of their work on the host, and so are timed by its clock."""

from __future__ import annotations

import ctypes
import time
import warnings
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.bench.gpu_outcome import Series
from engramdax.bench.gpu_peers import DIM, SCALES, SglangStaging, dequantise
from engramdax.bench.scratch import available_bytes
from engramdax.cuda.memory import PinnedMemory
from engramdax.errors import BackingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.table import Table

STAGING_TOKENS: Final = 2048
"""Of fewer tokens, SGLang's staging is not timed."""

MEMCPY_ROWS: Final = 384
"""Of more rows, a copy for each is not timed."""

LEAST_ROUNDS: Final = 20
"""Of a contender's loop, which has a quarter of the rounds of those on the device."""

WARM: Final = 5
"""Rounds that are not counted."""

OF_OUR_PAGES: Final = "torch index_select of our pages, copy"
OF_PINNED_MEMORY: Final = "torch index_select of pinned memory, copy"

LEFT_FREE: Final = 4 << 30
"""Bytes of the host's memory that a second copy of the table leaves."""


class HostPeers:
    """Those who gather from a table, of which the GPU sees row 0 at `device_ptr`: `heads` rows a token.

    draw: gives fresh ids int32 [tokens, heads] on the device. pause_s: how long nothing is done before each call.
    """

    def __init__(
        self,
        torch: Any,
        table: Table,
        draw: Callable[[int], Any],
        *,
        heads: int,
        device_ptr: int,
        pause_s: float,
    ) -> None:
        self._torch = torch
        self._table = table
        self._draw = draw
        self._heads = heads
        self._device_ptr = device_ptr
        self._pause_s = pause_s
        self._float8 = table.row_bytes == DIM + SCALES
        self._pinned: PinnedMemory | None = None

    def pin_copy(self) -> None:
        """Make a copy of the table in memory that CUDA has pinned, as torch's `pin_memory` does, which has 4 KiB pages.

        BackingError where the host has no room for it, CudaError where the driver has none.
        """
        room = available_bytes()
        if room < self._table.nbytes + LEFT_FREE:
            raise BackingError(
                f"{room >> 30} GiB of memory are free, a second copy of the table takes {self._table.nbytes >> 30}",
                remedy="give a smaller --size",
            )
        self._pinned = PinnedMemory(self._table.nbytes)
        self._pinned_tensor(self._pinned).copy_(self._pool_tensor())

    def drop_copy(self) -> None:
        """Give the copy's memory back."""
        self._pinned = None

    def run(self, tokens: int, rounds: int) -> list[Series]:
        """Measure all of them at one number of tokens."""
        few = max(LEAST_ROUNDS, rounds // 4)
        found = [self._index_select(OF_OUR_PAGES, self._pool_tensor(), tokens, few)]
        if self._pinned is not None:
            found[0].peer = False
            copy = self._pinned_tensor(self._pinned)
            found.append(self._index_select(OF_PINNED_MEMORY, copy, tokens, few))
        if self._float8 and tokens >= STAGING_TOKENS:
            found.append(self._staging(tokens, few))
        if tokens * self._heads <= MEMCPY_ROWS:
            found.append(self._copies(tokens, min(rounds, 50)))
        return found

    def _index_select(self, name: str, table: Any, tokens: int, rounds: int) -> Series:
        """torch.index_select of whole rows into a pinned buffer, a copy to the GPU, and dequantising there.

        The ids come from the device, as they do for everybody else: a copy to the host and a wait.
        """
        torch = self._torch
        rows = table.view(-1, self._table.row_bytes)
        staging = torch.empty((tokens * self._heads, self._table.row_bytes), dtype=torch.uint8, pin_memory=True)
        packed = torch.empty(staging.shape, dtype=torch.uint8, device="cuda")
        out = torch.empty((packed.shape[0], DIM), dtype=torch.bfloat16, device="cuda")

        def call(ids: Any) -> None:
            torch.index_select(rows, 0, ids.cpu(), out=staging)
            packed.copy_(staging, non_blocking=True)
            if self._float8:
                dequantise(torch, packed[:, :DIM], packed[:, DIM:], out)

        return self._walled(name, tokens, rounds, call, ids_on_host=False)

    def _walled(
        self, name: str, tokens: int, rounds: int, call: Callable[[Any], None], *, ids_on_host: bool = True
    ) -> Series:
        """Time calls by the host's clock, from ids to rows on the GPU."""
        torch = self._torch
        series = Series(name, tokens, wall=True)
        for round_ in range(-WARM, rounds):
            ids = self._draw(tokens).view(-1).long()
            ids = ids.cpu() if ids_on_host else ids
            torch.cuda.synchronize()
            time.sleep(self._pause_s)
            start = time.perf_counter_ns()
            call(ids)
            torch.cuda.synchronize()
            if round_ >= 0:
                series.device_us.append((time.perf_counter_ns() - start) / 1e3)
        return series

    def _staging(self, tokens: int, rounds: int) -> Series:
        torch = self._torch
        whole = self._pool_tensor() if self._pinned is None else self._pinned_tensor(self._pinned)
        values = whole[: self._table.rows * DIM].view(-1, DIM)
        scales = whole[self._table.rows * DIM :].view(-1, SCALES)
        stage = SglangStaging(torch, values, scales)
        out = torch.empty((tokens * self._heads, DIM), dtype=torch.bfloat16, device="cuda")
        return self._walled("sglang host staging", tokens, rounds, lambda ids: stage(ids, out))

    def _copies(self, tokens: int, rounds: int) -> Series:
        """One cudaMemcpyAsync per row, into a buffer of packed rows."""
        torch = self._torch
        from cuda.bindings import driver  # noqa: PLC0415  # optional

        width, base = self._table.row_bytes, self._device_ptr
        out = torch.empty((tokens * self._heads, width), dtype=torch.uint8, device="cuda")
        stream, to = torch.cuda.current_stream().cuda_stream, out.data_ptr()

        def call(ids: Any) -> None:
            for i, row in enumerate(ids.tolist()):
                driver.cuMemcpyHtoDAsync(to + i * width, base + row * width, width, stream)

        return self._walled("a copy per row", tokens, rounds, call)

    def _pool_tensor(self) -> Any:
        """Give the table's bytes as a tensor on the host."""
        entry = self._table.entry
        view = np.frombuffer(self._table.attachment.mapping.view(entry.extent.offset, entry.bytes), np.uint8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it is read-only: nobody writes to it
            return self._torch.from_numpy(view)

    def _pinned_tensor(self, pinned: PinnedMemory) -> Any:
        """Give the copy's bytes as a tensor on the host, valid as long as `pinned`."""
        memory = (ctypes.c_uint8 * self._table.nbytes).from_address(pinned.address)
        return self._torch.frombuffer(memory, dtype=self._torch.uint8)
