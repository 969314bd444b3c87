# SPDX-License-Identifier: Apache-2.0
"""A model's tokenizer.json, read by the optional package `tokenizers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.errors import EngramdaxError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenizers import Tokenizer


def read_tokenizer(path: Path, *, extra: str = "tokens") -> Tokenizer:
    """Give the tokenizer of a tokenizer.json.

    `extra` is the extra of this package that brings what the caller needs. Raises EngramdaxError where `tokenizers` is
    not installed, SourceError for a file that holds no tokenizer.
    """
    try:
        from tokenizers import Tokenizer  # noqa: PLC0415  # optional
    except ImportError:
        raise EngramdaxError(
            "the Python package tokenizers is not installed", remedy=f"pip install 'engramdax[{extra}]'"
        ) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as e:  # noqa: BLE001 - tokenizers raises plain Exception for whatever is wrong with the file
        raise SourceError(f"{path} is no tokenizer.json: {e}", remedy="take the model's own") from None
