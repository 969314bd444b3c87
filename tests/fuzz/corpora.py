# SPDX-License-Identifier: Apache-2.0
"""The corpus: small inputs that are right, from which the fuzzers make others. Folders are kinds of input."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

CORPUS: Final = Path(__file__).with_name("corpus")


@cache
def seeds(kind: str) -> dict[str, bytes]:
    """Give the inputs of a kind by the names of their files, in an order that stays."""
    found = {path.name: path.read_bytes() for path in sorted((CORPUS / kind).iterdir())}
    assert found
    return found
