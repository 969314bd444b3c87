# SPDX-License-Identifier: Apache-2.0
"""Launches, and their forms: what serving engines' calls have in common from step to step."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from engramdax import plain
from engramdax._core import ffi, lib

MOST_FORMS: Final = 256
"""That a CudaTable remembers; engines have one for each batch size that they pad to."""

MOST_ALIGN: Final = 16

_FORM: Final[Any] = ffi.typeof("struct ed_cuda_form *")


class Launch(NamedTuple):
    """The arguments of ed_cuda_gather (c/cuda.h), in its order; strides of ids in elements, of out in bytes."""

    plan: Any
    route: Any
    ids: int
    ids_64: bool
    ids_stride: int
    outer: int
    out: int
    out_stride: int
    column_stride: int
    stream: int


def form_of(launch: Launch) -> bytes:
    """Give the form of a launch, a `struct ed_cuda_form`, for others whose output is aligned as its is.

    Plan and route have to outlive it.
    """
    align = launch.out & -launch.out if launch.out else MOST_ALIGN
    form: Any = ffi.new(
        "struct ed_cuda_form *",
        {
            "plan": launch.plan,
            "route": launch.route,
            "ids_64": launch.ids_64,
            "ids_stride": launch.ids_stride,
            "outer": launch.outer,
            "out_stride": launch.out_stride,
            "out_column_stride": launch.column_stride,
            "align": min(align, MOST_ALIGN),
        },
    )
    return bytes(ffi.buffer(form))


def form_key(ids: Any, out: Any, *rest: Any) -> Any:
    """Give what the form of a call with torch's tensors depends on; None for other arrays.

    rest: `format` and `per_head`, as of `CudaTable.gather`.
    """
    key = plain.form_key(ids, out, *rest)
    if key is not None:
        return key
    try:  # torch before 2.10
        return (
            ids.shape,
            ids.stride(),
            ids.dtype,
            ids.get_device(),
            out.shape,
            out.stride(),
            out.dtype,
            out.get_device(),
            *rest,
        )
    except (AttributeError, TypeError):
        return None


def launch_as(form: bytes, ids: int, out: int, stream: int) -> int | None:
    """Launch a gather of a form; None where the address of `out` does not go with it."""
    known: Any = ffi.from_buffer(_FORM, form)
    if out & (known.align - 1):
        return None
    return int(lib.ed_cuda_gather_form(known, ids, out, stream))
