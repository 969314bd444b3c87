# SPDX-License-Identifier: Apache-2.0
"""A table as one GPU sees it; made by `Table.cuda`."""

from __future__ import annotations

import math
import sys
import threading
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from engramdax._core import ffi, lib
from engramdax.backing import parse_size
from engramdax.cuda.arrays import (
    DeviceArray,
    device_array,
    is_captured,
    on_host,
    stream_handle,
    torch_stream,
    wait_for_producers,
)
from engramdax.cuda.driver import DeviceMemory, bindings, checked, error, on_device, use
from engramdax.cuda.host_rounds import HostRounds
from engramdax.cuda.hot import HotRows, rows_within
from engramdax.cuda.kernels import function
from engramdax.cuda.lane import MOST_IDS, Lane
from engramdax.cuda.mix import Calibration, Mix, cache_path, keep, read, sane_threads
from engramdax.cuda.ranks import have_gpu, join
from engramdax.cuda.registration import Registration, register
from engramdax.errors import ClosedError, CudaError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from engramdax.table import Table

Format = Literal["raw", "bf16", "fp16"]
PATHS: Final = ("auto", "direct", "mix", "staged")
MIX_BYTES: Final = 4 << 30
"""Tables below this are read directly under "auto": the GPU's address translation reaches far enough."""

MIX_THREADS: Final = 4
"""With fewer threads, "auto" does not try the CPU's way."""

SM_SHARE: Final = 1 / 8
MOST_FORMS: Final = 256
NO_CONTEXT: Final = 201  # CUDA_ERROR_INVALID_CONTEXT
TROUBLE: Final = int(lib.ED_CUDA_TROUBLE)
LAUNCH_ROWS: Final = 1 << 31
UNITS: Final = (16, 8, 4, 2, 1)


