# SPDX-License-Identifier: Apache-2.0
"""The CUDA driver through cuda-python, with errors that say what was being done."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from engramdax._core import ffi, lib
from engramdax.errors import CudaError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

NO_CONTEXT: Final = 201
"""CUDA_ERROR_INVALID_CONTEXT: this thread has not used CUDA yet."""


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


def synchronise() -> None:
    """Wait until the current device has done all that it was given; CudaError where it failed."""
    checked(bindings().cuCtxSynchronize(), "the GPU failed")


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


def attribute(ordinal: int, name: str) -> int:
    """Give a device's attribute, by what follows CU_DEVICE_ATTRIBUTE_ in the driver's name for it."""
    driver = bindings()
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(checked(driver.cuDeviceGetAttribute(which, ordinal), f"device {ordinal} does not tell its {name}"))


def uuid_of(ordinal: int) -> str:
    """Give a device's uuid, in hex."""
    uuid = checked(bindings().cuDeviceGetUuid(ordinal), f"device {ordinal} does not tell its uuid")
    return bytes(uuid.bytes).hex()
