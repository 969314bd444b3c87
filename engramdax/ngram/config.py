# SPDX-License-Identifier: Apache-2.0
"""A model's config.json as a file: its layout, and errors that name it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from engramdax.errors import ParameterError, SourceError
from engramdax.ngram.layout import Layout

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import numpy.typing as npt


def read_layout(path: Path, *, token_map: npt.NDArray[np.integer[Any]] | None) -> Layout:
    """Give the layout that a config.json describes; `token_map` as for `Layout.from_config`. Raises SourceError."""
    return layout_of(path, read_config(path), token_map=token_map)


def read_config(path: Path) -> Any:
    """Give the JSON of the file; SourceError where it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist", remedy="give the model's config.json") from None
    except (OSError, ValueError, RecursionError) as e:
        why = (e.strerror if isinstance(e, OSError) else None) or e
        raise SourceError(f"{path} cannot be read: {why}", remedy="take the model's own config.json") from None


def layout_of(path: Path, config: Any, *, token_map: npt.NDArray[np.integer[Any]] | None) -> Layout:
    """Give the layout of what `read_config` read from `path`; SourceError where it describes none."""
    try:
        return Layout.from_config(config, token_map=token_map)
    except ParameterError as e:
        raise SourceError(f"{path}: {e.problem}", remedy=e.remedy) from None
