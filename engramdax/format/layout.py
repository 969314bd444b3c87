# SPDX-License-Identifier: Apache-2.0
"""What a row is made of: named fields, each with a place, an element type and a stride.

A field's bytes of row r stand at `offset + r * stride` from the start of the table's extent, so both a
packed row (all strides equal to the row size) and dense arrays side by side (one stride per array) can
be said. Packed is what `load` makes: a row in one piece costs a GPU one address translation, not two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from engramdax.errors import FormatError

ITEM_SIZES: Final[dict[str, int]] = {
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
    "float16": 2,
    "bfloat16": 2,
    "uint16": 2,
    "int16": 2,
    "float32": 4,
    "uint32": 4,
    "int32": 4,
    "float64": 8,
    "uint64": 8,
    "int64": 8,
}
"""Bytes of one element, by the name that PyTorch and numpy give the type."""

MAX_ROW_BYTES: Final = 1 << 20
"""A row is at most 1 MiB: more is a tensor and not a row, and most likely a slip in a unit."""


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a row.

    `count` elements of `dtype`, the first at byte `offset` of the extent for row 0, `stride` bytes
    further for each row.
    """

    name: str
    dtype: str
    count: int
    offset: int
    stride: int

    @property
    def bytes(self) -> int:
        """Bytes of this field in one row."""
        return ITEM_SIZES[self.dtype] * self.count


@dataclass(frozen=True, slots=True)
class RowLayout:
    """All fields of a row, in the order in which a gather returns them."""

    fields: tuple[Field, ...]

    @classmethod
    def packed(cls, *parts: tuple[str, str, int]) -> RowLayout:
        """Lay `(name, dtype, count)` parts out one after the other in each row."""
        row_bytes = sum(ITEM_SIZES[dtype] * count for _, dtype, count in parts)
        fields, offset = [], 0
        for name, dtype, count in parts:
            fields.append(Field(name, dtype, count, offset, row_bytes))
            offset += ITEM_SIZES[dtype] * count
        return cls(tuple(fields))

    @property
    def row_bytes(self) -> int:
        """Bytes of one gathered row: its fields one after the other."""
        return sum(field.bytes for field in self.fields)

    def extent_bytes(self, rows: int) -> int:
        """Bytes from the start of the extent to the end of the last field of the last row."""
        return max(f.offset + (rows - 1) * f.stride + f.bytes for f in self.fields) if rows else 0

    def rows_within(self, rows: int, offset: int, length: int) -> tuple[int, int]:
        """First and last of `rows` rows that have bytes in [offset, offset + length) of the extent.

        Of arrays side by side, rows between the two may have none. Padding alone gives the rows around it.
        """
        firsts = [(offset - f.offset - f.bytes) // f.stride + 1 for f in self.fields]
        lasts = [(offset + length - 1 - f.offset) // f.stride for f in self.fields]
        pairs = [(max(0, a), min(rows - 1, b)) for a, b in zip(firsts, lasts, strict=True)]
        found = [(a, b) for a, b in pairs if a <= b] or [(max(0, b), min(rows - 1, a)) for a, b in pairs]
        return min(a for a, _ in found), max(b for _, b in found)

    def to_json(self) -> dict[str, Any]:
        """Give the form that the directory holds."""
        return {
            "row_bytes": self.row_bytes,
            "fields": [
                {"name": f.name, "dtype": f.dtype, "count": f.count, "offset": f.offset, "stride": f.stride}
                for f in self.fields
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> RowLayout:
        """Read what `to_json` gave; FormatError for anything that no table could have."""
        try:
            fields = tuple(
                Field(str(f["name"]), str(f["dtype"]), f["count"], f["offset"], f["stride"]) for f in value["fields"]
            )
            row_bytes = value["row_bytes"]
        except (TypeError, KeyError) as e:
            raise FormatError(f"a row layout in the directory lacks a part: {e!r}") from e
        for f in fields:
            numbers_ok = all(type(n) is int and 0 <= n < 1 << 63 for n in (f.count, f.offset, f.stride))
            if not numbers_ok or f.dtype not in ITEM_SIZES or f.count < 1 or f.stride < f.bytes:
                raise FormatError(f"field {f.name!r} of a row layout is impossible: {f}")
        layout = cls(fields)
        if not fields or row_bytes != layout.row_bytes or row_bytes > MAX_ROW_BYTES:
            raise FormatError(f"a row layout of {row_bytes!r} bytes does not match its fields: {fields}")
        return layout


V41_ROW: Final = RowLayout.packed(("weight", "float8_e4m3fn", 256), ("scale", "float8_e8m0fnu", 8))
"""DeepSeek-V4.1: 256 float8 values, then their 8 scales, one per 32 values."""
