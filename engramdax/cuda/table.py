# SPDX-License-Identifier: Apache-2.0
"""A table as one GPU sees it; made by `Table.cuda`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax import plain
from engramdax._core import lib
from engramdax.backing import parse_size
from engramdax.cuda.arrays import on_host
from engramdax.cuda.calibration import Calibration
from engramdax.cuda.calls import Calls, Prepared, launch_error
from engramdax.cuda.driver import NO_CONTEXT, on_device, synchronise, use, uuid_of
from engramdax.cuda.formats import TYPESTRS, Format, Formats, RowsShape
from engramdax.cuda.forms import MOST_FORMS, form_key, form_of, launch_as
from engramdax.cuda.gatherer import CudaGatherer
from engramdax.cuda.host_rounds import HostRounds
from engramdax.cuda.hot import HotRows, rows_within
from engramdax.cuda.mix import Mix, cache_path, keep, read
from engramdax.cuda.part import Part
from engramdax.cuda.paths import SM_SHARE, check_path, lane_threads, open_lane
from engramdax.cuda.plans import Plans
from engramdax.cuda.registration import Registration, register
from engramdax.cuda.routes import routes
from engramdax.cuda.streams import stream_handle, torch_stream
from engramdax.errors import ClosedError, CudaError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from engramdax.cuda.lane import Lane
    from engramdax.table import Table

LAUNCH_ROWS: Final = 1 << 31
"""One launch takes fewer: kernels count them in 32 bits."""


class CudaTable:
    """Gathers rows of a table into memory of one GPU: out of the registered pool, and by way of the CPU team.

    closed: whether `close` was called. device_ptr: address at which the GPU sees row 0, 0 where the pool is not
    registered. nbytes: GPU memory that this object takes. mix: what comes which way; None with path="direct", and
    where "auto" chose that.
    May be used by several threads and streams at once; every call may be captured into a CUDA graph, but for
    those with `out=None` or ids on the host.
    """

    capturable: Final = True

    def __init__(
        self,
        table: Table,
        device: int = 0,
        *,
        hot: int | str | None = None,
        path: str = "auto",
        heads: tuple[int, int] | None = None,
        padded_heads: int | None = None,
        rows: tuple[int, int] | None = None,
        threads: int | None = None,
        sm_share: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        sm_share = SM_SHARE if sm_share is None else sm_share
        check_path(path, sm_share)
        lane_threads(threads)  # wrong options are refused before memory is registered
        _check_packed(table)
        self.table = table
        self.device = device
        self._part = Part(table, heads=heads, padded_heads=padded_heads, rows=rows)
        use(device)
        self._registration = self._register(path, progress)
        self.device_ptr = self._registration.device_pointer if self._registration else 0
        self.closed = False
        self._formats = Formats(table, self.device_ptr)
        self._plans = Plans(table, self.device_ptr, self._part, self._formats.float8_dim)
        self._lane = open_lane(table, device, path, threads=threads, sm_share=sm_share, registration=self._registration)
        self.nbytes = self._plans.nbytes + (self._lane.nbytes if self._lane else 0)
        self._routes = routes(table, device, self._formats, self._lane)
        self._calls = Calls(table, device, self._part, self._formats, self._plans, self._routes, self.most_rows)
        self._forms: dict[Any, bytes] = {}
        self._host: HostRounds | None = None
        self._host_mutex = threading.Lock()
        self._hot = None if hot is None else self._make_hot(hot)
        self.mix = self._first_mix(path)

    def _register(self, path: str, progress: Callable[[int], None] | None) -> Registration | None:
        table = self.table
        try:
            return register(
                table.attachment, table.entry.extent, table.row_bytes, device=self.device, progress=progress
            )
        except CudaError:
            if path != "staged":
                raise
            return None

    def _first_mix(self, path: str) -> Mix | None:
        if self._lane is None:
            return None
        if path == "staged":
            mix = Mix(from_rows=0, first_local=0, local_of_64=0)
        elif path == "mix":
            mix = Mix()
        else:
            known = read(self._mix_path(self._lane))
            if known is None:
                return self.calibrate()
            mix = known
        mix.apply(self._lane.core)
        return mix

    def _hot_share(self) -> float:
        """Give the share of reads that the hot rows serve, by the trace that they were chosen from."""
        points = ((0, 0.0), *self.table.hot_served)
        return float(np.interp(self.hot_rows, [rows for rows, _ in points], [share for _, share in points]))

    def _mix_path(self, lane: Lane) -> Path:
        hot = (self.hot_rows, self._hot_share())
        return cache_path(uuid_of(self.device), self.table.load_id, lane.threads, lane.blocks, hot)

    def calibrate(self) -> Mix:
        """Measure anew which share of a gather is best read which way, and keep it; takes a second or two.

        What others do on the machine meanwhile is measured, too; calls of other threads go by whatever mix is being
        tried. ParameterError where nothing is mixed: with path="direct", and for a pool that is not registered.
        """
        if self.closed:
            raise ClosedError(f"the CudaTable of {self.table.name} was closed")
        if self._lane is None or self._registration is None:
            raise ParameterError("rows of this CudaTable come on one way alone", remedy="say path='auto' or 'mix'")
        plan, route = self._plans.one_column(), self._dense_route()
        width = self.table.row_bytes

        def launch(ids: int, out: int, rows: int, stream: int) -> None:
            if result := lib.ed_cuda_gather(plan, route, ids, 0, 1, rows, out, width, 0, stream):
                raise self.launch_error(result)

        mix = getattr(self, "mix", None) or Mix()  # that of before, should there be no new one
        try:
            with on_device(self.device):
                calibration = Calibration(
                    self._lane.core,
                    self.table.rows,
                    width,
                    launch,
                    hot=self._hot.sample if self._hot else None,
                    hot_share=self._hot_share(),
                )
                try:
                    mix = calibration.run()
                finally:
                    calibration.close()
        finally:
            mix.apply(self._lane.core)
        self.mix = mix
        keep(self._mix_path(self._lane), self.mix)
        return self.mix

    def _dense_route(self) -> Any:
        """Give the route for raw rows that lie dense in memory of their own."""
        return self._routes["raw", self._formats.unit_at(0, "raw")]

    def check(self) -> None:
        """Raise what went wrong in gathers before, once: PoisonedRowsError, or CudaError for rows that never came.

        The next gather that is mixed raises it in its place. Rows of such gathers are zeros; see docs/gpu.md. Waits
        for nothing: synchronise first to hear of all that was launched.
        """
        for lane in self._lanes():
            if lane and (found := lane.error()):
                raise found

    def _lanes(self) -> tuple[Lane | None, ...]:
        return (self._lane, self._host.lane if self._host else None)

    def gather(
        self,
        ids: Any,
        out: Any = None,
        stream: Any = None,
        *,
        format: Format = "raw",  # noqa: A002 - the name of the interface
        per_head: bool = False,
    ) -> Any:
        """Start a gather on a stream and return at once.

        ids: int32 or int64 on the device, [..., C]; the last dimension is dense, those before it may be strided
        as one. -1, and every id outside the table or this object's rows, gives a row of zeros. Ids on the host
        (numpy's arrays, torch's tensors) are read before the call returns; those calls cannot be captured, and take
        turns: each may wait until the GPU is done with the one before.
        out: [..., C, R] on the device, or [..., padded, R] with a head range: R is row_bytes of uint8 (or the
        same bytes as another type) for format="raw", and the number of values for "bf16" and "fp16", of which
        float8 x 2**e tables have them. The last dimension is dense, those before may be strided, C by one and
        the rest as one. None: a new array, torch's if `ids` is; refused while the stream is captured.
        stream: see `engramdax.cuda.streams.stream_handle`; None is torch's current stream.

        Nothing synchronises or allocates when `out` is given and ids are on the device. Gives `out`.

        ParameterError for arrays, a format or a stream that do not do; ClosedError after `close`; CudaError for a
        launch that the driver refuses. A call that is mixed raises what `check` would, and launches nothing then.
        """
        result = plain.cuda_gather(self._forms, ids, out, stream, format, per_head)
        if result is None:
            # C knows no such form, or knows no such tensors: those of torch before 2.10 are looked at in Python.
            key = None if out is None else form_key(ids, out, format, per_head)
            known = self._forms.get(key)
            if known is not None:
                handle = torch_stream(self.device) if stream is None else stream_handle(stream, ())
                result = launch_as(known, ids.data_ptr(), out.data_ptr(), handle)
        if result is None:
            if (host_ids := on_host(ids)) is not None:
                self._check_open()
                call = self._calls.prepare_host(host_ids, out, stream, format=format, per_head=per_head)
                self._host_rounds().launch(call)
                return out
            prepared = self._prepare(ids, out, stream, format=format, per_head=per_head)
            if key is not None:
                if len(self._forms) >= MOST_FORMS:
                    self._forms.clear()
                self._forms[key] = form_of(prepared.launch)
            return CudaGatherer(self, prepared)()
        if result == NO_CONTEXT:
            return self.gatherer(ids, out, stream, format=format, per_head=per_head)()
        if result:
            raise self.launch_error(result)
        return out

    def launch_error(self, result: int) -> EngramdaxError:
        """Give the error for a launch that the driver refused, or that tells of one before."""
        return launch_error(self.table, self._lanes(), result)

    def gatherer(
        self,
        ids: Any,
        out: Any,
        stream: Any = None,
        *,
        format: Format = "raw",  # noqa: A002
        per_head: bool = False,
    ) -> CudaGatherer:
        """Prepare a gather of whatever `ids` holds at the time of each launch; arguments as for `gather`.

        A call of the result costs one call of the driver.
        """
        if out is None:
            raise ParameterError("a prepared gather needs its out", remedy="give an array for the rows")
        return CudaGatherer(self, self._prepare(ids, out, stream, format=format, per_head=per_head))

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedError(f"the CudaTable of {self.table.name} was closed")

    def _prepare(self, ids: Any, out: Any, stream: Any, *, format: Format, per_head: bool) -> Prepared:  # noqa: A002
        self._check_open()
        return self._calls.prepare(ids, out, stream, format=format, per_head=per_head)

    def _host_rounds(self) -> HostRounds:
        """Give what gathers for ids of the host, made at the first of them, which is not captured."""
        with self._host_mutex:
            if self._host is None:
                use(self.device)  # of a thread that has not used CUDA yet
                lane = self._lane.another() if self._lane else None
                self._host = HostRounds(self._calls, lane)
                self.nbytes += lane.nbytes if lane else 0
            return self._host

    def rows_shape(self, columns: int, format: Format) -> RowsShape:  # noqa: A002
        """Give the form of the rows of one token with so many ids."""
        self._formats.check(format)
        return RowsShape((self._part.padded(columns), self._formats.width(format)), TYPESTRS[format])

    def _make_hot(self, hot: int | str) -> HotRows:
        budget = parse_size(hot) if isinstance(hot, str) else int(hot)
        ids = self.table.hot
        if ids is None:
            raise ParameterError(
                f"table {self.table.name} has no hot list", remedy="make one with `engramdax trace` and `hot set`"
            )
        # What the lane takes is not the hot rows'.
        ids = self._part.within(ids)[: rows_within(budget - self._plans.nbytes, self.table.row_bytes)]
        built = HotRows(self.table, self.device, self._plans.one_column(), self._dense_route().direct, ids)
        self._plans.add_hot(built.fields)
        self.nbytes += built.nbytes
        return built

    @property
    def most_rows(self) -> int:
        """Give how many rows one call may ask for."""
        if self._lane and not self._registration:
            return int(self._lane.core.most_rows)
        return LAUNCH_ROWS - 1

    @property
    def lane(self) -> Lane | None:
        """Give what rows by way of the CPU go through; None where there are none."""
        return self._lane

    @property
    def chunk_bytes(self) -> int:
        """Give the bytes that each call of the driver registered; the last chunk may be shorter."""
        return self._registration.chunk if self._registration else 0

    @property
    def hot_rows(self) -> int:
        """Give the number of hot rows; all of the list that fits the budget."""
        return self._hot.count if self._hot else 0

    @property
    def hot_seconds(self) -> float:
        """Give how long the hot rows took to build, in seconds."""
        return self._hot.seconds if self._hot else 0.0

    def close(self) -> None:
        """Give GPU memory and registration back, once the GPU has done what was launched. May be called twice.

        Not while another thread is in a call of this object, and no graph that holds such calls may be replayed later.
        `check` tells of gathers until then, after it, too.
        """
        if self.closed:
            return
        self.closed = True
        with on_device(self.device):
            try:
                synchronise()
            finally:  # a GPU that failed does nothing more either
                for lane in self._lanes():
                    if lane:
                        lane.close()
                self._hot = None
                self._plans.close()
                self._forms.clear()
                self._registration = None

    def hits(self) -> int:
        """Give how many rows were served from the hot rows so far; waits for the GPU."""
        return self._hot.hits() if self._hot else 0


def _check_packed(table: Table) -> None:
    layout = table.layout
    if {field.stride for field in layout.fields} != {layout.row_bytes} or layout.fields[0].offset:
        raise ParameterError(
            f"table {table.name} is not packed", remedy="load it with engramdax, which packs each row in one piece"
        )
