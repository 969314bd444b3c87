# SPDX-License-Identifier: Apache-2.0
"""The Engram hash in vectorised numpy: what the C core is compared with, in speed and in every id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from engramdax.errors import ParameterError
from engramdax.ngram.arrays import vector

if TYPE_CHECKING:
    from engramdax.ngram.layout import Layout


class NumpyHasher:
    """Row ids of the n-grams of a sequence, by a layout; keeps no state, safe to call from many threads."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._primes = np.array(layout.primes, np.int64)
        self._offsets = np.array(layout.offsets, np.int64)

    def __call__(self, token_ids: npt.ArrayLike, blocked: npt.ArrayLike | None = None) -> npt.NDArray[np.int64]:
        """Hash one whole sequence, from its first token.

        Args:
            token_ids: Integers [T], raw ids (compressed ones where the layout has no token map).
            blocked: bool [T], true for tokens that no n-gram may reach into or across; None: none is.

        Returns:
            int64 [T, layers, heads], new memory: rows of each layer's table. Blocked tokens get the rows
            of pads.

        Raises:
            ParameterError: Wrong dtype, shape or length, or a token outside the vocabulary.

        """
        layout = self.layout
        tokens = self._compressed(token_ids)
        look_back = self._look_back(tokens, _stops(blocked, tokens.size))
        rows = np.empty((tokens.size, len(layout.layer_ids), layout.heads), np.int64)
        for layer, multipliers in enumerate(layout.multipliers):
            mix = np.zeros(tokens.size, np.int64)
            reached = 0
            for position, order in enumerate(layout.orders):
                for back in range(reached, order):
                    mix ^= look_back[back] * np.int64(multipliers[back])
                reached = order
                columns = slice(position * layout.heads_per_order, (position + 1) * layout.heads_per_order)
                np.remainder(mix[:, None], self._primes[layer, columns], out=rows[:, layer, columns])
        rows += self._offsets
        return rows

    def _compressed(self, token_ids: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ids = vector("token_ids", token_ids, np.int64)
        if ids.dtype.kind not in "iu":
            raise ParameterError(f"token_ids has dtype {ids.dtype}; expected integers")
        vocab = self.layout.vocab
        outside = (ids < 0) | (ids >= vocab)
        if outside.any():
            first = int(outside.argmax())
            raise ParameterError(
                f"token_ids[{first}] is {ids[first]}; the vocabulary has ids 0 to {vocab - 1}",
                remedy="use the tokenizer that the token map was built from",
            )
        token_map = self.layout.token_map
        return (ids if token_map is None else token_map[ids]).astype(np.int64)

    def _look_back(self, tokens: npt.NDArray[np.int64], stops: npt.NDArray[np.bool_]) -> list[npt.NDArray[np.int64]]:
        """For 0 to longest-1 places back, the compressed id [T] seen there from each token."""
        reach = self.layout.max_ngram - 1
        pad = np.int64(self.layout.pad_id)
        # The start of a sequence acts as a blocked token, so both are one case.
        before = np.concatenate([np.full(reach, pad), tokens])
        walls = np.concatenate([np.ones(reach, np.bool_), stops])
        stopped = np.zeros(tokens.size, np.bool_)
        seen = []
        for back in range(reach + 1):
            window = slice(reach - back, reach - back + tokens.size)
            stopped |= walls[window]
            seen.append(np.where(stopped, pad, before[window]))
        return seen


def _stops(blocked: npt.ArrayLike | None, tokens: int) -> npt.NDArray[np.bool_]:
    if blocked is None:
        return np.zeros(tokens, np.bool_)
    stops = vector("blocked", blocked, np.bool_)
    if stops.dtype != np.bool_:
        raise ParameterError(f"blocked has dtype {stops.dtype}; expected bool")
    if stops.size != tokens:
        raise ParameterError(f"blocked has {stops.size} entries; expected {tokens}, one for each token")
    return stops
