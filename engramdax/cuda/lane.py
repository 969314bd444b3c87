# SPDX-License-Identifier: Apache-2.0
"""A lane: what a CudaTable and the CPU team share for rows that come by way of the CPU (c/lane.h, kernels.cu)."""

from __future__ import annotations

import atexit
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib
from engramdax.cuda.driver import on_device, synchronise
from engramdax.cuda.kernels import capability, function, shared_bytes
from engramdax.cuda.memory import DeviceMemory, PinnedMemory
from engramdax.errors import ClosedError, CudaError, EngramdaxError, PoisonedRowsError

if TYPE_CHECKING:
    from engramdax.cuda.registration import Registration
    from engramdax.table import Table

STAGING_BYTES: Final = 64 << 20
"""Pinned host memory for staged rows: a prefill of 8,192 tokens of DeepSeek-V4.1 takes 52 MB."""

MOST_ROWS: Final = 1 << 20
"""Of a call that is mixed; larger ones are direct. A message counts rows in 24 bits."""

MOST_IDS: Final = 1 << 31
"""Tables with more rows are direct: ids travel as int32."""

EARLY_FROM: Final = (9, 0)
"""Architectures on which a kernel can begin while the one before it runs."""

_LINE: Final = 128
"""Bytes: words that the CPU writes and words that the GPU writes share no line of either."""

# Pinned memory: a line each for the GPU's words, the CPU's, `failed` and `consumed`; then flags, ids and rows.
_MESSAGE: Final = 0
_BEGUN: Final = 8
_FINISHED: Final = _LINE
_FAILED: Final = 2 * _LINE
_CONSUMED: Final = 3 * _LINE
_FLAGS: Final = 4 * _LINE
_PAGE: Final = 4096

# Of kernels.cu: an Entry, a State with room to spare, and the places of two of its counts, in words of 32 bits.
_ENTRY_BYTES: Final = 16
_STATE_BYTES: Final = 128
_LATE_CHUNKS: Final = 9
_BUSY_CALLS: Final = 10

_PATIENCE_NS: Final = 1_000_000_000
"""How long a call waits for a lane in use where the pool is not registered, so that there is no other way."""


_open: dict[int, Any] = {}
"""All lanes that are, by address."""

_kept: dict[int, tuple[Any, ...]] = {}
"""What the GPU and the poller look at until a lane is closed, by the address of its pinned memory.

From before it is opened: where a signal's handler raises meanwhile, nobody knows the lane, and the poller has it.
"""


def _close(device: int, opened: Any, address: int) -> None:
    """Close a lane that is not used any more, whose pinned memory is at `address`."""
    with suppress(CudaError), on_device(device):  # without a GPU, or one that works, there is nothing to wait for
        synchronise()
    if _open.pop(int(ffi.cast("uintptr_t", opened)), None) is not None:
        lib.ed_lane_close(opened)
    _kept.pop(address, None)


@atexit.register
def _close_all() -> None:
    """Close what is open, before the driver takes the memory away that the poller looks at.

    Without waiting for the GPU, which may have work that never ends.
    """
    while _open:
        _, opened = _open.popitem()
        lib.ed_lane_close(opened)


