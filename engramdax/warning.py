# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the program that called us, however deep in this package they come up."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Final

_PACKAGE: Final = str(Path(__file__).parent) + "/"


def warn(message: str, category: type[Warning]) -> None:
    """Warn of what happened in a call of this package; Python 3.12's `skip_file_prefixes` does the same."""
    frame = sys._getframe(1)  # noqa: SLF001 - what `inspect.currentframe` is, typed
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    place = frame.f_globals
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=place.get("__name__"),
        registry=place.setdefault("__warningregistry__", {}),
    )
