# SPDX-License-Identifier: Apache-2.0
"""Figures that commands draw: what `--plot FILE` takes, and how a figure is written there."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from engramdax.errors import BackingError, EngramdaxError, ParameterError

if TYPE_CHECKING:
    from pathlib import Path

ENDINGS: Final = (".png", ".svg", ".pdf")


def check_figure(path: Path) -> None:
    """Refuse what could not be drawn, before anything is measured or counted for it.

    Raises ParameterError for an ending that is none of ENDINGS and for a directory that is not there, EngramdaxError
    where matplotlib is not installed.
    """
    if path.suffix not in ENDINGS:
        raise ParameterError(f"--plot {path} has no known ending", remedy=f"end it in {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise ParameterError(f"--plot {path}: {path.parent} is no directory", remedy="make it first")
    try:
        importlib.import_module("matplotlib")
    except ImportError:
        raise EngramdaxError(
            "the Python package matplotlib is not installed", remedy="pip install 'engramdax[plot]'"
        ) from None


def save_figure(figure: Any, path: Path) -> None:
    """Write a matplotlib Figure; BackingError where that fails."""
    try:
        figure.savefig(path)
    except OSError as e:
        raise BackingError(f"cannot write {path}: {e.strerror or e}", remedy="give another --plot") from None
