# SPDX-License-Identifier: Apache-2.0
"""Rows of several layers, fetched on a stream of their own while the layers before are computed."""

from __future__ import annotations

import math
import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engramdax.cuda.arrays import DeviceArray, device_array
from engramdax.cuda.driver import bindings, checked, on_device, synchronise, use
from engramdax.cuda.memory import DeviceMemory, View
from engramdax.cuda.streams import (
    Event,
    allowed_while_capturing,
    is_captured,
    stream_handle,
    torch_stream,
    wait_for_producers,
)
from engramdax.errors import ClosedError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.cuda.formats import Format
    from engramdax.cuda.gatherer import CudaGatherer
    from engramdax.cuda.hasher import CudaHasher
    from engramdax.cuda.table import CudaTable

ID_BYTES: Final = 8
MOST_VIEWS: Final = 64
"""And gatherers, that are kept for each buffer; a serving engine pads steps to few numbers of tokens."""


@dataclass
class _Buffers:
    """Where one step's ids and rows lie, and the events that tell of them."""

    ids: DeviceMemory
    rows: list[DeviceMemory]
    begun: Event
    fetched: list[Event]
    done: Event
    gatherers: dict[tuple[int, int, int], CudaGatherer]
    views: dict[tuple[int, int], Any]
    tokens: int = 0


