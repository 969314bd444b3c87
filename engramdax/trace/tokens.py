# SPDX-License-Identifier: Apache-2.0
"""Token traces: sequences of token ids out of text, .npy and .npz files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError, SourceError
from engramdax.ingest.naming import shown
from engramdax.trace.archive import array_of, opened_arrays, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer

TEXT_PIECE: Final = 1 << 20
"""Characters that are tokenized at a time, at the end of a line."""

WHAT: Final = "token trace"
KINDS: Final = "give text, .npy or .npz"


@dataclass(frozen=True, slots=True)
class Trace:
    """Sequences of tokens one after the other: `tokens` int32 or int64 [T]; sequence i is starts[i] to starts[i + 1].

    `compressed` says that the ids are compressed ones already. A token of -1 is padding, which reads nothing. `files`
    are the files that it was read from, and where the tokens of each begin.
    """

    tokens: npt.NDArray[np.int32] | npt.NDArray[np.int64]
    starts: npt.NDArray[np.int64]
    compressed: bool
    files: tuple[tuple[str, int], ...] = ()

    def reads(self, heads: int) -> int:
        """Give how many rows a layer of so many heads reads for these tokens."""
        return int(np.count_nonzero(self.tokens != -1)) * heads

    def check(self, vocab: int) -> None:
        """Raise SourceError for a token that is neither -1 nor below `vocab`."""
        if self.tokens.size and self.tokens.min() >= -1 and self.tokens.max() < vocab:
            return
        wrong = np.flatnonzero((self.tokens < -1) | (self.tokens >= vocab))
        if wrong.size:
            position = int(wrong[0])
            file, begin = [(file, begin) for file, begin in self.files or (("the trace", 0),) if begin <= position][-1]
            raise SourceError(
                f"{file}: token {position - begin} is {self.tokens[position]}; the vocabulary has "
                f"{'compressed ' if self.compressed else ''}ids 0 to {vocab - 1}",
                remedy="use the tokenizer of the table's model; -1 is padding",
            )

    def split(self, share: float) -> tuple[Trace, Trace]:
        """Cut in two after `share` of the tokens; a sequence that is cut begins anew behind the cut.

        Raises ParameterError where that leaves nothing on one side.
        """
        at = round(self.tokens.size * share)
        if not self.reads(1) or not 0 < at < self.tokens.size:
            raise ParameterError(
                f"a share of {share} of {self.tokens.size} tokens leaves nothing to count, or nothing to serve",
                remedy="give a longer trace, or another share",
            )
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
    if not any(part.reads(1) for part in parts):
        raise SourceError(f"the trace is empty: {', '.join(map(str, paths))}", remedy="give files that hold tokens")
    if len({part.compressed for part in parts}) > 1:
        raise ParameterError(
            "some of the files hold raw token ids and some compressed ones", remedy="give files of one kind"
        )
    begins = np.cumsum([0, *(part.tokens.size for part in parts)])
    starts = np.concatenate([part.starts[:-1] + at for part, at in zip(parts, begins[:-1], strict=True)])
    return Trace(
        np.concatenate([part.tokens for part in parts]) if len(parts) > 1 else parts[0].tokens,
        np.append(starts, begins[-1]),
        parts[0].compressed,
        tuple((str(path), int(at)) for path, at in zip(paths, begins[:-1], strict=True)),
    )


def _read(path: Path, tokenizer: Tokenizer | None) -> Trace:
    if path.suffix == ".npz":
        return _read_npz(path)
    if path.suffix == ".npy":
        with opened_arrays(path, WHAT, remedy=KINDS) as array:
            tokens = _vector(path, "its array", array)
        return Trace(tokens, np.array([0, tokens.size]), compressed=False)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise unreadable(path, WHAT, e, remedy=KINDS) from None
    if tokenizer is None:
        raise ParameterError(f"{path} is text", remedy="give the model's --tokenizer tokenizer.json")
    pieces = [np.array(tokenizer.encode(piece, add_special_tokens=False).ids, np.int32) for piece in _pieces(text)] or [
        np.empty(0, np.int32)
    ]
    tokens = np.concatenate(pieces)
    return Trace(tokens, np.array([0, tokens.size]), compressed=False)


def _read_npz(path: Path) -> Trace:
    with opened_arrays(path, WHAT, remedy=KINDS) as archive:
        if isinstance(archive, np.ndarray):
            raise SourceError(f"{path} holds a single array, no archive", remedy="name it .npy")
        names = [name for name in ("token_ids", "compressed_ids") if name in archive]
        if len(names) != 1:
            listed = ", ".join(map(shown, archive.files[:8])) + (", ..." if len(archive.files) > 8 else "")
            raise SourceError(
                f"{path} holds {listed or 'nothing'}",
                remedy="a trace holds token_ids or compressed_ids, and doc_lengths",
            )
        tokens = _vector(path, names[0], array_of(archive, names[0]))
        lengths = None
        if "doc_lengths" in archive:
            lengths = _vector(path, "doc_lengths", array_of(archive, "doc_lengths"))
    if lengths is None:
        starts = np.array([0, tokens.size])
    else:
        starts = np.cumsum(np.insert(lengths.astype(np.int64), 0, 0))
        # A sum beyond int64 is negative where it first is.
        if (lengths < 0).any() or (starts < 0).any() or starts[-1] != tokens.size:
            raise SourceError(
                f"{path}: doc_lengths add up to {sum(lengths.tolist())}, but there are {tokens.size} tokens",
                remedy="give the length of each sequence in doc_lengths, or leave it out",
            )
    return Trace(tokens, starts, compressed=names[0] == "compressed_ids")


def _vector(path: Path, what: str, array: Any) -> npt.NDArray[np.int32] | npt.NDArray[np.int64]:
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an archive"
        raise SourceError(f"{path}: {what} is {found}", remedy="give a vector of integers")
    if array.size and int(array.max()) >= 1 << 63:
        raise SourceError(f"{path}: {what} holds {array.max()}, beyond int64", remedy="give token ids")
    # Half the memory, which a long trace takes for as long as it is counted.
    narrow = not array.size or (int(array.max()) < 1 << 31 and int(array.min()) >= -(1 << 31))
    return array.astype(np.int32) if narrow else array.astype(np.int64)


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text at ends of lines: tokenizers take memory by the length of what they are given."""
    at = 0
    while at < len(text):
        end = text.find("\n", min(at + TEXT_PIECE, len(text)))
        end = len(text) if end < 0 else end + 1
        yield text[at:end]
        at = end