class CudaTable:
    """Gathers rows of a table into memory of one GPU, straight out of the registered pool.

    closed: whether `close` was called. device_ptr: address at which the GPU sees row 0. nbytes: GPU memory that
    this object takes.
    May be used by several threads and streams at once; every call may be captured into a CUDA graph, but for
    those with `out=None`.
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
        sm_share: float = SM_SHARE,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        if path not in PATHS:
            raise ParameterError(f"path={path!r} is unknown", remedy=f"say {' or '.join(PATHS)}")
        layout = table.layout
        strides = {field.stride for field in layout.fields}
        if strides != {layout.row_bytes} or layout.fields[0].offset:
            raise ParameterError(
                f"table {table.name} is not packed", remedy="load it with engramdax, which packs each row in one piece"
            )
        if not isinstance(sm_share, int | float) or not 0 < sm_share <= 1:
            raise ParameterError(f"sm_share={sm_share!r} is no share", remedy="give a number above 0, at most 1")
        low, high = (0, table.rows) if rows is None else rows
        if not 0 <= low <= high <= table.rows:
            raise ParameterError(f"rows {low} to {high} are no part of {table.rows}")
        if heads is not None and (heads[0] < 0 or heads[1] < 1 or (padded_heads or heads[1]) < heads[1]):
            raise ParameterError(f"heads={heads}, padded_heads={padded_heads} make no range")
        wanted_threads = sane_threads(threads)
        self.table = table
        self.device = device
        self._float8_dim = _float8_dim(table)
        use(device)
        self._registration = self._register(path, progress)
        self.device_ptr = self._registration.device_pointer if self._registration else 0
        self.nbytes = 0
        self.closed = False
        self._heads = heads
        self._padded = padded_heads
        plan: Any = ffi.new("struct ed_cuda_gather *")
        plan.base, plan.stride, plan.row_bytes = self.device_ptr, layout.row_bytes, layout.row_bytes
        plan.row_low, plan.row_high, plan.dim = low, high, self._float8_dim
        self._plan = plan
        self._begins: DeviceMemory | None = None
        if table.heads:
            begins = np.array([0, *accumulate(table.heads)], np.int64)
            self._begins = DeviceMemory(begins.nbytes)
            self._begins.write(begins)
            self.nbytes += begins.nbytes
        self._shared = threads is None
        self._lane = self._make_lane(path, wanted_threads, sm_share)
        names = {("raw", unit): f"raw_{unit}" for unit in UNITS}
        if self._float8_dim:
            names |= {("bf16", 16): "float8_bf16", ("fp16", 16): "float8_fp16"}
        self._routes = {key: self._route(name) for key, name in names.items()}
        self._plans: dict[tuple[int, int, int, bool], Any] = {}
        self._forms: dict[Any, _Form] = {}
        self._host: HostRounds | None = None
        self._making_host = threading.Lock()
        self._hot: HotRows | None = None
        if hot is not None:
            self._hot = self._make_hot(hot)
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

    def _make_lane(self, path: str, threads: int, sm_share: float) -> Lane | None:
        small = self.table.nbytes < MIX_BYTES or threads < MIX_THREADS
        if path == "direct" or (path == "auto" and (small or self.table.rows > MOST_IDS)):
            return None
        if self.table.rows > MOST_IDS:
            raise ParameterError(
                f"table {self.table.name} has {self.table.rows} rows, of which ids of 32 bits name {MOST_IDS}",
                remedy="say path='direct'",
            )
        attribute = bindings().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
        sms = int(checked(bindings().cuDeviceGetAttribute(attribute, self.device), "the device does not tell its size"))
        if not have_gpu(self._uuid()) and path == "auto":
            return None
        join()
        lane = Lane(
            self.table,
            self.device,
            threads=threads,
            shared=self._shared,
            blocks=max(1, int(sms * sm_share)),
            registration=self._registration,
        )
        self.nbytes += lane.nbytes
        return lane

    def _route(self, name: str) -> Any:
        lane = self._lane.core if self._lane else ffi.NULL
        mixed = function(self.device, f"mixed_{name}") if self._lane else 0
        direct = function(self.device, f"gather_{name}")
        return ffi.new("struct ed_cuda_route *", {"direct": direct, "mixed": mixed, "lane": lane})

    def _first_mix(self, path: str) -> Mix | None:
        if self._lane is None:
            return None
        if path == "staged":
            mix = Mix(from_rows=0, first_local=0, local_of_64=0)
        elif path == "mix":
            mix = Mix()
        else:
            known = read(self._mix_path())
            if known is None:
                return self.calibrate()
            mix = known
        mix.apply(self._lane.core, missed=1 - self._hot_share())
        return mix

    def _hot_share(self) -> float:
        """Give the share of reads that the hot rows serve, by the trace that they were chosen from."""
        points = ((0, 0.0), *self.table.hot_served)
        return float(np.interp(self.hot_rows, [rows for rows, _ in points], [share for _, share in points]))

    def _uuid(self) -> str:
        uuid = checked(bindings().cuDeviceGetUuid(self.device), "the device does not tell its uuid")
        return bytes(uuid.bytes).hex()

    def _mix_path(self) -> Any:
        lane = self._lane
        return cache_path(self._uuid(), self.table.load_id, lane.threads if lane else 0, self.hot_rows)

    def calibrate(self) -> Mix:
        """Measure anew which share of a gather is best read which way, and keep it; takes a second or two.

        What others do on the machine meanwhile is measured, too. ParameterError with path="direct", where nothing
        is mixed.
        """
        if self.closed:
            raise ClosedError(f"the CudaTable of {self.table.name} was closed")
        if self._lane is None or self._registration is None:
            raise ParameterError("rows of this CudaTable come on one way alone", remedy="say path='auto' or 'mix'")
        unit = next(n for n in UNITS if (self.table.row_bytes | self.device_ptr) % n == 0)
        plan, route = self._plan_for(0, 1, 1, per_head=False), self._routes["raw", unit]
        width = self.table.row_bytes

        def launch(ids: int, out: int, rows: int, stream: int) -> None:
            if result := lib.ed_cuda_gather(plan, route, ids, 0, 1, rows, out, width, 0, stream):
                raise self.launch_error(result)

        mix = getattr(self, "mix", None) or Mix()  # that of before, should there be no new one
        try:
            with on_device(self.device):
                calibration = Calibration(self._lane.core, self.table.rows, width, launch)
                try:
                    mix = calibration.run()
                finally:
                    calibration.close()
        finally:
            mix.apply(self._lane.core, missed=1 - self._hot_share())
        self.mix = mix
        keep(self._mix_path(), self.mix)
        return self.mix

    def check(self) -> None:
        """Raise what went wrong in gathers before, once: PoisonedRowsError, or CudaError for rows that never came.

        The next gather raises it, too. Rows of such gathers are zeros; see docs/gpu.md.
        """
        for lane in (self._lane, self._host.lane if self._host else None):
            if lane and (found := lane.error()):
                raise found

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
        stream: see `engramdax.cuda.arrays.stream_handle`; None is torch's current stream.

        Nothing synchronises or allocates when `out` is given. Gives `out`.
        """
        key = None if out is None else _torch_key(ids, out, format, per_head)
        known = self._forms.get(key)
        if known is None or (out.data_ptr() & (known.align - 1)):
            if (host_ids := on_host(ids)) is not None:
                return self._gather_host(host_ids, out, stream, format=format, per_head=per_head)
            prepared = self._prepare(ids, out, stream, format=format, per_head=per_head)
            if key is not None:
                self._remember(key, prepared)
            return prepared()
        result = lib.ed_cuda_gather(
            known.plan,
            known.route,
            ids.data_ptr(),
            known.ids_64,
            known.ids_stride,
            known.outer,
            out.data_ptr(),
            known.out_stride,
            known.column_stride,
            torch_stream(self.device) if stream is None else stream_handle(stream, ()),
        )
        if result == NO_CONTEXT:
            return self._prepare(ids, out, stream, format=format, per_head=per_head)()
        if result:
            raise self.launch_error(result)
        return out

    def _gather_host(
        self,
        ids: npt.NDArray[Any],
        out: Any,
        stream: Any,
        *,
        format: Format,  # noqa: A002
        per_head: bool,
    ) -> Any:
        if self.closed:
            raise ClosedError(f"the CudaTable of {self.table.name} was closed")
        self._check_format(format)
        if out is None:
            raise ParameterError("ids on the host need an out", remedy="give an array on the GPU for the rows")
        flat, shape = self._rows_of(ids, per_head=per_head)
        target = device_array(out, "out")
        if target.device not in (None, self.device):
            raise ParameterError(f"out is on device {target.device}, the table on {self.device}")
        _check_out(target, shape, self.table.row_bytes if format == "raw" else 2 * self._float8_dim, format)
        handle = stream_handle(stream, (target,))
        if is_captured(handle):
            raise CudaError("ids on the host cannot be captured", remedy="give ids on the device")
        wait_for_producers((target,), handle)
        by_heads = per_head or self._heads is not None
        out_stride, column_stride = _out_form(target, columns=len(shape) > 1 or by_heads)
        columns = flat.shape[1]
        with self._making_host:
            if self._host is None:
                self._host = HostRounds(self, self._make_host_lane())
        route = self._host.route(
            self._routes[format, self.unit_at(target.address | out_stride | column_stride, format)]
        )
        plan = self._plan_for(0, columns, columns, per_head=False)
        self._host.launch(plan, route, flat, (target.address, out_stride, column_stride), handle)
        return out

    def _rows_of(self, ids: npt.NDArray[Any], *, per_head: bool) -> tuple[npt.NDArray[np.int64], tuple[int, ...]]:
        """Give the row ids [outer, columns] of this object that `ids` asks for, -1 for zeros, and the shape of rows."""
        if ids.dtype not in (np.int32, np.int64):
            raise ParameterError(f"ids are {ids.dtype}", remedy="give int32 or int64")
        by_heads = per_head or self._heads is not None
        last = len(ids.shape) > 1 or (len(ids.shape) == 1 and by_heads)
        columns = ids.shape[-1] if last else 1
        wanted = ids.reshape(math.prod(ids.shape[:-1]) if last else ids.size, columns).astype(np.int64)
        if per_head:
            if not self.table.heads or columns != len(self.table.heads):
                raise ParameterError(f"ids of shape {ids.shape} do not end in the heads of table {self.table.name}")
            begins = np.array([0, *accumulate(self.table.heads)])
            wanted = np.where((wanted >= 0) & (wanted < np.diff(begins)), wanted + begins[:-1], -1)
        wanted[(wanted < self._plan.row_low) | (wanted >= self._plan.row_high)] = -1
        first, count = self._heads or (0, columns)
        if first + count > columns:
            raise ParameterError(f"ids of shape {ids.shape} do not hold heads {first} to {first + count - 1}")
        padded = self._padded or count
        if wanted.shape[0] * padded >= LAUNCH_ROWS:
            raise ParameterError(f"{wanted.shape[0] * padded} rows in one call", remedy="gather fewer at once")
        found = np.full((wanted.shape[0], padded), -1, np.int64)
        found[:, :count] = wanted[:, first : first + count]
        return found, (*ids.shape[:-1], padded) if len(ids.shape) > 1 or by_heads else ids.shape

    def _make_host_lane(self) -> Lane | None:
        """Give a lane for ids of the host; None where rows have to be read directly."""
        if self._lane is None or self.table.rows > MOST_IDS:
            return None
        core = self._lane.core
        lane = Lane(
            self.table,
            self.device,
            threads=self._lane.threads,
            shared=self._shared,
            blocks=int(core.staged_blocks),
            registration=self._registration,
        )
        lane.core.deadline_us, lane.core.deadline_row = core.deadline_us, core.deadline_row
        self.nbytes += lane.nbytes
        return lane

    def _remember(self, key: Any, prepared: CudaGatherer) -> None:
        plan, route, _, ids_64, ids_stride, outer, address, out_stride, column_stride, _ = prepared.arguments
        if len(self._forms) >= MOST_FORMS:
            self._forms.clear()
        align = address & -address if address else UNITS[0]
        form = _Form(plan, route, ids_64, ids_stride, outer, out_stride, column_stride, min(align, UNITS[0]))
        self._forms[key] = form

    def launch_error(self, result: int) -> EngramdaxError:
        """Give the error for a launch that the driver refused, or that tells of one before."""
        if result == TROUBLE:
            for lane in (self._lane, self._host.lane if self._host else None):
                if lane and (found := lane.error()):
                    return found
            return CudaError(
                f"a gather of table {self.table.name} before went wrong, as another thread was told",
                remedy="call again: this one was not started",
            )
        return error(result, f"the gather of table {self.table.name} cannot be launched")

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
        return self._prepare(ids, out, stream, format=format, per_head=per_head)

    def _prepare(self, ids: Any, out: Any, stream: Any, *, format: Format, per_head: bool) -> CudaGatherer:  # noqa: A002
        if self.closed:
            raise ClosedError(f"the CudaTable of {self.table.name} was closed")
        self._check_format(format)
        source = device_array(ids, "ids")
        if source.dtype not in ("int32", "int64"):
            raise ParameterError(f"ids are {source.dtype}", remedy="give int32 or int64")
        if per_head and self._begins is None:
            raise ParameterError(f"table {self.table.name} has no heads", remedy="load it with its config.json")
        by_heads = per_head or self._heads is not None
        outer, ids_stride, columns = _ids_form(source, by_heads=by_heads)
        if per_head and self.table.heads and columns != len(self.table.heads):
            raise ParameterError(f"ids of shape {source.shape} do not end in {len(self.table.heads)} heads")
        first, count = self._heads or (0, columns)
        if first + count > columns:
            raise ParameterError(f"ids of shape {source.shape} do not hold heads {first} to {first + count - 1}")
        padded = self._padded or count
        shape = source.shape[:-1] + ((padded,) if by_heads or len(source.shape) > 1 else source.shape[-1:])
        row_bytes = self.table.row_bytes if format == "raw" else 2 * self._float8_dim
        if out is None:
            out = self._new_out(ids, source, shape, stream, format)
        target = device_array(out, "out")
        for array, what in ((source, "ids"), (target, "out")):
            if array.device not in (None, self.device):
                raise ParameterError(
                    f"{what} is on device {array.device}, the table on {self.device}",
                    remedy="make a CudaTable for each device",
                )
        _check_out(target, shape, row_bytes, format)
        handle = stream_handle(stream, (source, target))
        if source.producer is not None or target.producer is not None:
            wait_for_producers((source, target), handle)
        out_stride, column_stride = _out_form(target, columns=len(shape) > 1 or by_heads)
        arguments = (
            self._plan_for(first, count, padded, per_head=per_head),
            self._routes[format, self.unit_at(target.address | out_stride | column_stride, format)],
            source.address,
            source.itemsize == 8,
            ids_stride,
            outer,
            target.address,
            out_stride,
            column_stride,
            handle,
        )
        if outer * padded > (most := self.most_rows):
            raise ParameterError(f"{outer * padded} rows in one call", remedy=f"gather at most {most}")
        return CudaGatherer(self, arguments, (source.keep, target.keep), out)

    def _check_format(self, format: Format) -> None:  # noqa: A002
        if format not in ("raw", "bf16", "fp16") or (format != "raw" and not self._float8_dim):
            raise ParameterError(
                f"format={format!r} does not go with table {self.table.name}",
                remedy="say raw; float8 tables with scales have bf16 and fp16, too",
            )

    def unit_at(self, places: int, format: Format) -> int:  # noqa: A002
        """Give how many bytes the kernels move at once for rows of out at multiples of `places`, ORed together."""
        if format == "raw":
            return next(n for n in UNITS if (places | self.table.row_bytes | self.device_ptr) % n == 0)
        if places % 16:
            raise ParameterError("rows of out do not lie at multiples of 16 bytes", remedy="give an aligned array")
        return 16

    def _plan_for(self, first: int, count: int, padded: int, *, per_head: bool) -> Any:
        key = (first, count, padded, per_head)
        plan: Any = self._plans.get(key)
        if plan is None:
            plan = ffi.new("struct ed_cuda_gather *", self._plan[0])
            plan.first_column, plan.columns, plan.out_columns = first, count, padded
            plan.head_begins = self._begins.address if per_head and self._begins else 0
            if self._hot:
                for name, value in self._hot.fields.items():
                    setattr(plan.hot, name, value)
            self._plans[key] = plan
        return plan

    def _new_out(self, ids: Any, source: DeviceArray, shape: tuple[int, ...], stream: Any, format: Format) -> Any:  # noqa: A002
        handle = stream_handle(stream, (source,))
        if is_captured(handle):
            raise CudaError("out=None allocates, which a captured stream cannot", remedy="give an out")
        last = self.table.row_bytes if format == "raw" else self._float8_dim
        if source.torch:
            torch = sys.modules["torch"]
            dtype = {"raw": torch.uint8, "bf16": torch.bfloat16, "fp16": torch.float16}[format]
            return torch.empty((*shape, last), dtype=dtype, device=ids.device)
        typestr = {"raw": "|u1", "bf16": "<u2", "fp16": "<f2"}[format]
        size = 1 if format == "raw" else 2
        return DeviceMemory(int(np.prod(shape)) * last * size, shape=(*shape, last), typestr=typestr)

    def rows_shape(self, columns: int, format: Format) -> RowsShape:  # noqa: A002
        """Give the form of the rows of one token with so many ids."""
        self._check_format(format)
        padded = self._padded or (self._heads[1] if self._heads else columns)
        typestr = {"raw": "|u1", "bf16": "<u2", "fp16": "<f2"}[format]
        width = self.table.row_bytes if format == "raw" else self._float8_dim
        return RowsShape((padded, width), typestr)

    def _make_hot(self, hot: int | str) -> HotRows:
        budget = parse_size(hot) if isinstance(hot, str) else int(hot)
        ids = self.table.hot
        if ids is None:
            raise ParameterError(
                f"table {self.table.name} has no hot list", remedy="make one with `engramdax trace` and `hot set`"
            )
        ids = ids[(ids >= self._plan.row_low) & (ids < self._plan.row_high)]
        if self._heads is not None and self.table.heads:
            begins = [0, *accumulate(self.table.heads)]
            first, count = self._heads
            ids = ids[(ids >= begins[first]) & (ids < begins[min(first + count, len(begins) - 1)])]
        # What the lane takes is not the hot rows'.
        others = self.nbytes - (self._lane.nbytes if self._lane else 0)
        ids = ids[: rows_within(budget - others, self.table.row_bytes)]
        stride = self.table.row_bytes
        unit = next(n for n in UNITS if (stride | self.device_ptr) % n == 0)
        plan, route = self._plan_for(0, 1, 1, per_head=False), self._routes["raw", unit]
        built = HotRows(self.table, self.device, plan, route.direct, ids)
        self._plans.clear()  # the one that fetched the rows knows nothing of them
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
                checked(bindings().cuCtxSynchronize(), "the GPU failed")
            finally:  # a GPU that failed does nothing more either
                if self._lane:
                    self._lane.close()
                if self._host:
                    self._host.close()
                self._hot = None
                self._plans.clear()
                self._forms.clear()
                self._registration = self._begins = None

    def hits(self) -> int:
        """Give how many rows were served from the hot rows so far; waits for the GPU."""
        return self._hot.hits() if self._hot else 0


