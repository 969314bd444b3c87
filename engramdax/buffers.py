# SPDX-License-Identifier: Apache-2.0
"""The arrays that a gather takes: ids and output, in whatever form a caller has them."""

from __future__ import annotations

from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError

_IDS: Final[dict[int, np.dtype[Any]]] = {4: np.dtype(np.int32), 8: np.dtype(np.int64)}


class ArrayInterface(Protocol):
    """What numpy and its kin offer to each other."""

    @property
    def __array_interface__(self) -> dict[str, Any]:
        """Shape, type and address, by numpy's protocol."""


def id_array(ids: Any) -> npt.NDArray[Any]:
    """Give `ids` as a C-contiguous array of int32 or int64; ParameterError for anything else."""
    try:
        array = np.asarray(ids)
    except (TypeError, ValueError) as e:
        raise ParameterError(f"ids are no array: {e}", remedy="give int32 or int64, all rows of equal length") from None
    if array.size == 0 and array.dtype == np.float64 and not hasattr(ids, "dtype"):
        array = array.astype(np.int64)  # numpy calls an empty list float64
    if array.dtype not in _IDS.values():
        raise ParameterError(f"ids are {array.dtype}", remedy="give int32 or int64, in native byte order")
    if not array.flags.c_contiguous:
        raise ParameterError(
            f"ids of shape {array.shape} are not C-contiguous (strides {array.strides})",
            remedy="give numpy.ascontiguousarray(ids)",
        )
    # Types are equal that are not one object (of an unpickled array, or numpy.longlong), and gathers compare
    # objects.
    return array if array.dtype is _IDS[array.itemsize] else array.view(_IDS[array.itemsize])


def out_bytes(out: Any, rows: int, row_bytes: int) -> npt.NDArray[np.uint8]:
    """Give `out` as flat writable bytes, as many as so many rows take; ParameterError for anything else."""
    needed = rows * row_bytes
    if isinstance(out, np.ndarray) or hasattr(out, "__array_interface__"):
        array = np.asarray(out)
    else:
        try:
            array = np.frombuffer(out, np.uint8) if memoryview(out).nbytes else np.empty(0, np.uint8)
        except (TypeError, ValueError, BufferError) as e:
            raise ParameterError(
                f"out is a {type(out).__name__} ({e})", remedy="give a writable contiguous buffer"
            ) from None
    if array.dtype.hasobject:
        raise ParameterError(f"out is of dtype {array.dtype}", remedy="give an array of plain numbers")
    if not array.flags.c_contiguous:
        raise ParameterError(f"out of shape {array.shape} is not C-contiguous (strides {array.strides})")
    if not array.flags.writeable:
        raise ParameterError("out is read-only", remedy="give a writable buffer")
    if array.nbytes != needed:
        raise ParameterError(f"out has {array.nbytes} bytes, {rows} rows of {row_bytes} bytes need {needed}")
    flat: npt.NDArray[np.uint8] = array.reshape(-1).view(np.uint8)
    return flat