class Lane:
    """One lane, open until `close` or the garbage collector's.

    `core` is its `struct ed_cuda_lane *`, whose shares may be set at any time.

    nbytes: GPU memory that it takes; pinned_bytes: host memory. capacity: rows of a round.
    threads: of the CPU, the poller included; shared: fewer where other processes have lanes, too. blocks: the most of
    a launch that copy rows, and wait for the CPU meanwhile. registration: of the pool, where the GPU can read it by
    itself, as it then does where the CPU is late or the lane in use. EngramdaxError where the process has ED_LANES
    lanes already.
    """

    def __init__(
        self, table: Table, device: int, *, threads: int, shared: bool, blocks: int, registration: Registration | None
    ) -> None:
        self.threads, self.blocks = threads, blocks
        self._device, self._shared, self._registration = device, shared, registration
        unit, align = int(lib.ED_LANE_CHUNK_UNIT), int(lib.ED_LANE_ALIGN)
        unit_bytes = -(-unit * table.row_bytes // align) * align
        units = max(1, min(STAGING_BYTES // unit_bytes, MOST_ROWS // unit))
        capacity = units * unit
        ids_at = _FLAGS + units * int(lib.ED_LANE_FLAG_STRIDE) * 8
        staging_at = -(-(ids_at + capacity * 4) // _PAGE) * _PAGE
        self.pinned_bytes = staging_at + units * unit_bytes
        self._pinned = PinnedMemory(self.pinned_bytes)
        # Flags must not hold the number of a round by chance, nor the words before them.
        ffi.memmove(ffi.cast("char *", self._pinned.address), bytes(staging_at), staging_at)
        most = MOST_ROWS if registration else capacity
        self._state = DeviceMemory(_STATE_BYTES)
        self._state.write(np.zeros(_STATE_BYTES, np.uint8))
        self._local = DeviceMemory(most * _ENTRY_BYTES)
        self._staged = DeviceMemory(capacity * _ENTRY_BYTES)
        self.nbytes = self._state.nbytes + self._local.nbytes + self._staged.nbytes
        at = self._pinned.address
        self._failed: Any = ffi.cast("volatile uint32_t *", at + _FAILED)
        memory: Any = ffi.new(
            "struct ed_lane_memory *",
            {
                "message": ffi.cast("uint64_t *", at + _MESSAGE),
                "begun": ffi.cast("uint64_t *", at + _BEGUN),
                "finished": ffi.cast("uint32_t *", at + _FINISHED),
                "flags": ffi.cast("uint64_t *", at + _FLAGS),
                "ids": ffi.cast("int32_t *", at + ids_at),
                "staging": ffi.cast("uint8_t *", at + staging_at),
                "rows": capacity,
                "chunks": units,
                "staging_bytes": units * unit_bytes,
            },
        )
        # The table's core must outlive the lane, and so the rest, in whatever order the garbage collector takes things.
        self._table = table
        _kept[at] = (table, registration, self._pinned, self._state, self._local, self._staged)
        opened = lib.ed_lane_open(memory, table.core, threads, shared)
        if opened == ffi.NULL:
            del _kept[at]
            raise EngramdaxError("no further lane can be opened in this process", remedy="close another CudaTable")
        self._lane: Any = opened
        self.closed = False
        self._last: EngramdaxError | None = None
        _open[int(ffi.cast("uintptr_t", opened))] = opened
        self._finalizer = weakref.finalize(self, _close, device, opened, at)
        self._finalizer.atexit = False
        core: Any = ffi.new("struct ed_cuda_lane *")
        core.mix.state, core.mix.local, core.mix.staged = (
            self._state.address,
            self._local.address,
            self._staged.address,
        )
        core.mix.message, core.mix.begun = at + _MESSAGE, at + _BEGUN
        core.mix.finished, core.mix.failed, core.mix.consumed = at + _FINISHED, at + _FAILED, at + _CONSUMED
        core.mix.flags, core.mix.ids, core.mix.staging = at + _FLAGS, at + ids_at, at + staging_at
        core.mix.capacity = self.capacity = capacity
        core.mix.patience_ns = 0 if registration else _PATIENCE_NS
        core.lane, core.threads = opened, threads
        core.take, core.post_few, core.post_many = (
            function(device, name) for name in ("take_lane", "post_few", "post_many")
        )
        core.early = capability(device) >= EARLY_FROM
        core.most_rows = most
        core.blocks, core.shared_bytes = blocks, shared_bytes(device)
        self.core = core

    def another(self) -> Lane:
        """Open a further lane for the same table, with the deadlines that this one has now."""
        lane = Lane(
            self._table,
            self._device,
            threads=self.threads,
            shared=self._shared,
            blocks=self.blocks,
            registration=self._registration,
        )
        lane.core.deadline_us, lane.core.deadline_row = self.core.deadline_us, self.core.deadline_row
        return lane

    def error(self) -> EngramdaxError | None:
        """Give what went wrong in rounds before, and forget it; None for nothing."""
        if self.closed:
            found, self._last = self._last, None
            return found
        ids: Any = ffi.new("int64_t[]", int(lib.ED_LANE_UNREADABLE))
        count = int(lib.ed_lane_unreadable(self._lane, ids))
        if count:
            known = np.array(list(ids)[: min(count, len(ids))], np.int64)
            known = known[known >= 0]
            self._table.note_unreadable(count)
            return PoisonedRowsError(
                f"{count} rows of table {self._table.name} could not be read in a gather before, and are zeros: "
                f"ids {', '.join(map(str, known[:8]))}{', ...' if count > 8 else ''}",
                table=self._table.name,
                positions=np.empty(0, np.int64),
                ids=known,
                remedy="engramdax health names the memory; engramdax repair writes the rows again",
            )
        if self._failed[0]:
            self._failed[0] = 0
            return CudaError(
                f"rows of table {self._table.name} did not come in time in a gather before, and are zeros",
                remedy="give the team free cores, or put the pool where its memory can be registered",
            )
        return None

    def counts(self) -> dict[str, int]:
        """Give what the lane did so far: rounds, rows, busy_ns, late_chunks, busy_calls. Waits for the GPU."""
        self._check_open()
        served: Any = ffi.new("struct ed_lane_served *")
        lib.ed_lane_served(self._lane, served)
        state = np.zeros(_STATE_BYTES // 4, np.uint32)
        self._state.read(state)
        return {
            "rounds": int(served.rounds),
            "rows": int(served.rows),
            "busy_ns": int(served.busy_ns),
            "late_chunks": int(state[_LATE_CHUNKS]),
            "busy_calls": int(state[_BUSY_CALLS]),
        }

    def disturb(self, *, one_in: int, microseconds: int) -> None:
        """For tests: let one chunk in so many sleep before it is copied; 0 for none."""
        self._check_open()
        lib.ed_lane_disturb(self._lane, one_in, microseconds)

    def close(self) -> None:
        """Close it, once the GPU has done what was launched, and give its memory back. May be called twice."""
        if self.closed:
            return
        self._last = self.error()  # for those who ask later
        self.closed = True
        self._finalizer()
        self._lane = ffi.NULL
        # The registration, too: it ends with the last who holds it, and a closed table still has its lane.
        del self._pinned, self._state, self._local, self._staged, self._failed, self._registration

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the lane of table {self._table.name} was closed")
