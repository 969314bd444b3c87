# SPDX-License-Identifier: Apache-2.0
"""Names taken from files: as a table's default name, and as one printable piece of an error line."""

from __future__ import annotations

import os
import re
from typing import Final

TABLE_NAME_CHARS: Final = 128
SHOWN_CHARS: Final = 200


def table_name(text: str) -> str:
    """Make a valid table name of a file's stem or a tensor's name; never fails.

    A table name is `[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*` of at most 128 characters with no component
    "." or "..". Every other character becomes "-", empty components vanish.
    """
    parts = []
    for part in text.split("/"):
        clean = re.sub(r"[^A-Za-z0-9._-]", "-", part)
        if clean:
            parts.append("-" * len(clean) if clean in (".", "..") else clean)
    name = "/".join(parts)[:TABLE_NAME_CHARS].rstrip("/")
    # The cut may have left a component of dots only, as in ".../..weights".
    head, slash, tail = name.rpartition("/")
    if tail in (".", ".."):
        name = head + slash + "-" * len(tail)
    return name or "table"


def shown(name: str | os.PathLike[str]) -> str:
    """Give a name as it goes into an error: one line, printable, of bounded length."""
    text = os.fspath(name)
    if len(text) > SHOWN_CHARS:
        text = f"{text[: SHOWN_CHARS // 2]}...{text[-SHOWN_CHARS // 2 :]}"
    return text if text.isprintable() and text.strip() else repr(text)
