# SPDX-License-Identifier: Apache-2.0
"""Warnings that name the line of the program that called us, however deep in this package they come up."""

from __future__ import annotations

import sys
import warnings
from typing import Final

# As the interpreter spells it: a Path would leave out the "." of an entry of sys.path.
_PACKAGE: Final = __file__.rpartition("/")[0] + "/"


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
