# SPDX-License-Identifier: Apache-2.0
"""A gather whose arguments were checked once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engramdax._core import lib
from engramdax.cuda.driver import NO_CONTEXT, use
from engramdax.errors import ClosedError

if TYPE_CHECKING:
    from engramdax.cuda.calls import Prepared
    from engramdax.cuda.table import CudaTable


class CudaGatherer:
    """A gather whose arrays were checked once; made by `CudaTable.gatherer`. A call launches it and gives `out`.

    Several threads may call it at once, and all write the one `out`. It keeps its arrays alive.
    """

    __slots__ = ("_arguments", "_keep", "out", "table")

    def __init__(self, table: CudaTable, prepared: Prepared) -> None:
        self.table = table
        self.out = prepared.out
        self._arguments = tuple(prepared.launch)  # plain, which a call passes on as it is
        self._keep = prepared.keep

    def __call__(self) -> Any:
        """Launch on the stream that was given."""
        if self.table.closed:
            raise ClosedError(f"the CudaTable of {self.table.table.name} was closed")
        if result := lib.ed_cuda_gather(*self._arguments):
            if result == NO_CONTEXT:
                # A thread that has not used CUDA yet.
                use(self.table.device)
                result = lib.ed_cuda_gather(*self._arguments)
            if result:
                raise self.table.launch_error(result)
        return self.out
