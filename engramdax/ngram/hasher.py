# SPDX-License-Identifier: Apache-2.0
"""Row ids of whole batches of sequences, computed by the C core."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engramdax._core import ffi, lib
from engramdax.errors import ParameterError
from engramdax.gathering import thread_count, warn_of_environment
from engramdax.ngram.arrays import vector

if TYPE_CHECKING:
    from engramdax.ngram.layout import Layout

SMALLEST_ESTIMATED: Final = 8192
"""Below this prime the quotient of a 63-bit number has more bits than the fast remainder carries."""

# Looked up once: hashing a decode batch takes a few microseconds.
_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_BYTES: Final[Any] = ffi.typeof("uint8_t[]")
_INT64S: Final[Any] = ffi.typeof("int64_t[]")
_hash_one: Final[Any] = lib.ed_hash_one
_from_buffer: Final[Any] = ffi.from_buffer


class Hasher:
    """Row ids of the n-grams of sequences, by a layout; keeps no state, safe to call from many threads."""

    def __init__(self, layout: Layout) -> None:
        warn_of_environment()
        if layout.max_ngram > lib.ED_MAX_NGRAM:
            raise ParameterError(f"n-grams of {layout.max_ngram} tokens; expected at most {lib.ED_MAX_NGRAM}")
        self.layout = layout
        self.max_rows = max(layout.rows(layer) for layer in range(len(layout.layer_ids)))
        primes = np.array(layout.primes, np.int64)
        # The C core reads these for as long as this object lives.
        self._arrays: dict[str, npt.NDArray[Any]] = {
            "orders": np.array(layout.orders, np.uint32),
            "multipliers": np.array(layout.multipliers, np.int64),
            "primes": primes,
            "offsets": np.array(layout.offsets, np.int64),
            "inverses": 1.0 / primes,
        }
        core: Any = ffi.new("struct ed_hasher *")
        core.layers, core.max_ngram = len(layout.layer_ids), layout.max_ngram
        core.order_count, core.heads_per_order = len(layout.orders), layout.heads_per_order
        for name, array in self._arrays.items():
            setattr(core, name, ffi.cast(ffi.typeof(getattr(core, name)), array.ctypes.data))
        core.exact = bool(primes.min() < SMALLEST_ESTIMATED)
        if layout.token_map is not None:
            core.token_map = ffi.cast("int32_t *", layout.token_map.ctypes.data)
        core.vocab, core.pad = layout.vocab, layout.pad_id
        self.core = core
        self._token_shape = (len(layout.layer_ids), layout.heads)

    def __call__(
        self,
        token_ids: npt.ArrayLike,
        blocked: npt.ArrayLike | None = None,
        *,
        starts: npt.ArrayLike | None = None,
        history: npt.ArrayLike | None = None,
        out: npt.NDArray[Any] | None = None,
        dtype: npt.DTypeLike | None = None,
        threads: int | None = None,
    ) -> npt.NDArray[Any]:
        """Hash sequences, new ones or the next tokens of old ones.

        token_ids: int32 or int64 [T], raw ids (compressed ones where the layout has no token map), of all
        sequences one after the other; other integer types are converted. -1 is padding: its ids are -1,
        and no n-gram reaches past it.
        starts: [B + 1], ascending from 0: sequence b is token_ids[starts[b] : starts[b + 1]], and all
        tokens from starts[B] on are padding. None: one sequence.
        blocked: bool [T], true for tokens that no n-gram may reach into or across. They get the ids of
        pads. None: none is.
        history: int [B, n - 1], n the longest n-gram: the raw ids before each start, newest first, -1 for
        none or blocked. None: all sequences are new. A draft that is given up is undone by going on from
        the history before it.
        out: C-contiguous int32 or int64 [T, layers, heads]; then nothing of that size is allocated.
        dtype: of the result where there is no `out`: int32 by default, int64 for tables of 2**31 rows and
        more.
        threads: at most this many; None: as many as it is worth.

        Gives row ids [T, layers, heads]. Raises ParameterError for a wrong shape or type, and for tokens
        outside the vocabulary, naming the first.
        """
        count = 0 if threads is None else thread_count(threads)
        new = blocked is None and starts is None and history is None
        if new and out is not None and self._hash_one(token_ids, out, count):
            return out
        batch, keep = self.batch(token_ids, blocked, starts, history)
        shape = (int(batch.count), *self._token_shape)
        if out is None:
            out = np.empty(shape, self._dtype(dtype))
        self._check_out(out, shape)
        bad = lib.ed_hash(
            self.core,
            batch,
            0,
            len(self.layout.layer_ids),
            _from_buffer(_BYTES, out, True),
            out.dtype.itemsize == 8,
            count,
        )
        if bad != -1:
            raise self.bad_token(int(bad), keep)
        return out

    def layer_ids(
        self,
        token_ids: npt.NDArray[Any],
        layer: int,
        *,
        blocked: npt.ArrayLike | None = None,
        starts: npt.ArrayLike | None = None,
        history: npt.ArrayLike | None = None,
    ) -> npt.NDArray[np.int64]:
        """Hash for the layer at position `layer` alone: int64 [T, heads]; arguments and errors as of a call."""
        batch, keep = self.batch(token_ids, blocked, starts, history)
        out = np.empty((int(batch.count), self.layout.heads), np.int64)
        bad = lib.ed_hash(self.core, batch, layer, layer + 1, _from_buffer(_BYTES, out, True), 1, 0)
        if bad != -1:
            raise self.bad_token(int(bad), keep)
        return out

    def batch(
        self,
        token_ids: npt.ArrayLike,
        blocked: npt.ArrayLike | None,
        starts: npt.ArrayLike | None,
        history: npt.ArrayLike | None,
    ) -> tuple[Any, dict[str, npt.NDArray[Any]]]:
        """Check a batch; give the C core's form of it, and the arrays that must outlive that."""
        tokens = np.ascontiguousarray(_integers("token_ids", token_ids))
        keep = {"tokens": tokens}
        batch: Any = ffi.new("struct ed_token_batch *")
        batch.tokens, batch.count = _from_buffer(tokens), tokens.size
        batch.tokens_64 = tokens.dtype.itemsize == 8
        batch.sequences = 1
        if starts is not None:
            bounds = np.ascontiguousarray(_integers("starts", starts), np.int64)
            falls = (bounds[1:] < bounds[:-1]).any()
            if bounds.size < 2 or bounds[0] != 0 or falls or bounds[-1] > tokens.size:
                raise ParameterError(
                    f"starts does not ascend from 0 to at most {tokens.size}, with an entry per sequence and one more"
                )
            keep["starts"] = bounds
            batch.starts, batch.sequences = _from_buffer(_INT64S, bounds), bounds.size - 1
        if blocked is not None:
            stops = vector("blocked", blocked, np.bool_)
            if stops.dtype != np.bool_ or stops.size != tokens.size:
                raise ParameterError(
                    f"blocked is {stops.dtype} [{stops.size}]; expected bool [{tokens.size}], one for each token"
                )
            keep["blocked"] = np.ascontiguousarray(stops)
            batch.blocked = _from_buffer(_BYTES, keep["blocked"])
        if history is not None:
            try:
                before = np.asarray(history)
            except ValueError:
                raise ParameterError("history is ragged; expected a row for each sequence") from None
            expected = (int(batch.sequences), self.layout.max_ngram - 1)
            if before.dtype.kind not in "iu" or before.shape != expected:
                raise ParameterError(
                    f"history is {before.dtype} {list(before.shape)}; expected integers {list(expected)}"
                )
            keep["history"] = np.ascontiguousarray(before, np.int64)
            batch.history = _from_buffer(_INT64S, keep["history"])
        return batch, keep

    def bad_token(self, bad: int, keep: dict[str, npt.NDArray[Any]]) -> ParameterError:
        """Give the error for what `ed_hash` found outside the vocabulary."""
        if bad >= 0:
            what = f"token_ids[{bad}] is {keep['tokens'][bad]}"
        else:
            sequence = -2 - bad
            row = keep["history"][sequence]
            wrong = row[(row < -1) | (row >= self.layout.vocab)][0]
            what = f"history[{sequence}] holds {wrong}"
        return ParameterError(
            f"{what}; the vocabulary has ids 0 to {self.layout.vocab - 1}",
            remedy="use the tokenizer that the token map was built from; -1 is padding",
        )

    def _hash_one(self, tokens: Any, out: Any, threads: int) -> bool:
        """Hash one new sequence between arrays that need no conversion; False where something is to be said of them."""
        # Types that numpy has built in are single objects.
        if type(tokens) is not np.ndarray or type(out) is not np.ndarray or tokens.ndim != 1:
            return False
        token_type, type_ = tokens.dtype, out.dtype
        if (
            (token_type is not _INT32 and token_type is not _INT64)
            or (type_ is not _INT64 and (type_ is not _INT32 or self.max_rows >= 1 << 31))
            or out.shape != (tokens.size, *self._token_shape)
        ):
            return False
        try:
            source, target = _from_buffer(tokens), _from_buffer(_BYTES, out, True)
        except (ValueError, BufferError):  # not contiguous, or not writable
            return False
        done = _hash_one(self.core, source, tokens.size, token_type is _INT64, target, type_ is _INT64, threads)
        return bool(done == -1)

    def _dtype(self, dtype: npt.DTypeLike | None) -> np.dtype[Any]:
        if dtype is None:
            return np.dtype(np.int32 if self.max_rows < 1 << 31 else np.int64)
        return np.dtype(dtype)

    def _check_out(self, out: Any, shape: tuple[int, ...]) -> None:
        if not isinstance(out, np.ndarray) or out.dtype not in (_INT32, _INT64):
            found = out.dtype if isinstance(out, np.ndarray) else type(out).__name__
            raise ParameterError(f"row ids as {found}; expected int32 or int64")
        if out.shape != shape or not out.flags.c_contiguous or not out.flags.writeable:
            raise ParameterError(f"out is {list(out.shape)}; expected writable, C-contiguous {list(shape)}")
        if out.dtype.itemsize == 4 and self.max_rows >= 1 << 31:
            raise ParameterError(f"row ids up to {self.max_rows} are beyond int32", remedy="say dtype=numpy.int64")


def _integers(name: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
    """Give a vector of int32 or int64."""
    array = vector(name, values, np.int64)
    if array.dtype in (_INT32, _INT64):
        return array
    if array.dtype.kind not in "iu":
        raise ParameterError(f"{name} has dtype {array.dtype}; expected integers")
    if array.size and int(array.max()) >= 1 << 63:
        raise ParameterError(f"{name} holds {array.max()}, beyond int64")
    return array.astype(np.int64)
