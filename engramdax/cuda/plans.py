# SPDX-License-Identifier: Apache-2.0
"""Plans: what launches of one CudaTable have in common, as `struct ed_cuda_gather` (c/cuda.h)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engramdax._core import ffi
from engramdax.cuda.memory import DeviceMemory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from engramdax.cuda.part import Part
    from engramdax.table import Table


class Plans:
    """A plan for each choice of columns, made when it is first asked for. May be used by several threads at once.

    base: address at which the GPU sees row 0, 0 where it does not. nbytes: GPU memory that the plans take.
    """

    def __init__(self, table: Table, base: int, part: Part, float8_dim: int) -> None:
        self.base = base
        plan: Any = ffi.new("struct ed_cuda_gather *")
        plan.base, plan.stride, plan.row_bytes = base, table.layout.row_bytes, table.layout.row_bytes
        plan.row_low, plan.row_high, plan.dim = part.low, part.high, float8_dim
        self._common = plan
        self._plans: dict[tuple[int, int, int, bool], Any] = {}
        self._begins: DeviceMemory | None = None
        self.nbytes = 0
        if part.begins is not None:
            self._begins = DeviceMemory(part.begins.nbytes)
            self._begins.write(part.begins)
            self.nbytes = part.begins.nbytes

    def plan(self, first: int, count: int, padded: int, *, per_head: bool) -> Any:
        """Give the plan for `count` columns of ids from `first` on, of which `padded` come out."""
        key = (first, count, padded, per_head)
        plan: Any = self._plans.get(key)
        if plan is None:
            plan = ffi.new("struct ed_cuda_gather *", self._common[0])
            plan.first_column, plan.columns, plan.out_columns = first, count, padded
            plan.head_begins = self._begins.address if per_head and self._begins else 0
            self._plans[key] = plan
        return plan

    def one_column(self) -> Any:
        """Give the plan for ids [N] of the table."""
        return self.plan(0, 1, 1, per_head=False)

    def add_hot(self, fields: Mapping[str, int]) -> None:
        """Have the plans that are made from here on know hot rows; those made before know none."""
        for name, value in fields.items():
            setattr(self._common.hot, name, value)
        self._plans.clear()

    def close(self) -> None:
        """Give the GPU memory back, once the GPU has done what was launched."""
        self._plans.clear()
        self._begins = None
