# SPDX-License-Identifier: Apache-2.0
"""What rows come out as: their own bytes, or the values of float8 rows times their scales as floats of 16 bits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from engramdax.cuda.memory import DeviceMemory
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from engramdax.cuda.arrays import DeviceArray
    from engramdax.table import Table

Format = Literal["raw", "bf16", "fp16"]

UNITS: Final = (16, 8, 4, 2, 1)
"""Bytes that a kernel for raw rows moves at once; kernels.cu has one for each."""

HALVES_UNIT: Final = 16
"""Bytes that the kernels for bf16 and fp16 store at once."""

TYPESTRS: Final = {"raw": "|u1", "bf16": "<u2", "fp16": "<f2"}
"""As arrays say it; bfloat16 has no name there."""

DTYPES: Final = {"raw": "uint8", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class RowsShape:
    """The form of one token's rows."""

    shape: tuple[int, int]
    typestr: str

    @property
    def token_bytes(self) -> int:
        """Give the bytes of it."""
        return self.shape[0] * self.shape[1] * int(self.typestr[2:])


class Formats:
    """The formats of a table's rows, which the GPU sees from address `base` on.

    float8_dim: number of values of a row of float8 values and their scales, 0 for any other row.
    """

    def __init__(self, table: Table, base: int) -> None:
        self._table = table
        self._base = base
        self.float8_dim = _float8_dim(table)

    def check(self, format: Format) -> None:  # noqa: A002 - the name of the interface
        """Raise ParameterError for a format that the rows do not have."""
        if format not in ("raw", "bf16", "fp16") or (format != "raw" and not self.float8_dim):
            raise ParameterError(
                f"format={format!r} does not go with table {self._table.name}",
                remedy="say raw; float8 tables with scales have bf16 and fp16, too",
            )

    def width(self, format: Format) -> int:  # noqa: A002
        """Give how many elements a row has, of the type that the format's name says (bytes for "raw")."""
        return self._table.row_bytes if format == "raw" else self.float8_dim

    def row_bytes(self, format: Format) -> int:  # noqa: A002
        """Give the bytes of a row that comes out."""
        return self._table.row_bytes if format == "raw" else 2 * self.float8_dim

    def kernels(self) -> dict[tuple[Format, int], str]:
        """Give how the names of the kernels end, by format and the bytes that they move at once."""
        names: dict[tuple[Format, int], str] = {("raw", unit): f"raw_{unit}" for unit in UNITS}
        if self.float8_dim:
            names |= {("bf16", HALVES_UNIT): "float8_bf16", ("fp16", HALVES_UNIT): "float8_fp16"}
        return names

    def unit_at(self, places: int, format: Format) -> int:  # noqa: A002
        """Give how many bytes a kernel may move at once for rows of out at multiples of `places`.

        places: address and strides, ORed together; 0 for rows that lie dense in memory of their own.
        """
        if format == "raw":
            return next(n for n in UNITS if (places | self._table.row_bytes | self._base) % n == 0)
        if places % HALVES_UNIT:
            raise ParameterError("rows of out do not lie at multiples of 16 bytes", remedy="give an aligned array")
        return HALVES_UNIT

    def new_rows(self, shape: tuple[int, ...], ids: DeviceArray, format: Format) -> Any:  # noqa: A002
        """Give new memory for rows [*shape, width]: a tensor of torch's where `ids` is one, else DeviceMemory."""
        width = self.width(format)
        if ids.torch:
            torch = sys.modules["torch"]
            return torch.empty((*shape, width), dtype=getattr(torch, DTYPES[format]), device=ids.keep.device)
        nbytes = int(np.prod(shape)) * self.row_bytes(format)
        return DeviceMemory(nbytes, shape=(*shape, width), typestr=TYPESTRS[format])


def _float8_dim(table: Table) -> int:
    fields = table.layout.fields
    if [f.dtype for f in fields] != ["float8_e4m3fn", "float8_e8m0fnu"]:
        return 0
    values, scales = fields[0].count, fields[1].count
    return values if values == 32 * scales and table.row_bytes % 8 == 0 else 0
