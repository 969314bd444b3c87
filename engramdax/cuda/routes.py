# SPDX-License-Identifier: Apache-2.0
"""Routes: the kernels for rows of one form, and the lane that brings some of them, as `struct ed_cuda_route`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engramdax._core import ffi
from engramdax.cuda.kernels import function

if TYPE_CHECKING:
    from engramdax.cuda.formats import Format, Formats
    from engramdax.cuda.lane import Lane
    from engramdax.table import Table


def routes(table: Table, device: int, formats: Formats, lane: Lane | None) -> dict[tuple[Format, int], Any]:
    """Give the routes of all forms of a table's rows, by format and the bytes that kernels move at once."""
    core = lane.core if lane else ffi.NULL
    return {
        form: ffi.new(
            "struct ed_cuda_route *",
            {
                "direct": function(device, f"gather_{name}"),
                "mixed": function(device, f"mixed_{name}") if lane else 0,
                "lane": core,
                "table": table.core,
            },
        )
        for form, name in formats.kernels().items()
    }
