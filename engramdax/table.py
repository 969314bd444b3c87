# SPDX-License-Identifier: Apache-2.0
"""A table of a pool, and the gather of its rows on the CPU."""

from __future__ import annotations

import weakref
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from engramdax import buffers, plain
from engramdax._core import ffi, lib
from engramdax.checksums import BadBlock, verify_blocks
from engramdax.counters import counter_of
from engramdax.errors import DamagedTableError, ParameterError, RowIdError
from engramdax.format.geometry import Extent
from engramdax.gathering import Gatherer, Prefetch, engine_number, failure_of, thread_count

if TYPE_CHECKING:
    from collections.abc import Callable

    from engramdax.buffers import ArrayInterface
    from engramdax.cuda.table import CudaTable
    from engramdax.format.directory import TableEntry
    from engramdax.format.layout import RowLayout
    from engramdax.ngram import Hasher
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


_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_DONE: Final = int(lib.ED_DONE)
_PER_HEAD: Final = int(lib.ED_PER_HEAD)
_INVALID_ZERO: Final = int(lib.ED_INVALID_ZERO)
_IDS_64: Final = int(lib.ED_IDS_64)
_OPENMP: Final = int(lib.ED_OPENMP)


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
        attachment.prepare(entry)
        fields = entry.layout.fields
        native = len(fields) == 1 and fields[0].dtype in NATIVE_DTYPES
        self._dtype: np.dtype[Any] = np.dtype(fields[0].dtype if native else np.uint8)
        self._items = entry.layout.row_bytes // self._dtype.itemsize
        self._counter = counter_of(attachment.superblock.pool, entry)
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
    def addressing(self) -> dict[str, Any] | None:
        """How row ids come from token ids, as `engramdax.ngram.Layout.of_table` reads it; None if unknown."""
        return self._entry.addressing

    @property
    def hot(self) -> npt.NDArray[np.int64] | None:
        """Ids of the rows that are read most, int64 [n] by falling frequency, a copy; None without a hot list.

        Raises DamagedTableError where the list is not what was published.
        """
        hot = self._entry.hot
        if hot is None:
            return None
        self._attachment.media.invalidate(*hot.extent)
        data = self._attachment.media.load(hot.extent.offset, hot.bytes)
        if crc32c(data) != hot.crc:
            raise DamagedTableError(f"the hot list of table {self.name} is damaged", remedy="set it again")
        return np.frombuffer(data, f"<u{hot.id_bytes}").astype(np.int64)

    @property
    def hot_served(self) -> tuple[tuple[int, float], ...]:
        """Points (rows, share of reads) of the hot list: what its first so many rows served of the trace."""
        return self._entry.hot.served if self._entry.hot else ()

    @property
    def hot_rows(self) -> int:
        """Number of rows in the hot list, 0 without one."""
        return self._entry.hot.rows if self._entry.hot else 0

    @property
    def source(self) -> dict[str, Any]:
        """What the table was loaded from."""
        return self._entry.source

    @property
    def entry(self) -> TableEntry:
        """What the directory says of this version."""
        return self._entry

    @property
    def attachment(self) -> Attachment:
        """The pool that holds it, which lives as long as this object."""
        return self._attachment

    @property
    def core(self) -> Any:
        """What the C core knows of it, a `struct ed_table *` that lives as long as this object."""
        return self._core

    @property
    def load_id(self) -> str:
        """The random id of the load that made this version."""
        return str(self._entry.load)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The element type of gathered rows: the layout's for one field of a type numpy has, else uint8."""
        return self._dtype

    def __repr__(self) -> str:
        return f"<engramdax.Table {self.name}: {self.rows} rows of {self.row_bytes} bytes>"

    def gather(
        self,
        ids: npt.ArrayLike | ArrayInterface,
        out: Any = None,
        *,
        threads: int | None = None,
        per_head: bool = False,
        invalid: Literal["raise", "zero"] = "raise",
        engine: Literal["team", "openmp"] = "team",
    ) -> npt.NDArray[Any]:
        """Copy rows out of the pool.

        ids: int32 or int64, any shape and alignment, C-contiguous. -1 gives a row of zeros. Any other id
        that is no row raises RowIdError, which names it (then `out` holds undefined bytes), or gives a row
        of zeros too with invalid="zero". Under per_head the last dimension of `ids` is the number of
        heads, and an id counts within its head.

        out: a writable C-contiguous buffer (numpy array, anything with the buffer protocol or
        `__array_interface__`) of exactly ids.size * row_bytes bytes, any element type and alignment, which
        does not overlap `ids`. It is returned if it is an array of `dtype` and of shape
        [*ids.shape, row_bytes / itemsize], else its memory as one; nothing is allocated. Without `out`, a new array.

        threads: at most this many (default: as many as the work is worth, within `engramdax.configure`).
        engine: "team" (see c/team.h), or "openmp", the paper's routine, which is not guarded. The GIL is
        released.

        Raises ParameterError for ids, an `out` or options that do not do, and PoisonedRowsError where memory under
        rows cannot be read; all other rows are right then.
        """
        id_array: Any = ids
        result: npt.NDArray[Any] = out
        # Types that numpy has built in are single objects: comparing them so keeps the usual call short.
        if out is None and type(ids) is np.ndarray and ((dtype := ids.dtype) is _INT64 or dtype is _INT32):
            result = np.empty((*ids.shape, self._items), self._dtype)
        outcome = plain.gather(self._address, self._dtype, ids, result, threads, per_head, invalid, engine)
        if outcome is None:  # not numpy's arrays in their usual form, or something is wrong
            id_array = buffers.id_array(ids)
            result = self._output(out, (*id_array.shape, self._items))
            flags = self._flags(id_array, per_head=per_head, invalid=invalid)
            outcome = plain.gather(
                self._address,
                self._dtype,
                id_array,
                result.view(self._dtype, np.ndarray),  # C takes no subclass, and no other object for an equal dtype
                None if threads is None else thread_count(threads),
                bool(flags & _PER_HEAD),
                "zero" if flags & _INVALID_ZERO else "raise",
                "openmp" if engine_number(engine) == _OPENMP else "team",
            )
        if outcome != _DONE:
            raise failure_of(outcome, [(self, id_array, _PER_HEAD if per_head else 0)])
        return result

    def gather_tokens(
        self,
        hasher: Hasher,
        token_ids: npt.ArrayLike,
        blocked: npt.ArrayLike | None = None,
        *,
        starts: npt.ArrayLike | None = None,
        history: npt.ArrayLike | None = None,
        out: Any = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Hash tokens and gather their rows in one go: each worker hashes some tokens and fetches their rows.

        hasher: of the table's model; its layer is found by the heads. token_ids, blocked, starts, history: as
        for a call of the hasher. out, threads: as for `gather`. Gives [T, heads, row_bytes / itemsize];
        padding tokens get rows of zeros. Raises ParameterError for a table of another model, PoisonedRowsError
        as `gather`.
        """
        layer = hasher.layout.layer_of(self)
        batch, keep = hasher.batch(token_ids, blocked, starts, history)
        if (sequence := lib.ed_check_history(hasher.core, batch)) >= 0:
            raise hasher.bad_token(-2 - sequence, keep)
        heads = hasher.layout.heads
        if heads > lib.ED_IDS_AT_ONCE:
            ids = hasher.layer_ids(keep["tokens"], layer, blocked=blocked, starts=starts, history=history)
            return self.gather(ids, out, threads=threads)
        shape = (int(batch.count), heads, self._items)
        result = self._output(out, shape)
        if any(np.may_share_memory(result, array) for array in keep.values()):
            raise ParameterError("out overlaps the tokens", remedy="give separate buffers")
        source: Any = ffi.new("struct ed_token_source *", {"hasher": hasher.core, "batch": batch, "layer": layer})
        request: Any = ffi.new(
            "struct ed_request *",
            {
                "table": self._core,
                "tokens": source,
                "count": shape[0] * heads,
                "out": ffi.cast("uint8_t *", result.ctypes.data),
            },
        )
        outcome = lib.ed_gather(request, 1, 0 if threads is None else thread_count(threads), lib.ED_TEAM)
        if outcome == lib.ED_BAD_TOKEN:
            failure: Any = lib.ed_failure()
            raise hasher.bad_token(int(failure.position), keep)
        if outcome:
            # The ids are wanted for the report alone.
            ids = hasher.layer_ids(keep["tokens"], layer, blocked=blocked, starts=starts, history=history)
            raise failure_of(outcome, [(self, ids, _IDS_64)])
        return result

    def gatherer(
        self,
        ids: npt.NDArray[Any],
        out: Any,
        *,
        threads: int | None = None,
        per_head: bool = False,
        invalid: Literal["raise", "zero"] = "raise",
    ) -> Gatherer:
        """Prepare a gather of whatever `ids` holds at the time of each call into `out`.

        Arguments as for `gather`, which are checked once; both buffers stay where they are. A call of the
        result costs little more than a call of the C function.
        """
        return Gatherer(self, ids, out, threads=threads, per_head=per_head, invalid=invalid)

    def prefetch(
        self,
        ids: npt.NDArray[Any],
        out: Any = None,
        *,
        threads: int | None = None,
        per_head: bool = False,
        invalid: Literal["raise", "zero"] = "raise",
    ) -> Prefetch:
        """Start a gather and return at once; `wait()` of the result gives what `gather` would.

        Neither buffer may be changed, and `out` not be read, before `wait` has returned. Where the process
        may use one CPU only, nothing happens before `wait`.
        """
        return Prefetch(self, ids, out, threads=threads, per_head=per_head, invalid=invalid)

    def cuda(
        self,
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
    ) -> CudaTable:
        """Register the table with the CUDA driver and give it as one GPU sees it.

        hot: budget for hot rows in GPU memory, in bytes or as "2GiB", everything they take included; None: none.
        path: "direct" reads the registered pool by the GPU alone, for hot rows their copies; "staged" has the CPU
        team fetch all rows that are not hot, also of a pool that cannot be registered; "mix" shares them out; "auto"
        does so for tables of 4 GiB and more, by shares that it measures at first need (see `CudaTable.calibrate`),
        unless there are fewer than 4 threads or another process has the GPU's lanes.
        threads: of the CPU for that, by default three quarters of the cores that the process may use, divided among
        the processes that have lanes. sm_share: the part of the GPU's multiprocessors whose blocks copy rows of a
        mixed call, and wait for the CPU meanwhile, by default a twentieth.
        heads: (first, count), the rank's part of the ids' last dimension, of which padded_heads (default: count)
        come out, the last ones zeros. rows: (low, high), the rank's part of the table; ids outside give rows of
        zeros. progress: called with bytes registered, from another thread.

        Raises CudaError, which says what is missing: package, driver, device, memory that can be registered;
        ParameterError for a choice that the table does not have.
        """
        from engramdax.cuda.table import CudaTable  # noqa: PLC0415  # optional

        return CudaTable(
            self,
            device,
            hot=hot,
            path=path,
            heads=heads,
            padded_heads=padded_heads,
            rows=rows,
            threads=threads,
            sm_share=sm_share,
            progress=progress,
        )

    def verify(
        self, *, sample: float = 1.0, rate: int | None = None, progress: Callable[[int], None] | None = None
    ) -> list[BadBlock]:
        """Compare all bytes with the checksums that were published with them; give the bad blocks.

        An empty list means that every byte compared is as it was loaded. `sample`: the share of the blocks to compare,
        above 0, chosen at random; `rate`: bytes per second to keep below, None for as fast as it goes. `progress` is
        called with the bytes done so far, from several threads. Raises DamagedTableError where the checksums
        themselves are damaged.
        """
        if not 0 < sample <= 1:
            raise ParameterError(f"a sample of {sample} is no share", remedy="give a number above 0, at most 1")
        if rate is not None and rate < 1:
            raise ParameterError(f"a rate of {rate} bytes per second never ends", remedy="give 1 or more")
        e = self._entry
        attachment = self._attachment
        return verify_blocks(
            attachment.media,
            Extent(e.extent.offset, e.bytes),
            e.checksums,
            e.checksums_crc,
            table=self.name,
            block=attachment.superblock.geometry.block,
            layout=e.layout,
            row_count=e.rows,
            sample=sample,
            rate=rate,
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
        mapping = self._attachment.mapping
        core.guard_begin = ffi.cast("uint8_t *", mapping.address)
        core.guard_end = core.guard_begin + mapping.length
        core.rows, core.row_bytes = self.rows, self.row_bytes
        core.spans, core.span_count = self._spans, len(spans)
        core.head_begins, core.head_count = self._begins, len(self.heads or ())
        core.rows_ahead = self._attachment.rows_ahead(core)
        core.counter = self._counter.address if self._counter else ffi.NULL
        self._core = core
        self._address = int(ffi.cast("uintptr_t", core))

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

    def _output(self, out: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """Give what a gather fills and returns: `out` itself where it is such an array, else its memory as one."""
        if out is None:
            return np.empty(shape, self._dtype)
        flat = buffers.out_bytes(out, prod(shape[:-1]), self.row_bytes)
        if isinstance(out, np.ndarray) and out.dtype == self._dtype and out.shape == shape:
            return out
        return flat.view(self._dtype).reshape(shape)

    def request(self, ids: npt.NDArray[Any], out: npt.NDArray[Any], flags: int) -> Any:
        """Give the C core's form of a request; both arrays must outlive it."""
        return {
            "table": self._core,
            "ids": ffi.cast("void *", ids.ctypes.data),
            "count": ids.size,
            "flags": flags,
            "out": ffi.cast("uint8_t *", out.ctypes.data),
        }

    def checked(
        self, ids: Any, out: Any, *, per_head: bool, invalid: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], int]:
        """Check the buffers of a request once; give ids, output and flags. A missing `out` is made."""
        id_array = buffers.id_array(ids)
        result = self._output(out, (*id_array.shape, self._items))
        if np.may_share_memory(result, id_array):
            raise ParameterError("out overlaps ids", remedy="give two separate buffers")
        return id_array, result, self._flags(id_array, per_head=per_head, invalid=invalid)

    def note_unreadable(self, rows: int) -> None:
        """Count rows that could not be read."""
        if self._counter:
            self._counter.add_unreadable(rows)

    def bad_id(self, ids: npt.NDArray[Any], position: int, *, per_head: bool) -> RowIdError:
        """Give the error that names the id at flat `position`."""
        value = int(ids.reshape(-1)[position])
        place = tuple(int(i) for i in np.unravel_index(position, ids.shape)) if ids.ndim else ()
        limit, what = self.rows, f"table {self.name}"
        if per_head and self.heads:
            head = position % len(self.heads)
            limit, what = self.heads[head], f"head {head} of table {self.name}"
        return RowIdError(
            f"ids[{', '.join(map(str, place))}] is {value}, {what} has rows 0 to {limit - 1}",
            remedy='give -1 for a row of zeros, or say invalid="zero" (--invalid zero)',
        )