@dataclass(frozen=True, slots=True)
class RowsShape:
    """The form of one token's rows."""

    shape: tuple[int, int]
    typestr: str

    @property
    def token_bytes(self) -> int:
        """Give the bytes of it."""
        return self.shape[0] * self.shape[1] * int(self.typestr[2:])


@dataclass(frozen=True, slots=True)
class _Form:
    """All arguments of a launch but addresses and stream, for tensors of one form."""

    plan: Any
    route: Any
    ids_64: bool
    ids_stride: int
    outer: int
    out_stride: int
    column_stride: int
    align: int
    """What the address of the output must be a multiple of."""


def _torch_key(ids: Any, out: Any, *rest: Any) -> Any:
    """Give what the form of a call with torch's tensors depends on; None for other arrays."""
    try:
        return (
            ids.shape,
            ids.stride(),
            ids.dtype,
            ids.get_device(),
            out.shape,
            out.stride(),
            out.dtype,
            out.get_device(),
            *rest,
        )
    except (AttributeError, TypeError):
        return None


class CudaGatherer:
    """A gather whose arrays were checked once; made by `CudaTable.gatherer`. A call launches it and gives `out`."""

    __slots__ = ("_keep", "arguments", "out", "table")

    def __init__(self, table: CudaTable, arguments: tuple[Any, ...], keep: Any, out: Any) -> None:
        self.table = table
        self.arguments = arguments
        self._keep = keep
        self.out = out

    def __call__(self) -> Any:
        """Launch on the stream that was given."""
        if self.table.closed:
            raise ClosedError(f"the CudaTable of {self.table.table.name} was closed")
        if result := lib.ed_cuda_gather(*self.arguments):
            if result == NO_CONTEXT:
                # A thread that has not used CUDA yet.
                use(self.table.device)
                result = lib.ed_cuda_gather(*self.arguments)
            if result:
                raise self.table.launch_error(result)
        return self.out


