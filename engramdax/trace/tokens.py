# SPDX-License-Identifier: Apache-2.0
"""Token traces: sequences of token ids out of text, .npy and .npz files."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError, SourceError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

TEXT_PIECE = 1 << 20
"""Characters that are tokenized at a time, at the end of a line."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Sequences of tokens one after the other: `tokens` int64 [T]; sequence i is starts[i] to starts[i + 1].

    `compressed` says that the ids are compressed ones already.
    """

    tokens: npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    compressed: bool

    def split(self, share: float) -> tuple[Trace, Trace]:
        """Cut in two after `share` of the tokens; a sequence that is cut begins anew behind the cut."""
        at = round(self.tokens.size * share)
        before = self.starts[self.starts < at]
        after = self.starts[self.starts > at] - at
        return (
            Trace(self.tokens[:at], np.append(before, at), self.compressed),
            Trace(self.tokens[at:], np.insert(after, 0, 0), self.compressed),
        )


def read_traces(paths: Sequence[Path], *, tokenizer: Tokenizer | None = None) -> Trace:
    """Read files, each one sequence or more, as one trace.

    .npy: a vector of raw ids, one sequence. .npz: `token_ids` or `compressed_ids`, and `doc_lengths` where it
    is several sequences. Anything else is text in UTF-8, and needs the tokenizer. Raises SourceError.
    """
    parts = [_read(path, tokenizer) for path in paths]
    if not parts or not sum(part.tokens.size for part in parts):
        raise SourceError(f"the trace is empty: {', '.join(map(str, paths))}", remedy="give files that hold tokens")
    if len({part.compressed for part in parts}) > 1:
        raise ParameterError("some of the files hold raw token ids and some compressed ones")
    offsets = np.cumsum([0, *(part.tokens.size for part in parts)])
    starts = np.concatenate([part.starts[:-1] + at for part, at in zip(parts, offsets[:-1], strict=True)])
    tokens = np.concatenate([part.tokens for part in parts])
    return Trace(tokens, np.append(starts, offsets[-1]), parts[0].compressed)


def _read(path: Path, tokenizer: Tokenizer | None) -> Trace:
    try:
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix == ".npy":
            tokens = _vector(path, "its array", np.load(path, allow_pickle=False))
            return Trace(tokens, np.array([0, tokens.size]), compressed=False)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist", remedy="check the path") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as e:
        raise SourceError(f"{path} is no token trace: {e}", remedy="give text, .npy or .npz") from None
    if tokenizer is None:
        raise ParameterError(f"{path} is text", remedy="give the model's --tokenizer tokenizer.json")
    tokens = np.array([token for piece in _pieces(text) for token in tokenizer.encode(piece).ids], np.int64)
    return Trace(tokens, np.array([0, tokens.size]), compressed=False)


def _read_npz(path: Path) -> Trace:
    with np.load(path, allow_pickle=False) as archive:
        names = [name for name in ("token_ids", "compressed_ids") if name in archive]
        if len(names) != 1:
            raise SourceError(
                f"{path} holds {', '.join(archive.files) or 'nothing'}",
                remedy="a trace holds token_ids or compressed_ids, and doc_lengths",
            )
        tokens = _vector(path, names[0], archive[names[0]])
        lengths = _vector(path, "doc_lengths", archive["doc_lengths"]) if "doc_lengths" in archive else None
    starts = np.array([0, tokens.size]) if lengths is None else np.cumsum(np.insert(lengths, 0, 0))
    if (lengths is not None and (lengths < 0).any()) or starts[-1] != tokens.size:
        raise SourceError(f"{path}: doc_lengths add up to {starts[-1]}, but there are {tokens.size} tokens")
    return Trace(tokens, starts, compressed=names[0] == "compressed_ids")


def _vector(path: Path, what: str, array: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise SourceError(f"{path}: {what} is {array.dtype} {list(array.shape)}; expected a vector of integers")
    return array.astype(np.int64)


def _pieces(text: str) -> list[str]:
    """Cut a long text at ends of lines: tokenizers take memory by the length of what they are given."""
    pieces, at = [], 0
    while at < len(text):
        end = text.find("\n", min(at + TEXT_PIECE, len(text)))
        end = len(text) if end < 0 else end + 1
        pieces.append(text[at:end])
        at = end
    return pieces