class Prefetcher:
    """Gathers of all layers that read a table, started together and waited for one by one.

    tables: one CudaTable a layer, the one needed first in front, all on one device. max_tokens: most tokens of a step.
    columns: row ids of a token in each layer; by default the tables' number of heads. hasher: for token ids in place
    of row ids. format: as for `CudaTable.gather`, the same for all.

    A step is `start`, then `rows` for each layer, then `finish`:

        prefetcher.start(ids)               # [T, layers, columns]; copied at once
        ...                                 # the layers before
        rows = prefetcher.rows(0)           # [T, columns, R]; this stream waits for that layer alone
        ...
        prefetcher.finish()                 # needed where the step is captured

    Rows stay as they are until the second `start` after, so a step may be started before the one before has been used
    up. While a stream is captured, buffers of their own are used, which all captured graphs share: they must not be
    replayed at the same time. nbytes: GPU memory that it takes; a captured step takes half as much again.

    `start`, `rows` and `finish` belong to one thread at a time, and the streams that they are given must follow each
    other, as one stream does.
    """

    def __init__(
        self,
        tables: Sequence[CudaTable],
        max_tokens: int,
        *,
        columns: int | None = None,
        hasher: CudaHasher | None = None,
        format: Format = "raw",  # noqa: A002 - as for gather
    ) -> None:
        if not tables or max_tokens < 1:
            raise ParameterError("a Prefetcher needs a table and room for a token")
        self.tables = tuple(tables)
        self.max_tokens = max_tokens
        self.device = tables[0].device
        if any(table.device != self.device for table in tables):
            raise ParameterError("the tables are on several devices", remedy="make a Prefetcher for each")
        self._hasher = hasher
        self._layers = tuple(hasher.hasher.layout.layer_of(t.table) for t in tables) if hasher else ()
        if hasher and sorted(self._layers) != list(range(layers := len(hasher.hasher.layout.layer_ids))):
            raise ParameterError(
                f"the hasher has {layers} layers, the tables are its layers {', '.join(map(str, self._layers))}",
                remedy="give one table for each",
            )
        known = hasher.hasher.layout.heads if hasher else len(tables[0].table.heads or ())
        self.columns = columns or known
        if not self.columns or (hasher and self.columns != known):
            raise ParameterError(
                f"columns={columns} does not go with the tables", remedy="say how many rows a token has in each layer"
            )
        self._format = format
        self._shapes = [table.rows_shape(self.columns, format) for table in tables]
        use(self.device)
        driver = bindings()
        _, greatest = checked(driver.cuCtxGetStreamPriorityRange(), "the device does not tell its priorities")
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        # Its few blocks find room while larger kernels run.
        self._side = checked(driver.cuStreamCreateWithPriority(flags, greatest), "cannot make a stream")
        self._finalizer = weakref.finalize(self, driver.cuStreamDestroy, self._side)
        self._finalizer.atexit = False
        self.nbytes = 0
        self._sets = [self._buffers(), self._buffers()]
        self._captured: _Buffers | None = None
        self._current: _Buffers | None = None
        self._turn = 0
        self.closed = False

    def start(
        self,
        ids: Any,
        stream: Any = None,
        *,
        starts: Any = None,
        blocked: Any = None,
        history: Any = None,
    ) -> None:
        """Start fetching a step's rows, and return at once.

        ids: int32 or int64 on the device, dense: row ids [T, layers, columns], the layers as in `tables`, or with a
        hasher token ids [T], and starts, blocked and history as for `CudaHasher`. They are copied, or hashed, on
        `stream`, and may be changed by what follows there. stream: as for `CudaTable.gather`.
        ParameterError for other ids, or more tokens than `max_tokens`; PoisonedRowsError and CudaError for rows that
        could not be had before, as from `CudaTable.gather`.
        """
        if self.closed:
            raise ClosedError("the Prefetcher was closed")
        source = device_array(ids, "ids")
        handle = stream_handle(stream, (source,))
        captured = is_captured(handle)
        buffers = self._next(captured=captured)
        if self._hasher:
            options = {"starts": starts, "blocked": blocked, "history": history}
            itemsize = self._hash(self._hasher, ids, source, buffers, handle, **options)
        else:
            itemsize = self._copy(source, buffers, handle)
        tokens = buffers.tokens = source.shape[0]
        buffers.begun.record(handle)
        buffers.begun.hold(self._side)
        for layer, fetched in enumerate(buffers.fetched):
            if tokens:
                self._gatherer(buffers, layer, tokens, itemsize)()
            fetched.record(self._side)
        buffers.done.record(self._side)
        self._current = buffers
        if not captured:
            self._turn ^= 1  # only now: a step that was refused takes nobody's rows away

    def rows(self, layer: int, stream: Any = None) -> Any:
        """Let `stream` wait for a layer's rows of the step that was started last, and give them: [T, columns, R].

        layer: its place in `tables`. A tensor of torch's if torch is in use, else an object with
        `__cuda_array_interface__`. stream: by default torch's current one.
        """
        buffers = self._started()
        if not 0 <= layer < len(self.tables):
            raise ParameterError(f"layer {layer} is none of {len(self.tables)}", remedy="give its place in tables")
        buffers.fetched[layer].hold(self._consumer(stream))
        key = (layer, buffers.tokens)
        if key not in buffers.views:
            if len(buffers.views) >= MOST_VIEWS:
                buffers.views.clear()
            buffers.views[key] = self._array(self._view(buffers, layer, buffers.tokens))
        return buffers.views[key]

    def finish(self, stream: Any = None) -> None:
        """Let `stream` wait for all layers: a captured step has to be joined before the capture ends."""
        self._started().done.hold(self._consumer(stream))

    def close(self) -> None:
        """Give memory and stream back, once the GPU has done what was started. May be called twice.

        Rows that somebody still has stay until then.
        """
        if self.closed:
            return
        self.closed = True
        with on_device(self.device):
            try:
                synchronise()
            finally:
                self._sets, self._captured, self._current = [], None, None
                self._finalizer()

    def _started(self) -> _Buffers:
        if self.closed:
            raise ClosedError("the Prefetcher was closed")
        if self._current is None:
            raise ParameterError("nothing was started", remedy="call start first")
        return self._current

    def _next(self, *, captured: bool) -> _Buffers:
        if captured:
            if self._captured is None:
                with allowed_while_capturing():
                    self._captured = self._buffers()
            return self._captured
        return self._sets[self._turn]

    def _buffers(self) -> _Buffers:
        ids = DeviceMemory(self.max_tokens * len(self.tables) * self.columns * ID_BYTES)
        rows = [DeviceMemory(self.max_tokens * shape.token_bytes) for shape in self._shapes]
        self.nbytes += ids.nbytes + sum(memory.nbytes for memory in rows)
        return _Buffers(ids, rows, Event(), [Event() for _ in self.tables], Event(), {}, {})

    def _copy(self, source: DeviceArray, buffers: _Buffers, stream: int) -> int:
        """Copy row ids [T, layers, columns] into the buffers, and give their itemsize."""
        expected = (source.shape[0] if source.shape else 0, len(self.tables), self.columns)
        if source.dtype not in ("int32", "int64") or source.shape != expected:
            raise ParameterError(
                f"ids are {source.dtype} {source.shape}", remedy=f"give int32 or int64 {('T', *expected[1:])}"
            )
        self._check_tokens(expected[0])
        source.check_dense("ids")
        wait_for_producers((source,), stream)
        nbytes = math.prod(source.shape) * source.itemsize
        if nbytes:
            checked(bindings().cuMemcpyDtoDAsync(buffers.ids.address, source.address, nbytes, stream), "cannot copy")
        return source.itemsize

    def _hash(
        self, hasher: CudaHasher, ids: Any, source: DeviceArray, buffers: _Buffers, stream: int, **options: Any
    ) -> int:
        """Have the row ids of tokens made in the buffers, [T, layers of the hasher, columns]; give their itemsize."""
        if len(source.shape) != 1:
            raise ParameterError(f"token ids are {source.dtype} {source.shape}", remedy="give int32 or int64 [T]")
        self._check_tokens(source.shape[0])
        size = 4 if hasher.hasher.max_rows < 1 << 31 else 8
        shape = (source.shape[0], len(hasher.hasher.layout.layer_ids), self.columns)
        hasher(ids, View(buffers.ids.address, shape, f"<i{size}", keep=buffers.ids), stream, **options)
        return size

    def _check_tokens(self, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise ParameterError(f"{tokens} tokens", remedy=f"at most {self.max_tokens}, as the Prefetcher was made")

    def _gatherer(self, buffers: _Buffers, layer: int, tokens: int, itemsize: int) -> CudaGatherer:
        key = (layer, tokens, itemsize)
        known = buffers.gatherers.get(key)
        if known is None:
            if len(buffers.gatherers) >= MOST_VIEWS:
                buffers.gatherers.clear()
            place = self._layers[layer] if self._hasher else layer
            step = len(self.tables) * self.columns * itemsize
            address = buffers.ids.address + place * self.columns * itemsize
            ids = View(address, (tokens, self.columns), f"<i{itemsize}", (step, itemsize), keep=buffers.ids)
            out = self._view(buffers, layer, tokens)
            known = self.tables[layer].gatherer(ids, out, int(self._side), format=self._format)
            buffers.gatherers[key] = known
        return known

    def _view(self, buffers: _Buffers, layer: int, tokens: int) -> View:
        shape = self._shapes[layer]
        memory = buffers.rows[layer]
        return View(memory.address, (tokens, *shape.shape), shape.typestr, keep=memory)

    def _array(self, view: View) -> Any:
        torch = sys.modules.get("torch")
        if torch is None:
            return view
        tensor = torch.as_tensor(view, device=f"cuda:{self.device}")
        return tensor.view(torch.bfloat16) if self._format == "bf16" else tensor

    def _consumer(self, stream: Any) -> int:
        if stream is not None:
            return stream_handle(stream, ())
        if "torch" not in sys.modules:
            raise ParameterError("stream is missing", remedy="say on which stream the rows are used")
        return torch_stream(self.device)
