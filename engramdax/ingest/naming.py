# SPDX-License-Identifier: Apache-2.0
"""Names taken from files: as a table's default name, and as one printable piece of an error line."""

from __future__ import annotations

import os
import re
from typing import Final

from engramdax.format.directory import MAX_TABLE_NAME
from engramdax.format.superblock import NAME_CHARACTERS

SHOWN_CHARS: Final = 200


def table_name(text: str) -> str:
    """Make a valid table name of a file's stem or a tensor's name; never fails.

    Every character that no table name has (engramdax.format.directory) becomes "-", empty components vanish.
    """
    parts = []
    for part in text.split("/"):
        clean = re.sub(rf"[^{NAME_CHARACTERS}]", "-", part)
        if clean:
            parts.append("-" * len(clean) if clean in (".", "..") else clean)
    name = "/".join(parts)[:MAX_TABLE_NAME].rstrip("/")
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
