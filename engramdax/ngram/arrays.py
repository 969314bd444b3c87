# SPDX-License-Identifier: Apache-2.0
"""Checks of the one-dimensional arrays that addressing takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError


def vector(name: str, values: object, empty: type[np.generic]) -> npt.NDArray[Any]:
    """Return a one-dimensional array; an empty list, which has no dtype of its own, becomes `empty`'s."""
    try:
        array = np.asarray(values)
    except ValueError:
        raise ParameterError(f"{name} is ragged; expected one dimension") from None
    if array.ndim != 1:
        raise ParameterError(f"{name} has shape {list(array.shape)}; expected one dimension")
    return array.astype(empty) if array.size == 0 and not isinstance(values, np.ndarray) else array
