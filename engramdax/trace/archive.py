# SPDX-License-Identifier: Apache-2.0
"""What numpy raises for a file that is not, or no longer, what it should be."""

from __future__ import annotations

import zipfile
import zlib
from typing import Final

UNREADABLE: Final = (
    OSError,
    ValueError,
    EOFError,
    KeyError,
    TypeError,  # of an array where an archive was expected
    AttributeError,
    NotImplementedError,  # a compression that zipfile has not
    RuntimeError,  # an archive with a password
    zipfile.BadZipFile,
    zlib.error,
)
