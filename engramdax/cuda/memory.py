# SPDX-License-Identifier: Apache-2.0
"""Memory of the GPU, host memory that it shares, and views that offer either to other libraries."""

from __future__ import annotations

import weakref
from typing import Any

from engramdax.cuda.driver import bindings, checked, synchronise


class View:
    """Memory at an address as an array of `__cuda_array_interface__` (numba's protocol, version 3).

    typestr: as numpy has it. strides: in bytes; None for a dense array. keep: what owns the memory, and so lives as
    long as whoever looks at it.
    """

    def __init__(
        self,
        address: int,
        shape: tuple[int, ...],
        typestr: str,
        strides: tuple[int, ...] | None = None,
        *,
        keep: Any = None,
    ) -> None:
        self._keep = keep
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": (address, False),  # torch takes no read-only memory
            "strides": strides,
            "stream": None,
            "version": 3,
        }


class DeviceMemory:
    """Memory of a GPU, freed with this object. Offers `__cuda_array_interface__` for a view of it.

    `shape` and `typestr` are what that view shows, by default bytes.
    """

    def __init__(self, nbytes: int, *, shape: tuple[int, ...] | None = None, typestr: str = "|u1") -> None:
        driver = bindings()
        self.nbytes = nbytes
        self.address = int(checked(driver.cuMemAlloc(max(nbytes, 1)), f"cannot have {nbytes} bytes of GPU memory"))
        self._finalizer = weakref.finalize(self, driver.cuMemFree, self.address)
        # At exit the driver may be gone already, and the memory goes with the process.
        self._finalizer.atexit = False
        self._shape = (nbytes,) if shape is None else shape
        self._typestr = typestr

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """Shape, type and address."""
        interface: dict[str, Any] = View(self.address, self._shape, self._typestr).__cuda_array_interface__
        return interface

    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copy a host array to it, and wait."""
        driver = bindings()
        checked(driver.cuMemcpyHtoD(self.address + offset, data.ctypes.data, data.nbytes), "cannot copy to the GPU")

    def read(self, data: Any) -> None:
        """Copy from it to a host array, after everything that the GPU has to do."""
        driver = bindings()
        synchronise()
        checked(driver.cuMemcpyDtoH(data.ctypes.data, self.address, data.nbytes), "cannot copy from the GPU")


class PinnedMemory:
    """Host memory that the GPU reads and writes at the same address, freed with this object."""

    def __init__(self, nbytes: int) -> None:
        driver = bindings()
        flags = driver.CU_MEMHOSTALLOC_PORTABLE | driver.CU_MEMHOSTALLOC_DEVICEMAP
        what = f"cannot have {nbytes} bytes of pinned memory"
        self.address = int(checked(driver.cuMemHostAlloc(nbytes, flags), what))
        self._finalizer = weakref.finalize(self, driver.cuMemFreeHost, self.address)
        self._finalizer.atexit = False  # as for DeviceMemory
