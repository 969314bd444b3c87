# SPDX-License-Identifier: Apache-2.0
"""Gathers whose ids are on the host: they go into a mailbox at once, and no kernel has to bring them."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib
from engramdax.cuda.calls import launch_error
from engramdax.cuda.driver import bindings, checked, on_device
from engramdax.cuda.memory import DeviceMemory
from engramdax.cuda.routes import routes
from engramdax.errors import CudaError

if TYPE_CHECKING:
    import numpy.typing as npt

    from engramdax.cuda.calls import Calls, HostLaunch
    from engramdax.cuda.lane import Lane

TURN_SECONDS: Final = 1.0
"""How long a call waits for the one before; then the GPU reads the rows itself, where it can."""

_NAP_SECONDS: Final = 20e-6


class HostRounds:
    """Such gathers of one CudaTable, one at a time. `lane` serves them alone; None where rows are read directly.

    Several threads may call it at once, and take turns.
    """

    def __init__(self, calls: Calls, lane: Lane | None) -> None:
        self._calls = calls
        self.lane = lane
        self._turn = threading.Lock()
        self._routes = routes(calls.table, calls.device, calls.formats, lane)

    def launch(self, call: HostLaunch) -> None:
        """Start a gather. CudaError where neither the CPU nor the GPU can fetch its rows."""
        plan, form, rows, out, stream = call
        route = self._routes[form]
        table = self._calls.table
        with on_device(self._calls.device), self._turn:
            if self.lane is not None and rows.size <= self.lane.capacity:
                ids = np.ascontiguousarray(rows, np.int32)
                result = self._in_turn(plan, route, ids, out, stream)
                if result == 0:
                    return
                if result != lib.ED_CUDA_BUSY:
                    raise launch_error(table, (self.lane,), result)
            if not self._calls.plans.base:
                raise CudaError(
                    f"the CPU cannot fetch {rows.size} rows of table {table.name} now, and the GPU never, "
                    "as the pool is not registered",
                    remedy="gather fewer rows at once, or wait for the gather before",
                )
            self._directly(plan, route, rows, out, stream)

    def _in_turn(
        self, plan: Any, route: Any, ids: npt.NDArray[np.int32], out: tuple[int, int, int], stream: int
    ) -> int:
        pointer: Any = ffi.cast("int32_t *", ids.ctypes.data)
        end = time.monotonic() + TURN_SECONDS
        while True:
            result = int(lib.ed_cuda_gather_host(plan, route, pointer, ids.shape[0], *out, stream))
            if result != lib.ED_CUDA_BUSY or time.monotonic() > end:
                return result
            time.sleep(_NAP_SECONDS)

    def _directly(
        self, plan: Any, route: Any, rows: npt.NDArray[np.int64], out: tuple[int, int, int], stream: int
    ) -> None:
        ids = DeviceMemory(rows.nbytes)
        ids.write(np.ascontiguousarray(rows))
        direct: Any = ffi.new("struct ed_cuda_route *", {"direct": route.direct, "table": route.table})
        result = lib.ed_cuda_gather(plan, direct, ids.address, 1, rows.shape[1], rows.shape[0], *out, stream)
        if result:
            raise launch_error(self._calls.table, (), result)
        checked(bindings().cuStreamSynchronize(stream), "the GPU failed")  # the ids are read until then
