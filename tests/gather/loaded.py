# SPDX-License-Identifier: Apache-2.0
"""A published table beside the array that it was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import engramdax


class Loaded(NamedTuple):
    """A table, what its rows are, and the file of its pool."""

    table: engramdax.Table
    rows: npt.NDArray[np.uint8]
    path: Path

    def expected(self, ids: Any) -> npt.NDArray[np.uint8]:
        """What numpy makes of a gather; -1 gives zeros."""
        ids = np.asarray(ids)
        found = self.rows[np.maximum(ids, 0)]
        found[ids < 0] = 0
        return found
