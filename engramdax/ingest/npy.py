# SPDX-License-Identifier: Apache-2.0
"""Tables in numpy's .npy files, versions 1.0 to 3.0 (numpy.lib.format says what stands in them).

The header is a Python literal. It is parsed (`ast.literal_eval`, inside numpy), never evaluated, and
bounded in length first, because a long one can exhaust the parser.
"""

from __future__ import annotations

import io
import struct
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numpy.lib import format as npy_format

from engramdax.errors import SourceError
from engramdax.format.layout import ITEM_SIZES, MAX_ROW_BYTES, RowLayout
from engramdax.ingest.file import SourceFile
from engramdax.ingest.naming import shown, table_name
from engramdax.ingest.source import Column, TableSource

if TYPE_CHECKING:
    import os

    import numpy as np

MAX_HEADER_BYTES: Final = 10_000
"""numpy's own bound; a plain array's header has 118 bytes."""

_VERSIONS: Final = {
    # version: (struct format of the header's length, reader)
    (1, 0): ("<H", npy_format.read_array_header_1_0),
    (2, 0): ("<I", npy_format.read_array_header_2_0),
    # 3.0 is 2.0 with UTF-8 instead of latin-1. They differ only in names of fields, which only
    # structured types have, which are refused.
    (3, 0): ("<I", npy_format.read_array_header_2_0),
}

_SAVE_AGAIN: Final = "save it again with numpy.save"


def open_npy(path: str | os.PathLike[str]) -> TableSource:
    """Open a two-dimensional, C-ordered, little-endian array `[rows, dim]` as a table.

    The row is one field "row" of `dim` elements. Raises SourceError for everything else.
    """
    with ExitStack() as opened:
        file = SourceFile(path)
        opened.callback(file.close)
        where = shown(path)
        shape, fortran_order, dtype, data = _read_header(file, where)
        layout = _row_layout(where, shape, fortran_order=fortran_order, dtype=dtype)
        rows = shape[0]
        expected = data + rows * layout.row_bytes
        if file.size != expected:
            short = file.size < expected
            raise SourceError(
                f"{where}: a {dtype.name} array of shape {shape} makes a file of {expected} bytes, this has "
                f"{file.size}: it is {'truncated' if short else 'too long'}",
                remedy="fetch or write it again" if short else "give one array per file",
            )
        source = TableSource(
            kind="npy",
            name=table_name(Path(path).stem),
            rows=rows,
            layout=layout,
            columns=[Column(file, data, layout.row_bytes)],
        )
        opened.pop_all()
        return source


def _read_header(file: SourceFile, where: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Give shape, order and type of the array and the offset of its data, as the header says them."""
    start = file.read_header(0, min(file.size, npy_format.MAGIC_LEN + 4))
    if not start.startswith(npy_format.MAGIC_PREFIX):
        raise SourceError(
            f"{where}: is not a .npy file: it starts with {start[:6]!r}, not {bytes(npy_format.MAGIC_PREFIX)!r}",
            remedy="for a raw file use another suffix and say --row-bytes N",
        )
    if len(start) < npy_format.MAGIC_LEN + 4:
        raise SourceError(f"{where}: the .npy header is truncated after {len(start)} bytes", remedy="fetch it again")
    version = (start[6], start[7])
    if version not in _VERSIONS:
        raise SourceError(
            f"{where}: .npy version {version[0]}.{version[1]} is not known", remedy="1.0, 2.0 and 3.0 are"
        )
    length_format, read_array_header = _VERSIONS[version]
    (length,) = struct.unpack_from(length_format, start, npy_format.MAGIC_LEN)
    data = npy_format.MAGIC_LEN + struct.calcsize(length_format) + length
    if length > MAX_HEADER_BYTES:
        raise SourceError(
            f"{where}: the .npy header claims {length} bytes, more than the {MAX_HEADER_BYTES} that are safe to parse",
            remedy=_SAVE_AGAIN,
        )
    if data > file.size:
        raise SourceError(
            f"{where}: the .npy header is truncated: it ends at byte {data} of {file.size}",
            remedy="fetch it again",
        )
    header = io.BytesIO(file.read_header(0, data))
    header.seek(npy_format.MAGIC_LEN)
    try:
        # The parser warns of odd literals, numpy of headers from Python 2: neither is an error here.
        with warnings.catch_warnings(action="ignore"):
            shape, fortran_order, dtype = read_array_header(header, max_header_size=MAX_HEADER_BYTES)
    except Exception as e:  # numpy lets its parser's errors through: ValueError, TypeError, MemoryError...
        raise SourceError(f"{where}: the .npy header cannot be parsed: {shown(str(e))}", remedy=_SAVE_AGAIN) from e
    return shape, fortran_order, dtype, data


def _row_layout(where: str, shape: tuple[int, ...], *, fortran_order: bool, dtype: np.dtype[Any]) -> RowLayout:
    _require_plain_dtype(where, dtype)
    if len(shape) != 2:
        raise SourceError(
            f"{where}: the array has {len(shape)} dimensions, a table has 2, rows and elements",
            remedy="reshape it and save it again",
        )
    # The numbers stay out of the message: one of thousands of digits cannot even be printed.
    if any(isinstance(n, bool) or not 0 <= n < 1 << 63 for n in shape):
        raise SourceError(
            f"{where}: the array's shape is impossible: a length is negative, no number or above 2**63",
            remedy=_SAVE_AGAIN,
        )
    if 0 in shape:
        raise SourceError(
            f"{where}: the array of shape {shown(str(shape))} holds nothing",
            remedy="give an array with at least one row and one column",
        )
    if fortran_order and 1 not in shape:
        raise SourceError(
            f"{where}: the array is in Fortran order, its rows are not in one piece",
            remedy="save numpy.ascontiguousarray(array)",
        )
    if shape[1] * dtype.itemsize > MAX_ROW_BYTES:
        raise SourceError(
            f"{where}: a row of {shown(str(shape[1]))} {dtype.name} is too large",
            remedy=f"a row has at most {MAX_ROW_BYTES} bytes; are the dimensions swapped?",
        )
    return RowLayout.packed(("row", dtype.name, shape[1]))


def _require_plain_dtype(where: str, dtype: np.dtype[Any]) -> None:
    if dtype.hasobject:
        raise SourceError(
            f"{where}: holds Python objects (a pickle), which are never loaded",
            remedy="save an array of numbers",
        )
    if dtype.fields is not None or dtype.subdtype is not None:
        raise SourceError(
            f"{where}: elements are structured ({shown(str(dtype))}), not plain numbers",
            remedy="save the array's view as uint8, or its bytes as .bin and say --row-bytes N",
        )
    if dtype.kind == "V":
        raise SourceError(
            f"{where}: elements are {dtype.itemsize}-byte voids, a type that numpy does not know "
            "(as bfloat16 and float8 are saved)",
            remedy="write the array's bytes to a .bin file and say --dtype D --dim N or --row-bytes N",
        )
    if dtype.byteorder == ">":
        raise SourceError(
            f"{where}: elements are big-endian ({dtype.str})",
            remedy="save array.astype(array.dtype.newbyteorder('<'))",
        )
    if dtype.name not in ITEM_SIZES:
        raise SourceError(
            f"{where}: elements are {shown(dtype.name)}",
            remedy=f"a table holds one of {', '.join(ITEM_SIZES)}",
        )
