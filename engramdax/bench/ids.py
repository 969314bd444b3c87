# SPDX-License-Identifier: Apache-2.0
"""The ids that are gathered: uniform, of a real token trace, or the same rows again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from engramdax.errors import ParameterError, SourceError
from engramdax.ngram import Hasher, Layout
from engramdax.trace.archive import array_of, opened_arrays

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    Ids = npt.NDArray[np.int64]

KINDS: Final = ("uniform", "trace", "cached")

# DeepSeek-V4.1's; only the sizes of the heads are made to fit the table.
V41_LAYERS: Final = (1,)
V41_LONGEST: Final = 4
V41_HEADS: Final = 8
V41_COMPRESSED_VOCAB: Final = 99_092
V41_PAD: Final = 2


class IdStream(Protocol):
    """Where ids come from."""

    def draw(self, calls: int, rows: int, seed: list[int]) -> Ids:
        """Give int64 [calls, rows], by `seed` alone."""


class Uniform:
    """Any row as likely as any other: the worst case, as hashes of rare n-grams are."""

    def __init__(self, table_rows: int) -> None:
        self._table_rows = table_rows

    def draw(self, calls: int, rows: int, seed: list[int]) -> Ids:
        """Give fresh ids for each call."""
        return np.random.default_rng(seed).integers(0, self._table_rows, (calls, rows))


class Cached:
    """The same rows in every call, which the first calls bring into the caches: what a call costs by itself."""

    def __init__(self, table_rows: int) -> None:
        self._table_rows = table_rows

    def draw(self, calls: int, rows: int, seed: list[int]) -> Ids:
        """Give the ids of one call, repeated."""
        return np.tile(np.random.default_rng(seed).integers(0, self._table_rows, rows), (calls, 1))


class Trace:
    """Ids of real text: successive tokens of a trace, hashed by V4.1's rule into as many rows as there are.

    `path` is an .npz of `compressed_ids`, or of `token_ids` with or without a `token_map` from raw to
    compressed ids; `doc_lengths` says, if present, where texts end, which no n-gram reaches across.
    SourceError for anything else.
    """

    def __init__(self, path: Path, table_rows: int) -> None:
        arrays = _read(path)
        token_map = arrays.get("token_map")
        name = "compressed_ids" if "compressed_ids" in arrays else "token_ids"
        if name not in arrays:
            raise SourceError(f"{path} holds neither compressed_ids nor token_ids", remedy="name the array so")
        if name == "compressed_ids":
            token_map = None
        tokens = arrays[name]
        for what in (name, "doc_lengths", "token_map"):
            array = arrays.get(what)
            if array is not None and (array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu"):
                raise SourceError(f"{path}: {what} is {array.dtype} {list(array.shape)}; expected integers [N]")
        lengths = arrays.get("doc_lengths", np.array([tokens.size]))
        self._tokens = tokens
        self._ends = np.cumsum(lengths, dtype=np.int64)
        try:
            layout = _layout(table_rows, tokens, token_map)
            self._hasher = Hasher(layout)
            self._hasher(np.array([tokens.min(), tokens.max()]))  # refuses tokens outside the vocabulary
        except ParameterError as e:
            raise SourceError(f"{path}: {e.problem}", remedy=e.remedy) from None
        self._per_token = layout.heads

    def draw(self, calls: int, rows: int, seed: list[int]) -> Ids:
        """Give the rows of one stretch of the trace, call after call."""
        per_call = -(-rows // self._per_token)
        needed = calls * per_call
        start = int(np.random.default_rng(seed).integers(0, max(1, self._tokens.size - needed)))
        stretch = self._tokens[start : start + needed]
        ends = self._ends[(self._ends > start) & (self._ends < start + needed)] - start
        ids = np.concatenate([self._hasher(text)[:, 0] for text in np.split(stretch, ends) if text.size])
        return np.ascontiguousarray(np.resize(ids, (calls, per_call * self._per_token))[:, :rows])


def make_stream(kind: str, table_rows: int, trace: Path | None) -> IdStream:
    """Give the stream of a kind."""
    if kind == "trace":
        if trace is None:
            raise ParameterError("ids of a trace need the trace", remedy="give --trace FILE.npz")
        return Trace(trace, table_rows)
    return Cached(table_rows) if kind == "cached" else Uniform(table_rows)


def _read(path: Path) -> dict[str, npt.NDArray[Any]]:
    with opened_arrays(path, ".npz file of token ids", remedy="write it with numpy.savez") as archive:
        if isinstance(archive, np.ndarray):
            raise SourceError(f"{path} is one array", remedy="write it with numpy.savez(FILE, compressed_ids=...)")
        return {name: array_of(archive, name) for name in archive.files}


def _layout(table_rows: int, tokens: npt.NDArray[Any], token_map: npt.NDArray[Any] | None) -> Layout:
    """Give the layout with the largest heads that fit the table."""
    if token_map is None:
        vocab = max(V41_COMPRESSED_VOCAB, int(tokens.max()) + 1)
        pad = V41_PAD
    else:
        if token_map.size <= V41_PAD:
            raise ParameterError(f"token_map has {token_map.size} ids, and none for the padding, {V41_PAD}")
        vocab = int(np.unique(token_map).size)
        pad = int(token_map[V41_PAD])
    heads = V41_HEADS * (V41_LONGEST - 1)
    vocab_size = table_rows // heads
    while vocab_size >= 2:
        layout = Layout.make(
            layer_ids=V41_LAYERS,
            max_ngram=V41_LONGEST,
            heads_per_order=V41_HEADS,
            vocab_size=vocab_size,
            pad_id=pad,
            compressed_vocab=vocab,
            token_map=token_map,
        )
        excess = layout.rows(0) - table_rows
        if excess <= 0:
            return layout
        vocab_size -= -(-excess // heads)
    raise ParameterError(f"{table_rows} rows are too few for {heads} heads", remedy="give a larger --size")
