# SPDX-License-Identifier: Apache-2.0
"""What every reader gives: one table as packed bytes, wherever its columns stand in files."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from engramdax._core import ffi, lib
from engramdax.errors import ClosedError, ParameterError
from engramdax.ingest.file import SourceFile, byte_view

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from engramdax.format.layout import RowLayout

# Packed bytes interleaved at a time: what one core's cache holds twice, read and written.
BLOCK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Column:
    """A dense array `[rows, width]` of bytes at `offset` of `file`."""

    file: SourceFile
    offset: int
    width: int


class _Scratch:
    """One thread's room to read a block of rows of each column into."""

    def __init__(self, widths: Sequence[int], rows: int) -> None:
        buffers = [bytearray(rows * width) for width in widths]
        self.columns = [memoryview(buffer) for buffer in buffers]
        self.row = memoryview(bytearray(sum(widths)))
        # What the C core gets on each call; the array does not keep what it points to alive.
        self._pinned = [ffi.from_buffer("uint8_t[]", buffer) for buffer in buffers]
        self.pointers = ffi.new("uint8_t *[]", self._pinned)
        self.widths = ffi.new("uint32_t[]", list(widths))


class TableSource:
    """One table to load.

    `name`: the default table name, which the loader may override. `layout`: the packed layout of the
    rows that `read_into` gives; field c of a row is column c of the same row. `read_into` may be called
    by several threads at once, `close` only when none of them reads.

    The source owns its columns' files (one `close` for each column; readers `retain` a file that two
    columns or two tables share).
    """

    def __init__(
        self,
        *,
        kind: str,
        name: str,
        rows: int,
        layout: RowLayout,
        columns: Sequence[Column],
        tensors: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.name = name
        self.rows = rows
        self.layout = layout
        self.columns = tuple(columns)
        self.tensors = tuple(tensors)
        self._row_bytes = layout.row_bytes
        self._block_rows = max(1, BLOCK_BYTES // self._row_bytes)
        self._local = threading.local()
        self._closed = False
        for column in self.columns:
            column.file.snapshot_residency(column.offset, rows * column.width)
            column.file.expect_sequential()

    @property
    def nbytes(self) -> int:
        """Bytes of the packed table."""
        return self.rows * self._row_bytes

    @property
    def files(self) -> tuple[SourceFile, ...]:
        """The files under the columns, each once."""
        return tuple(dict.fromkeys(column.file for column in self.columns))

    def describe(self) -> dict[str, Any]:
        """Give what the directory says of a table's origin, as JSON values."""
        described: dict[str, Any] = {"kind": self.kind, "files": [file.describe() for file in self.files]}
        if self.tensors:
            described["tensors"] = list(self.tensors)
        return described

    def read_into(self, offset: int, out: memoryview | np.ndarray) -> None:
        """Fill all of `out` with the packed bytes of the table from byte `offset` on.

        `out` is writable, C-contiguous and of any length; neither end needs to be a row's. Raises
        SourceError as `SourceFile.read_into` does, ParameterError for a range outside the table.
        """
        view = byte_view(out)
        self._require_inside(offset, len(view))
        if self._closed:
            raise ClosedError(f"the source of table {self.name} was closed before")
        if len(self.columns) == 1:
            column = self.columns[0]
            column.file.read_into(column.offset + offset, view)
        elif view:
            self._interleave_into(offset, view)

    def _interleave_into(self, offset: int, out: memoryview) -> None:
        scratch = self._scratch()
        row, skipped = divmod(offset, self._row_bytes)
        done = 0
        while done < len(out):
            whole_rows = (len(out) - done) // self._row_bytes
            if skipped or whole_rows == 0:  # a row cut off by either end of `out`
                self._pack(scratch, row, 1, scratch.row)
                part = scratch.row[skipped : skipped + len(out) - done]
                out[done : done + len(part)] = part
                row, skipped = row + 1, 0
                done += len(part)
            else:
                rows = min(whole_rows, self._block_rows)
                end = done + rows * self._row_bytes
                self._pack(scratch, row, rows, out[done:end])
                row += rows
                done = end

    def _pack(self, scratch: _Scratch, row: int, rows: int, out: memoryview) -> None:
        for column, buffer in zip(self.columns, scratch.columns, strict=True):
            column.file.read_into(column.offset + row * column.width, buffer[: rows * column.width])
        target = ffi.from_buffer("uint8_t[]", out, require_writable=True)
        lib.ed_interleave(scratch.pointers, scratch.widths, len(self.columns), rows, target)

    def _scratch(self) -> _Scratch:
        scratch: _Scratch | None = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = _Scratch([column.width for column in self.columns], self._block_rows)
            self._local.scratch = scratch
        return scratch

    def _require_inside(self, offset: int, length: int) -> None:
        if offset < 0 or offset + length > self.nbytes:
            raise ParameterError(
                f"bytes {offset} to {offset + length} were asked of table {self.name}, which has {self.nbytes}"
            )

    def drop_behind(self, offset: int, length: int) -> None:
        """Let go of the cached pages under the packed bytes `[offset, offset + length)`, once read.

        Pages that were in the page cache before the load stay (see `SourceFile.drop_behind`).
        """
        self._require_inside(offset, length)
        if len(self.columns) == 1:
            self.columns[0].file.drop_behind(self.columns[0].offset + offset, length)
            return
        # Rounded down at both ends, so that ranges which follow each other leave no row out.
        first, last = offset // self._row_bytes, (offset + length) // self._row_bytes
        for column in self.columns:
            column.file.drop_behind(column.offset + first * column.width, (last - first) * column.width)

    def check_unchanged(self) -> None:
        """Raise SourceError if a file is not what it was when it was opened."""
        for file in self.files:
            file.check_unchanged()

    def close(self) -> None:
        """Close the columns' files; closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        self._local = threading.local()
        for column in self.columns:
            column.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
