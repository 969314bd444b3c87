# SPDX-License-Identifier: Apache-2.0
"""Rows of several layers, fetched on a stream of their own while the layers before are computed."""

from __future__ import annotations

import sys
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engramdax.cuda.arrays import (
    DeviceArray,
    device_array,
    is_captured,
    stream_handle,
    torch_stream,
    wait_for_producers,
)
from engramdax.cuda.driver import DeviceMemory, bindings, checked, on_device, use
from engramdax.errors import ClosedError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from engramdax.cuda.hasher import CudaHasher
    from engramdax.cuda.table import CudaGatherer, CudaTable, Format

ID_BYTES: Final = 8
MOST_FORMS: Final = 64


class _View:
    """An array in memory of this object, for whoever reads `__cuda_array_interface__`."""

    def __init__(
        self, memory: DeviceMemory, shape: tuple[int, ...], typestr: str, strides: Any = None, at: int = 0
    ) -> None:
        self._memory = memory  # lives as long as whoever has the array
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (memory.address + at, False),
            "strides": strides,
            "stream": None,
            "version": 3,
        }


@dataclass
class _Buffers:
    """Where one step's ids and rows lie, and the events that tell of them."""

    ids: DeviceMemory
    rows: list[DeviceMemory]
    begun: Any
    fetched: list[Any]
    done: Any
    gatherers: dict[Any, CudaGatherer]
    views: dict[Any, Any]
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

        ids: int32 or int64 on the device, dense: row ids [T, layers, columns], or with a hasher token ids [T], and
        starts, blocked and history as for `CudaHasher`. They are copied, or hashed, on `stream`, and may be changed
        by what follows there. stream: as for `CudaTable.gather`.
        """
        if self.closed:
            raise ClosedError("the Prefetcher was closed")
        source = device_array(ids, "ids")
        handle = stream_handle(stream, (source,))
        driver = bindings()
        captured = is_captured(handle)
        buffers = self._next(captured=captured)
        if self._hasher and len(source.shape) == 1:
            itemsize = self._hash(ids, source, buffers, handle, starts=starts, blocked=blocked, history=history)
        else:
            itemsize = self._copy(source, buffers, handle)
        tokens = buffers.tokens = source.shape[0]
        checked(driver.cuEventRecord(buffers.begun, handle), "cannot record an event")
        checked(driver.cuStreamWaitEvent(self._side, buffers.begun, 0), "cannot wait for an event")
        for layer, fetched in enumerate(buffers.fetched):
            if tokens:
                self._gatherer(buffers, layer, tokens, itemsize)()
            checked(driver.cuEventRecord(fetched, self._side), "cannot record an event")
        checked(driver.cuEventRecord(buffers.done, self._side), "cannot record an event")
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
        wait = bindings().cuStreamWaitEvent
        checked(wait(self._consumer(stream), buffers.fetched[layer], 0), "cannot wait for an event")
        key = (layer, buffers.tokens)
        if key not in buffers.views:
            if len(buffers.views) >= MOST_FORMS:
                buffers.views.clear()
            buffers.views[key] = self._array(self._view(buffers, layer, buffers.tokens))
        return buffers.views[key]

    def finish(self, stream: Any = None) -> None:
        """Let `stream` wait for all layers: a captured step has to be joined before the capture ends."""
        buffers = self._started()
        checked(bindings().cuStreamWaitEvent(self._consumer(stream), buffers.done, 0), "cannot wait for an event")

    def close(self) -> None:
        """Give memory and stream back, once the GPU has done what was started. May be called twice.

        Rows that somebody still has stay until then.
        """
        if self.closed:
            return
        self.closed = True
        with on_device(self.device):
            try:
                checked(bindings().cuCtxSynchronize(), "the GPU failed")
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
                with _allowed_while_capturing():
                    self._captured = self._buffers()
            return self._captured
        return self._sets[self._turn]

    def _buffers(self) -> _Buffers:
        driver = bindings()
        ids = DeviceMemory(self.max_tokens * len(self.tables) * self.columns * ID_BYTES)
        rows = [DeviceMemory(self.max_tokens * shape.token_bytes) for shape in self._shapes]
        self.nbytes += ids.nbytes + sum(memory.nbytes for memory in rows)
        flag = driver.CUevent_flags.CU_EVENT_DISABLE_TIMING
        begun, done, *fetched = (
            checked(driver.cuEventCreate(flag), "cannot make an event") for _ in range(2 + len(self.tables))
        )
        for event in (begun, done, *fetched):
            # One that is still to be reached goes when it was.
            weakref.finalize(ids, driver.cuEventDestroy, event).atexit = False
        return _Buffers(ids, rows, begun, fetched, done, {}, {})

    def _copy(self, source: DeviceArray, buffers: _Buffers, stream: int) -> int:
        expected = (source.shape[0] if source.shape else 0, len(self.tables), self.columns)
        if source.dtype not in ("int32", "int64") or source.shape != expected:
            raise ParameterError(
                f"ids are {source.dtype} {source.shape}", remedy=f"give int32 or int64 {('T', *expected[1:])}"
            )
        self._check_tokens(expected[0])
        dense = [source.itemsize]
        for length in reversed(source.shape[1:]):
            dense.insert(0, dense[0] * length)
        if any(n > 1 and have != want for n, have, want in zip(source.shape, source.strides, dense, strict=True)):
            raise ParameterError(f"ids are strided {source.strides}", remedy="make them contiguous")
        wait_for_producers((source,), stream)
        nbytes = dense[0] * expected[0]
        if nbytes:
            checked(bindings().cuMemcpyDtoDAsync(buffers.ids.address, source.address, nbytes, stream), "cannot copy")
        return source.itemsize

    def _hash(self, ids: Any, source: DeviceArray, buffers: _Buffers, stream: int, **options: Any) -> int:
        hasher = self._hasher
        assert hasher is not None  # noqa: S101 - the caller has looked
        self._check_tokens(source.shape[0])
        size = 4 if hasher.hasher.max_rows < 1 << 31 else 8
        shape = (source.shape[0], len(hasher.hasher.layout.layer_ids), self.columns)
        hasher(ids, _View(buffers.ids, shape, f"<i{size}"), stream, **options)
        return size

    def _check_tokens(self, tokens: int) -> None:
        if tokens > self.max_tokens:
            raise ParameterError(f"{tokens} tokens", remedy=f"at most {self.max_tokens}, as the Prefetcher was made")

    def _gatherer(self, buffers: _Buffers, layer: int, tokens: int, itemsize: int) -> CudaGatherer:
        key = (layer, tokens, itemsize)
        known = buffers.gatherers.get(key)
        if known is None:
            if len(buffers.gatherers) >= MOST_FORMS:
                buffers.gatherers.clear()
            place = self._layers[layer] if self._hasher else layer
            step = len(self.tables) * self.columns * itemsize
            at = place * self.columns * itemsize
            ids = _View(buffers.ids, (tokens, self.columns), f"<i{itemsize}", (step, itemsize), at)
            out = self._view(buffers, layer, tokens)
            known = self.tables[layer].gatherer(ids, out, int(self._side), format=self._format)
            buffers.gatherers[key] = known
        return known

    def _view(self, buffers: _Buffers, layer: int, tokens: int) -> _View:
        shape = self._shapes[layer]
        return _View(buffers.rows[layer], (tokens, *shape.shape), shape.typestr)

    def _array(self, view: _View) -> Any:
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


@contextmanager
def _allowed_while_capturing() -> Iterator[None]:
    """Let this thread allocate while some stream is captured: what it allocates has no part in that."""
    driver = bindings()
    relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    before = checked(driver.cuThreadExchangeStreamCaptureMode(relaxed), "cannot allocate while capturing")
    try:
        yield
    finally:
        driver.cuThreadExchangeStreamCaptureMode(before)
