# SPDX-License-Identifier: Apache-2.0
"""A table of a pool, and the gather of its rows on the CPU."""

from __future__ import annotations

import os
import weakref
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt

from engramdax._core import ffi, lib
from engramdax.checksums import BadBlock, verify_blocks
from engramdax.errors import ParameterError, RowIdError

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.format.directory import TableEntry
    from engramdax.format.layout import RowLayout
    from engramdax.pool.attachment import Attachment

NATIVE_DTYPES: Final = frozenset(
    {
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    }
)
"""Element types that numpy has itself; rows of any other come back as uint8."""


class _ArrayInterface(Protocol):
    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class Table:
    """One published version of a table; made by `Pool`, and right for as long as it lives.

    Another process may remove or replace the table meanwhile: its space is not used again while this
    object exists. All methods may be called from several threads at once.
    """

    def __init__(self, entry: TableEntry, generation: int, attachment: Attachment) -> None:
        self._entry = entry
        self._attachment = attachment
        attachment.pins.pin(generation)
        weakref.finalize(self, attachment.pins.unpin, generation)
        self._make_core_table()

    @property
    def name(self) -> str:
        """Its name in the pool."""
        return self._entry.name

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._entry.rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a gathered row."""
        return self.layout.row_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self._entry.bytes

    @property
    def layout(self) -> RowLayout:
        """The fields of a row."""
        return self._entry.layout

    @property
    def heads(self) -> tuple[int, ...] | None:
        """Rows of each hash head, in the order of their ids; None where the load did not know them."""
        return self._entry.heads

    @property
    def source(self) -> dict[str, Any]:
        """What the table was loaded from."""
        return self._entry.source

    @property
    def load_id(self) -> str:
        """The random id of the load that made this version."""
        return str(self._entry.load)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of gathered rows: the layout's for one field of a type numpy has, else uint8."""
        fields = self.layout.fields
        if len(fields) == 1 and fields[0].dtype in NATIVE_DTYPES:
            return np.dtype(fields[0].dtype)
        return np.dtype(np.uint8)

    def __repr__(self) -> str:
        return f"<engramdax.Table {self.name}: {self.rows} rows of {self.row_bytes} bytes>"

    def gather(
        self,
        ids: npt.ArrayLike | _ArrayInterface,
        out: Any = None,
        *,
        threads: int | None = None,
        per_head: bool = False,
        invalid: Literal["raise", "zero"] = "raise",
    ) -> npt.NDArray[Any]:
        """Copy rows out of the pool.

        ids: int32 or int64, any shape and alignment, C-contiguous. -1 gives a row of zeros. Any other id
        that is no row raises RowIdError, which names it (then `out` holds undefined bytes), or gives a row
        of zeros too with invalid="zero". Under per_head the last dimension of `ids` is the number of
        heads, and an id counts within its head.

        out: a writable C-contiguous buffer (numpy array, anything with the buffer protocol or
        `__array_interface__`) of exactly ids.size * row_bytes bytes, any element type and alignment, which
        does not overlap `ids`; given, nothing is allocated and `out` as an array of shape
        [*ids.shape, row_bytes / itemsize] is returned. Otherwise a new array of `dtype`.

        threads: at most this many (default: the CPUs this process may use). The GIL is released.
        """
        id_array = _id_array(ids)
        item = self.dtype.itemsize
        shape = (*id_array.shape, self.row_bytes // item)
        if out is None:
            result = np.empty(shape, self.dtype)
        else:
            result = _out_array(out, id_array, self.row_bytes).view(self.dtype).reshape(shape)
        flags = self._flags(id_array, per_head=per_head, invalid=invalid)
        if threads is not None and threads < 1:
            raise ParameterError(f"threads={threads} copies nothing", remedy="give 1 or more")
        # More threads than CPUs gain nothing, and OpenMP ends the process when it cannot start one.
        cpus = len(os.sched_getaffinity(0))
        threads = cpus if threads is None else min(threads, cpus)
        bad = lib.ed_gather(
            self._core,
            ffi.cast("void *", id_array.ctypes.data),
            id_array.size,
            flags,
            threads,
            ffi.cast("uint8_t *", result.ctypes.data),
        )
        if bad != lib.ED_ALL_VALID:
            raise self._bad_id(id_array, bad, per_head=per_head)
        return result

    def verify(self, *, progress: Callable[[int], None] | None = None) -> list[BadBlock]:
        """Compare all bytes with the checksums that were published with them; give the bad blocks.

        An empty list means that every byte is as it was loaded. `progress` is called with the bytes
        done so far, from several threads.
        """
        e = self._entry
        attachment = self._attachment
        for extent in (e.extent, e.checksums):
            attachment.media.invalidate(*extent)
        return verify_blocks(
            attachment.mapping.view(e.extent.offset, e.bytes),
            attachment.mapping.view(e.checksums.offset, e.checksums.length),
            e.checksums_crc,
            block=attachment.superblock.geometry.block,
            layout=e.layout,
            row_count=e.rows,
            progress=progress,
        )

    def _make_core_table(self) -> None:
        fields = self.layout.fields
        spans: list[list[int]] = []
        for f in fields:
            # Neighbours in the same row are one piece, and cost one copy.
            if spans and spans[-1][1] == f.stride and spans[-1][0] + spans[-1][2] == f.offset:
                spans[-1][2] += f.bytes
            else:
                spans.append([f.offset, f.stride, f.bytes])
        self._spans: Any = ffi.new("struct ed_span[]", spans)
        begins = [0, *accumulate(self.heads)] if self.heads else []
        self._begins: Any = ffi.new("int64_t[]", begins) if begins else ffi.NULL
        core: Any = ffi.new("struct ed_table *")
        core.base = ffi.cast("uint8_t *", self._attachment.mapping.address + self._entry.extent.offset)
        core.rows, core.row_bytes = self.rows, self.row_bytes
        core.spans, core.span_count = self._spans, len(spans)
        core.head_begins, core.head_count = self._begins, len(self.heads or ())
        self._core = core

    def _flags(self, ids: npt.NDArray[Any], *, per_head: bool, invalid: str) -> int:
        flags = lib.ED_IDS_64 if ids.dtype.itemsize == 8 else 0
        if invalid not in ("raise", "zero"):
            raise ParameterError(f"invalid={invalid!r} is unknown", remedy="say 'raise' or 'zero'")
        if invalid == "zero":
            flags |= lib.ED_INVALID_ZERO
        if per_head:
            if not self.heads:
                raise ParameterError(
                    f"table {self.name} has no heads", remedy="load it with its config.json, or give row ids"
                )
            if not ids.ndim or ids.shape[-1] != len(self.heads):
                raise ParameterError(
                    f"ids of shape {ids.shape} do not end in the {len(self.heads)} heads of {self.name}"
                )
            flags |= lib.ED_PER_HEAD
        return int(flags)

    def _bad_id(self, ids: npt.NDArray[Any], position: int, *, per_head: bool) -> RowIdError:
        value = int(ids.reshape(-1)[position])
        place = tuple(int(i) for i in np.unravel_index(position, ids.shape)) if ids.ndim else ()
        limit, what = self.rows, f"table {self.name}"
        if per_head and self.heads:
            head = position % len(self.heads)
            limit, what = self.heads[head], f"head {head} of table {self.name}"
        return RowIdError(
            f"ids[{', '.join(map(str, place))}] is {value}, {what} has rows 0 to {limit - 1}",
            remedy='give -1 for a row of zeros, or invalid="zero"',
        )


def _id_array(ids: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError) as e:
        raise ParameterError(f"ids are no array: {e}", remedy="give int32 or int64, all rows of equal length") from None
    if array.size == 0 and array.dtype == np.float64 and not hasattr(ids, "dtype"):
        array = array.astype(np.int64)  # numpy calls an empty list float64
    if array.dtype not in (np.dtype(np.int32), np.dtype(np.int64)):
        raise ParameterError(f"ids are {array.dtype}", remedy="give int32 or int64, in native byte order")
    if not array.flags.c_contiguous:
        raise ParameterError(
            f"ids of shape {array.shape} are not C-contiguous (strides {array.strides})",
            remedy="give numpy.ascontiguousarray(ids)",
        )
    return array


def _out_array(out: Any, ids: npt.NDArray[Any], row_bytes: int) -> npt.NDArray[np.uint8]:
    needed = ids.size * row_bytes
    if isinstance(out, np.ndarray) or hasattr(out, "__array_interface__"):
        array = np.asarray(out)
    else:
        try:
            array = np.frombuffer(out, np.uint8) if memoryview(out).nbytes else np.empty(0, np.uint8)
        except (TypeError, ValueError, BufferError) as e:
            raise ParameterError(
                f"out is a {type(out).__name__} ({e})", remedy="give a writable contiguous buffer"
            ) from None
    if array.dtype.hasobject:
        raise ParameterError(f"out is of dtype {array.dtype}", remedy="give an array of plain numbers")
    if not array.flags.c_contiguous:
        raise ParameterError(f"out of shape {array.shape} is not C-contiguous (strides {array.strides})")
    if not array.flags.writeable:
        raise ParameterError("out is read-only", remedy="give a writable buffer")
    if array.nbytes != needed:
        raise ParameterError(f"out has {array.nbytes} bytes, {ids.size} rows of {row_bytes} bytes need {needed}")
    if np.may_share_memory(array, ids):
        raise ParameterError("out overlaps ids", remedy="give two separate buffers")
    flat: npt.NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat
