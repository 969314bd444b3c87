# SPDX-License-Identifier: Apache-2.0
"""Calls of a CudaTable: the arrays that they are given, checked and brought into the form that a launch takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engramdax._core import lib
from engramdax.cuda.arrays import DeviceArray, device_array
from engramdax.cuda.driver import error
from engramdax.cuda.forms import Launch
from engramdax.cuda.streams import is_captured, stream_handle, wait_for_producers
from engramdax.errors import CudaError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    import numpy.typing as npt

    from engramdax.cuda.formats import Format, Formats
    from engramdax.cuda.lane import Lane
    from engramdax.cuda.part import Columns, Part
    from engramdax.cuda.plans import Plans
    from engramdax.table import Table

_TROUBLE: Final = int(lib.ED_CUDA_TROUBLE)


class Output(NamedTuple):
    """Where rows go: `stride` bytes from outer to outer, `column_stride` from column to column."""

    array: DeviceArray
    stride: int
    column_stride: int
    unit: int
    """Bytes that kernels may move at once."""


class HostLaunch(NamedTuple):
    """A launch for ids of the host: rows int64 [outer, columns] of the table, -1 for each row of zeros."""

    plan: Any
    form: tuple[Format, int]
    """What the rows come out as, and the bytes that kernels may move at once."""

    rows: npt.NDArray[np.int64]
    out: tuple[int, int, int]
    """Address, bytes from outer to outer, bytes from column to column."""

    stream: int


class Prepared(NamedTuple):
    """A launch, its output, and what has to live until the GPU has done it."""

    launch: Launch
    out: Any
    keep: Any


@dataclass(frozen=True, slots=True)
class Calls:
    """What a CudaTable's calls are checked against and made of. Several threads may use it at once."""

    table: Table
    device: int
    part: Part
    formats: Formats
    plans: Plans
    routes: dict[tuple[Format, int], Any]
    most_rows: int
    """Of one call."""

    def prepare(self, ids: Any, out: Any, stream: Any, *, format: Format, per_head: bool) -> Prepared:  # noqa: A002
        """Check the arguments of `CudaTable.gather`, for ids on the device."""
        self.formats.check(format)
        source = device_array(ids, "ids")
        self._check_device(source, "ids")
        check_ids(source.dtype)
        columns = self.part.columns(source.shape, per_head=per_head)
        outer, ids_stride = _ids_strides(source, columns)
        if out is None:
            if is_captured(stream_handle(stream, (source,))):
                raise CudaError("out=None allocates, which a captured stream cannot", remedy="give an out")
            out = self.formats.new_rows(columns.shape, source, format)
        target = self.output(out, columns, format)
        handle = stream_handle(stream, (source, target.array))
        if source.producer is not None or target.array.producer is not None:
            wait_for_producers((source, target.array), handle)
        self.check_count(outer * columns.padded)
        launch = Launch(
            self.plans.plan(columns.first, columns.read, columns.padded, per_head=per_head),
            self.routes[format, target.unit],
            source.address,
            source.itemsize == 8,
            ids_stride,
            outer,
            target.array.address,
            target.stride,
            target.column_stride,
            handle,
        )
        return Prepared(launch, out, (source.keep, target.array.keep))

    def prepare_host(
        self,
        ids: npt.NDArray[Any],
        out: Any,
        stream: Any,
        *,
        format: Format,  # noqa: A002
        per_head: bool,
    ) -> HostLaunch:
        """Check the arguments of `CudaTable.gather`, for ids on the host, which are read."""
        if out is None:
            raise ParameterError("ids on the host need an out", remedy="give an array on the GPU for the rows")
        self.formats.check(format)
        check_ids(str(ids.dtype))
        columns = self.part.columns(ids.shape, per_head=per_head)
        self.check_count(columns.outer(ids.size) * columns.padded)
        rows = self.part.row_ids(ids, columns, per_head=per_head)
        target = self.output(out, columns, format)
        handle = stream_handle(stream, (target.array,))
        if is_captured(handle):
            raise CudaError("ids on the host cannot be captured", remedy="give ids on the device")
        wait_for_producers((target.array,), handle)
        # Columns were chosen, and zeros put in, by row_ids().
        plan = self.plans.plan(0, columns.padded, columns.padded, per_head=False)
        place = (target.array.address, target.stride, target.column_stride)
        return HostLaunch(plan, (format, target.unit), rows, place, handle)

    def check_count(self, rows: int) -> None:
        """Raise ParameterError for more rows than one call may have."""
        if rows > self.most_rows:
            raise ParameterError(f"{rows} rows in one call", remedy=f"gather at most {self.most_rows}")

    def output(self, out: Any, columns: Columns, format: Format) -> Output:  # noqa: A002
        """See where the rows of a call go; ParameterError for an array that cannot take them."""
        array = device_array(out, "out")
        self._check_device(array, "out")
        _check_rows(array, columns.shape, self.formats.row_bytes(format), format)
        stride, column_stride = _out_strides(array, columns)
        unit = self.formats.unit_at(array.address | stride | column_stride, format)
        return Output(array, stride, column_stride, unit)

    def _check_device(self, array: DeviceArray, what: str) -> None:
        if array.device not in (None, self.device):
            raise ParameterError(
                f"{what} is on device {array.device}, the table on {self.device}",
                remedy="make a CudaTable for each device",
            )


