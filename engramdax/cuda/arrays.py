# SPDX-License-Identifier: Apache-2.0
"""Arrays of other libraries on the GPU: torch's own, DLPack, `__cuda_array_interface__`. None is imported here."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from engramdax.errors import ParameterError

if TYPE_CHECKING:
    import numpy.typing as npt

_DLPACK_CODES: Final = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}
_CUDA_KINDS: Final = (2, 13)  # DLPack's kDLCUDA and kDLCUDAManaged


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """An array in GPU memory: `strides` in bytes; `producer` is a stream whose work on it must come first."""

    address: int
    dtype: str
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    keep: Any
    producer: int | None = None
    torch: bool = False
    device: int | None = None
    """Ordinal of the GPU, where the array tells it."""

    def check_dense(self, what: str) -> None:
        """Raise ParameterError unless the elements lie one after the other."""
        dense = _dense(self.shape, self.itemsize)
        if any(n > 1 and have != want for n, have, want in zip(self.shape, self.strides, dense, strict=True)):
            raise ParameterError(f"{what} may not be strided ({self.strides} bytes)", remedy="give a contiguous array")


def device_array(array: Any, what: str) -> DeviceArray:
    """See what an array is; ParameterError for what is none on a GPU."""
    if hasattr(array, "data_ptr") and hasattr(array, "is_cuda"):
        if not array.is_cuda:
            raise ParameterError(f"{what} is a tensor on {array.device}", remedy="give one on the GPU")
        size = array.element_size()
        return DeviceArray(
            array.data_ptr(),
            str(array.dtype).removeprefix("torch."),
            size,
            tuple(array.shape),
            tuple(stride * size for stride in array.stride()),
            array,
            torch=True,
            device=array.get_device(),
        )
    if (interface := getattr(array, "__cuda_array_interface__", None)) is not None:
        return _from_interface(interface, array, what)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(array, what)
    raise ParameterError(
        f"{what} is a {type(array).__name__}",
        remedy="give a tensor or array on the GPU (torch, DLPack, __cuda_array_interface__)",
    )


def on_host(array: Any) -> npt.NDArray[Any] | None:
    """Give an array of numpy's, or a tensor of torch's in host memory, as numpy's; None for anything else."""
    if isinstance(array, np.ndarray):
        return array
    device = getattr(array, "device", None)
    if getattr(device, "type", None) == "cpu" and hasattr(array, "numpy"):
        found: npt.NDArray[Any] = array.numpy()
        return found
    return None


def _from_interface(interface: dict[str, Any], array: Any, what: str) -> DeviceArray:
    kinds = {"i": "int", "u": "uint", "f": "float"}
    order, kind, size = interface["typestr"][0], interface["typestr"][1], int(interface["typestr"][2:])
    if order == ">" or kind not in kinds or interface.get("mask") is not None:
        raise ParameterError(f"{what} is of type {interface['typestr']}", remedy="give plain numbers, native order")
    shape = tuple(interface["shape"])
    strides = interface.get("strides") or _dense(shape, size)
    return DeviceArray(
        interface["data"][0], f"{kinds[kind]}{8 * size}", size, shape, tuple(strides), array, interface.get("stream")
    )


class _DLDevice(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


def _from_dlpack(array: Any, what: str) -> DeviceArray:
    """Read the tensor out of a capsule, which lives on and keeps the memory."""
    # -1: the producer need not wait for anybody; ordering is the caller's, by the stream that it names.
    capsule = array.__dlpack__(stream=-1)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = ctypes.cast(get(capsule, b"dltensor"), ctypes.POINTER(_DLTensor)).contents
    if tensor.device.kind not in _CUDA_KINDS:
        raise ParameterError(f"{what} is not in GPU memory", remedy="give an array on the GPU")
    if tensor.code not in _DLPACK_CODES or tensor.lanes != 1 or tensor.bits % 8:
        raise ParameterError(f"{what} has an element type that is no plain number")
    size = tensor.bits // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(s * size for s in tensor.strides[: tensor.ndim]) if tensor.strides else _dense(shape, size)
    return DeviceArray(
        (tensor.data or 0) + tensor.byte_offset,
        f"{_DLPACK_CODES[tensor.code]}{tensor.bits}",
        size,
        shape,
        strides,
        (array, capsule),
        device=tensor.device.ordinal,
    )


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Give the strides, in bytes, of an array without gaps."""
    strides = []
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return tuple(reversed(strides))
