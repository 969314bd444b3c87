# SPDX-License-Identifier: Apache-2.0
"""Raw table files: rows one after the other, nothing else; the caller says what a row is."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from engramdax.errors import ParameterError, SourceError
from engramdax.format.layout import ITEM_SIZES, MAX_ROW_BYTES, RowLayout
from engramdax.ingest.file import SourceFile
from engramdax.ingest.naming import shown, table_name
from engramdax.ingest.source import Column, TableSource

if TYPE_CHECKING:
    import os


def raw_layout(row_bytes: int | None, dtype: str | None, dim: int | None, *, of: str = "a raw file") -> RowLayout:
    """Give the layout of one field "row" that the arguments say; `of` names what has it, in errors.

    `row_bytes` in bytes, or `dim` elements of `dtype` (a name of ITEM_SIZES); ParameterError for
    neither, both, half of it, or a row of no possible size.
    """
    if row_bytes is not None and (dtype is not None or dim is not None):
        raise ParameterError(
            "the row size is given twice, as bytes and as dtype and dim",
            remedy="say --row-bytes N, or --dtype D --dim N",
        )
    if row_bytes is not None:
        dtype, dim, unit = "uint8", row_bytes, "row size"
    elif dtype is not None and dim is not None:
        unit = "dim"
    else:
        lacks = {(True, True): f"{of} says nothing about its rows", (False, True): "--dim is missing"}
        raise ParameterError(
            lacks.get((dtype is None, dim is None), "--dtype is missing"),
            remedy="say --row-bytes N, or --dtype D --dim N",
        )
    if dtype not in ITEM_SIZES:
        raise ParameterError(f"dtype {shown(dtype)} is not known", remedy=f"it is one of {', '.join(ITEM_SIZES)}")
    if dim < 1:
        raise ParameterError(f"{unit} {dim} is impossible", remedy="give a number of 1 or more")
    if dim * ITEM_SIZES[dtype] > MAX_ROW_BYTES:
        raise ParameterError(
            f"a row of {dim * ITEM_SIZES[dtype]} bytes is too large",
            remedy=f"a row has at most {MAX_ROW_BYTES} bytes; check the unit",
        )
    return RowLayout.packed(("row", dtype, dim))


def open_binary(
    path: str | os.PathLike[str],
    *,
    row_bytes: int | None = None,
    dtype: str | None = None,
    dim: int | None = None,
) -> TableSource:
    """Open a raw file of rows of `row_bytes` bytes, or of `dim` elements of `dtype` each.

    Raises ParameterError for the arguments, before the file is looked at; SourceError for the file.
    """
    layout = raw_layout(row_bytes, dtype, dim, of=f"{shown(path)}: a raw file")
    with ExitStack() as opened:
        file = SourceFile(path)
        opened.callback(file.close)
        rows, remainder = divmod(file.size, layout.row_bytes)
        if remainder:
            raise SourceError(
                f"{shown(path)}: its {file.size} bytes are not a whole number of {layout.row_bytes}-byte "
                f"rows: {rows} rows and {remainder} bytes",
                remedy="check the row size, or whether the file was cut off",
            )
        source = TableSource(
            kind="binary",
            name=table_name(Path(path).stem),
            rows=rows,
            layout=layout,
            columns=[Column(file, 0, layout.row_bytes)],
        )
        opened.pop_all()
        return source