def check_ids(dtype: str) -> None:
    """Raise ParameterError for ids of another type than int32 and int64."""
    if dtype not in ("int32", "int64"):
        raise ParameterError(f"ids are {dtype}", remedy="give int32 or int64")


def launch_error(table: Table, lanes: Iterable[Lane | None], result: int) -> EngramdaxError:
    """Give the error for a launch that the driver refused, or that tells of one before, which `lanes` know of."""
    if result == _TROUBLE:
        for lane in lanes:
            if lane and (found := lane.error()):
                return found
        return CudaError(
            f"a gather of table {table.name} before went wrong, as another thread was told",
            remedy="call again: this one was not started",
        )
    return error(result, f"the gather of table {table.name} cannot be launched")


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


def _ids_strides(ids: DeviceArray, columns: Columns) -> tuple[int, int]:
    """Give outer, and the elements from one outer to the next."""
    if 0 in ids.shape:  # strides of nothing mean nothing
        return 0, 0
    shape, strides, size = ids.shape, ids.strides, ids.itemsize
    if ids.address % size or any(n > 1 and stride % size for n, stride in zip(shape, strides, strict=True)):
        raise ParameterError(f"ids do not lie at multiples of their {size} bytes", remedy="give an aligned array")
    if columns.apart and shape:
        if strides[-1] != ids.itemsize and shape[-1] > 1:
            raise ParameterError(f"the last dimension of ids is strided ({strides[-1]} bytes)")
        shape, strides = shape[:-1], strides[:-1]
    outer, stride = _collapse(shape, strides, "ids")
    return outer, stride // ids.itemsize


def _check_rows(out: DeviceArray, shape: tuple[int, ...], row_bytes: int, format: Format) -> None:  # noqa: A002
    allowed = {"bf16": ("bfloat16", "uint16"), "fp16": ("float16", "uint16")}.get(format, (out.dtype,))
    if out.dtype not in allowed:
        raise ParameterError(f"out is {out.dtype}", remedy=f"give {allowed[0]} for format={format!r}")
    last = row_bytes // out.itemsize
    if out.shape != (*shape, last) or row_bytes % out.itemsize:
        raise ParameterError(f"out has shape {out.shape}", remedy=f"give {(*shape, last)}")
    if out.strides[-1] != out.itemsize and last > 1 and 0 not in shape:
        raise ParameterError(f"the last dimension of out is strided ({out.strides[-1]} bytes)")


def _out_strides(out: DeviceArray, columns: Columns) -> tuple[int, int]:
    """Give the bytes from outer to outer and from column to column."""
    if 0 in out.shape:
        return 0, 0
    if columns.apart:
        _, stride = _collapse(out.shape[:-2], out.strides[:-2], "out")
        return stride, out.strides[-2]
    _, stride = _collapse(out.shape[:-1], out.strides[:-1], "out")
    return stride, 0
