# SPDX-License-Identifier: Apache-2.0
"""Launches, and their forms: what serving engines' calls have in common from step to step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_FORMS: Final = 256
"""That a CudaTable remembers; engines have one for each batch size that they pad to."""

MOST_ALIGN: Final = 16


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


@dataclass(frozen=True, slots=True)
class Form:
    """All arguments of a launch but addresses and stream, for tensors of one form."""

    plan: Any
    route: Any
    ids_64: bool
    ids_stride: int
    outer: int
    out_stride: int
    column_stride: int
    align: int
    """What the address of the output must be a multiple of."""


def form_of(launch: Launch) -> Form:
    """Give the form of a launch, for others whose output is aligned as its is."""
    align = launch.out & -launch.out if launch.out else MOST_ALIGN
    return Form(
        launch.plan,
        launch.route,
        launch.ids_64,
        launch.ids_stride,
        launch.outer,
        launch.out_stride,
        launch.column_stride,
        min(align, MOST_ALIGN),
    )


def form_key(ids: Any, out: Any, *rest: Any) -> Any:
    """Give what the form of a call with torch's tensors depends on; None for other arrays."""
    try:
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
