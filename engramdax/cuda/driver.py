# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver through cuda-python, with errors that say what was being done."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engramdax._core import ffi, lib
from engramdax.errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType


def bindings() -> ModuleType:
    """Give cuda.bindings.driver; CudaError where the package, the driver or a device is missing."""
    try:
        from cuda.bindings import driver  # noqa: PLC0415  # optional
    except ImportError:
        raise CudaError(
            "the Python package cuda-python is not installed", remedy="pip install 'engramdax[cuda]'"
        ) from None
    absent = lib.ed_cuda_open()
    if absent != ffi.NULL:
        raise CudaError(
            f"no CUDA device can be used: {_text(absent)}",
            remedy="check nvidia-smi; Table.gather works on the CPU all the same",
        )
    return driver  # type: ignore[no-any-return]


def use(ordinal: int) -> None:
    """Make the primary context of a device current for this thread."""
    bindings()
    if result := lib.ed_cuda_use(ordinal):
        raise error(result, f"device {ordinal} cannot be used", remedy="check nvidia-smi for the devices there are")


@contextmanager
def on_device(ordinal: int) -> Iterator[None]:
    """Make the primary context of a device current for a while, and then what was current before."""
    driver = bindings()
    before = checked(driver.cuCtxGetCurrent(), "the driver does not tell the current context")
    use(ordinal)
    try:
        yield
    finally:
        driver.cuCtxSetCurrent(before)


def error(result: int, what: str, *, remedy: str = "") -> CudaError:
    """Give the error for a CUresult that is not 0."""
    name, text = _text(lib.ed_cuda_error_name(result)), _text(lib.ed_cuda_error_text(result))
    return CudaError(f"{what}: {name}, {text}", remedy=remedy)


def _text(pointer: Any) -> str:
    text = ffi.string(pointer)
    return text.decode() if isinstance(text, bytes) else text


def checked(returned: tuple[Any, ...], what: str) -> Any:
    """Give the value of a cuda-python call, or raise."""
    result, *values = returned
    if int(result):
        raise error(int(result), what)
    return values[0] if len(values) == 1 else values


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
        """Shape, type and address, by numba's protocol, version 3."""
        return {
            "shape": self._shape,
            "typestr": self._typestr,
            "data": (self.address, False),
            "strides": None,
            "stream": None,
            "version": 3,
        }

    def write(self, data: Any, *, offset: int = 0) -> None:
        """Copy a host array to it, and wait."""
        driver = bindings()
        checked(driver.cuMemcpyHtoD(self.address + offset, data.ctypes.data, data.nbytes), "cannot copy to the GPU")

    def read(self, data: Any) -> None:
        """Copy from it to a host array, after everything that the GPU has to do."""
        driver = bindings()
        checked(driver.cuCtxSynchronize(), "the GPU failed")
        checked(driver.cuMemcpyDtoH(data.ctypes.data, self.address, data.nbytes), "cannot copy from the GPU")
