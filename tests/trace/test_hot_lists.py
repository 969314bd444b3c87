# SPDX-License-Identifier: Apache-2.0
"""Files that claim to be hot lists."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from engramdax.errors import SourceError
from engramdax.trace.hotlist import FIELDS, read_hot_list


@pytest.mark.parametrize("name", FIELDS)
def test_member_of_a_hot_list_that_is_no_array_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "list.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for field in FIELDS:
            array = io.BytesIO()
            np.save(array, np.array([1]))
            archive.writestr(f"{field}.npy", b"no array" if field == name else array.getvalue())
    with pytest.raises(SourceError, match=f"{path} is no hot list, or is cut off: its {name} is no array"):
        read_hot_list(path)
