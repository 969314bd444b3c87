# SPDX-License-Identifier: Apache-2.0
"""Gathers whose ids are on the host: they go into a mailbox at once, and no kernel has to bring them."""

from __future__ import annotations

import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax._core import ffi, lib
from engramdax.cuda.driver import DeviceMemory, bindings, checked, use
from engramdax.errors import CudaError

if TYPE_CHECKING:
    import numpy.typing as npt

    from engramdax.cuda.lane import Lane
    from engramdax.cuda.table import CudaTable

TURN_SECONDS: Final = 1.0
"""How long a call waits for the one before; then the GPU reads the rows itself, where it can."""

_NAP_SECONDS: Final = 20e-6


class HostRounds:
    """The lane of a CudaTable for such gathers; `lane` is None where rows have to be read directly."""

    def __init__(self, cuda: CudaTable, lane: Lane | None) -> None:
        # Not a cycle: the garbage collector would take its time over pinned memory.
        self._cuda: Any = weakref.proxy(cuda)
        self.lane = lane
        self._turn = threading.Lock()
        self._routes: dict[int, Any] = {}

    def route(self, direct: Any) -> Any:
        """Give the route of a form through this lane, in place of that for ids on the device."""
        key = int(direct.direct)
        if key not in self._routes:
            core = self.lane.core if self.lane else ffi.NULL
            fields = {"direct": direct.direct, "mixed": direct.mixed, "lane": core}
            self._routes[key] = ffi.new("struct ed_cuda_route *", fields)
        return self._routes[key]

    def launch(
        self, plan: Any, route: Any, rows: npt.NDArray[np.int64], out: tuple[int, int, int], stream: int
    ) -> None:
        """Start the gather of rows [outer, columns] into `out`: address, bytes from outer to outer, between columns."""
        cuda = self._cuda
        use(cuda.device)
        with self._turn:
            if self.lane is not None and rows.size <= self.lane.capacity:
                ids = np.ascontiguousarray(rows, np.int32)
                result = self._in_turn(plan, route, ids, out, stream)
                if result == 0:
                    return
                if result != lib.ED_CUDA_BUSY:
                    raise (self.lane.error() if result == lib.ED_CUDA_TROUBLE else None) or cuda.launch_error(result)
            if not cuda.device_ptr:
                raise CudaError(
                    f"the CPU cannot fetch {rows.size} rows of table {cuda.table.name} now, and the GPU never, "
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
        direct: Any = ffi.new("struct ed_cuda_route *", {"direct": route.direct})
        result = lib.ed_cuda_gather(plan, direct, ids.address, 1, rows.shape[1], rows.shape[0], *out, stream)
        if result:
            raise self._cuda.launch_error(result)
        checked(bindings().cuStreamSynchronize(stream), "the GPU failed")  # the ids are read until then

    def close(self) -> None:
        """Close the lane, once the GPU has done what was launched."""
        if self.lane:
            self.lane.close()