def _float8_dim(table: Table) -> int:
    """Give the number of values of a row of float8 values and their scales, 0 for any other row."""
    fields = table.layout.fields
    if [f.dtype for f in fields] != ["float8_e4m3fn", "float8_e8m0fnu"]:
        return 0
    values, scales = fields[0].count, fields[1].count
    return values if values == 32 * scales and table.row_bytes % 8 == 0 else 0


def _collapse(shape: tuple[int, ...], strides: tuple[int, ...], what: str) -> tuple[int, int]:
    """Give leading dimensions as one: how many, and the bytes from one to the next."""
    count, stride, expected = 1, 0, None
    for length, step in zip(reversed(shape), reversed(strides), strict=True):
        if length == 1:
            continue
        if expected is not None and step != expected:
            raise ParameterError(f"the leading dimensions of {what} are strided apart", remedy="make it contiguous")
        stride = stride or step
        count, expected = count * length, step * length
    return count, stride


def _ids_form(ids: DeviceArray, *, by_heads: bool) -> tuple[int, int, int]:
    """Give outer, ids_stride (elements) and columns."""
    shape, strides, size = ids.shape, ids.strides, ids.itemsize
    if ids.address % size or any(n > 1 and stride % size for n, stride in zip(shape, strides, strict=True)):
        raise ParameterError(f"ids do not lie at multiples of their {size} bytes", remedy="give an aligned array")
    if len(shape) > 1 or (shape and by_heads):
        if strides[-1] != size and shape[-1] > 1:
            raise ParameterError(f"the last dimension of ids is strided ({strides[-1]} bytes)")
        outer, stride = _collapse(shape[:-1], strides[:-1], "ids")
        return (outer if shape[-1] else 0), stride // size, shape[-1]
    outer, stride = _collapse(shape, strides, "ids")
    return (outer if 0 not in shape else 0), stride // size, 1


def _check_out(out: DeviceArray, shape: tuple[int, ...], row_bytes: int, format: Format) -> None:  # noqa: A002
    allowed = {"bf16": ("bfloat16", "uint16"), "fp16": ("float16", "uint16")}.get(format, (out.dtype,))
    if out.dtype not in allowed:
        raise ParameterError(f"out is {out.dtype}", remedy=f"give {allowed[0]} for format={format!r}")
    last = row_bytes // out.itemsize
    if out.shape != (*shape, last) or row_bytes % out.itemsize:
        raise ParameterError(f"out has shape {out.shape}", remedy=f"give {(*shape, last)}")
    if out.strides[-1] != out.itemsize and last > 1:
        raise ParameterError(f"the last dimension of out is strided ({out.strides[-1]} bytes)")


def _out_form(out: DeviceArray, *, columns: bool) -> tuple[int, int]:
    """Give the bytes from outer to outer and from column to column."""
    if columns:
        _, stride = _collapse(out.shape[:-2], out.strides[:-2], "out")
        return stride, out.strides[-2]
    _, stride = _collapse(out.shape[:-1], out.strides[:-1], "out")
    return stride, 0
