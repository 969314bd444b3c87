# SPDX-License-Identifier: Apache-2.0
"""What is asked of a CudaTable is looked at before anything is registered, which takes minutes for large pools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax.cuda import mix
from engramdax.errors import ParameterError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"path": "fast"}, "path='fast' is unknown"),
        ({"sm_share": 0}, "sm_share=0 is no share"),
        ({"sm_share": 1.5}, "sm_share=1.5 is no share"),
        ({"sm_share": float("nan")}, "sm_share=nan is no share"),
        ({"sm_share": "half"}, "sm_share='half' is no share"),
        ({"threads": 0}, "threads=0 copies nothing"),
        ({"threads": -3}, "threads=-3 copies nothing"),
        ({"threads": 2.5}, "threads=2.5 is no whole number"),
        ({"rows": (0, 9)}, "rows 0 to 9 are no part of 8"),
        ({"rows": (5, 4)}, "rows 5 to 4 are no part of 8"),
        ({"heads": (0, 0)}, "make no range"),
        ({"heads": (1, 2), "padded_heads": 1}, "make no range"),
    ],
)
def test_options_that_make_no_sense_are_refused_without_a_gpu(
    make_pool: Callable[..., Path], load_array: Callable[..., Any], options: dict[str, Any], says: str
) -> None:
    path = make_pool()
    load_array(path, "t", np.zeros((8, 8), np.uint8))
    with engramdax.open(path) as pool, pytest.raises(ParameterError, match=says):
        pool["t"].cuda(**options)


def test_a_damaged_mix_is_as_good_as_none(tmp_path: Path) -> None:
    path = tmp_path / "mix.json"
    mix.keep(path, mix.Mix(measured={"direct 1536": 1.0}))
    good = json.loads(path.read_text())
    assert mix.read(path) is not None
    for name, value in [
        ("deadline_us", float("inf")),
        ("deadline_us", 4_000_000_000),
        ("deadline_row_ns", 4_000_000_000),
        ("local_of_64", 65),
        ("first_local", -1),
        ("from_rows", "many"),
        ("measured", 3),
        ("seconds", None),
    ]:
        path.write_text(json.dumps({**good, name: value}))
        assert mix.read(path) is None, name
    for text in ("", "[]", "3", "{", "[" * 100_000):
        path.write_text(text)
        assert mix.read(path) is None, text[:9]


def test_shares_measured_with_other_kernels_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = mix.cache_path("gpu", 1)
    assert mix.cache_path("gpu", 1) == kept
    monkeypatch.setattr(mix, "source", lambda: b"of another release")
    assert mix.cache_path("gpu", 1) != kept
