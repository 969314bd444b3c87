# SPDX-License-Identifier: Apache-2.0
"""The Engram hash on the GPU: token ids in GPU memory become row ids there, in a kernel that can be captured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from engramdax._core import ffi, lib
from engramdax.cuda.arrays import device_array
from engramdax.cuda.driver import error, use
from engramdax.cuda.kernels import function
from engramdax.cuda.memory import DeviceMemory
from engramdax.cuda.streams import stream_handle, wait_for_producers
from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from engramdax.cuda.arrays import DeviceArray
    from engramdax.ngram import Hasher


class CudaHasher:
    """A Hasher's layout on one GPU. May be used by several threads and streams at once."""

    capturable = True

    def __init__(self, hasher: Hasher, device: int = 0) -> None:
        use(device)
        layout = hasher.layout
        self.hasher = hasher
        self._function = function(device, "hash_tokens")
        primes = np.array(layout.primes, np.uint64)
        constants: dict[str, np.ndarray[Any, Any]] = {
            "orders": np.array(layout.orders, np.uint32),
            "multipliers": np.array(layout.multipliers, np.int64),
            "primes": primes,
            "reciprocals": _reciprocals(primes),
            "offsets": np.array(layout.offsets, np.int64),
        }
        if layout.token_map is not None:
            constants["token_map"] = layout.token_map
        plan: Any = ffi.new("struct ed_cuda_hash *")
        self._memory = []
        for name, array in constants.items():
            memory = DeviceMemory(array.nbytes)
            memory.write(np.ascontiguousarray(array))
            setattr(plan, name, memory.address)
            self._memory.append(memory)
        plan.vocab, plan.pad = layout.vocab, layout.pad_id
        plan.layers, plan.heads = len(layout.layer_ids), layout.heads
        plan.heads_per_order, plan.max_ngram = layout.heads_per_order, layout.max_ngram
        self._plan = plan

    def __call__(
        self,
        token_ids: Any,
        out: Any,
        stream: Any = None,
        *,
        starts: Any = None,
        blocked: Any = None,
        history: Any = None,
    ) -> Any:
        """Start a hash on a stream and return at once.

        Arguments as for a call of the Hasher, but dense arrays on the device: token_ids int32 or int64 [T]; out
        int32 or int64 [T, layers, heads]; starts int64 [B + 1]; blocked bool or uint8 [T]; history int64
        [B, n - 1]. A token outside the vocabulary counts as padding: its ids are -1. stream: as for
        `CudaTable.gather`. Gives `out`.
        """
        tokens, target = device_array(token_ids, "token_ids"), device_array(out, "out")
        if tokens.dtype not in ("int32", "int64") or len(tokens.shape) != 1:
            raise ParameterError(f"token_ids are {tokens.dtype} {tokens.shape}", remedy="give int32 or int64 [T]")
        count = tokens.shape[0]
        shape = (count, int(self._plan.layers), int(self._plan.heads))
        if target.dtype not in ("int32", "int64") or target.shape != shape:
            raise ParameterError(f"out is {target.dtype} {target.shape}", remedy=f"give int32 or int64 {shape}")
        if target.itemsize == 4 and self.hasher.max_rows >= 1 << 31:
            raise ParameterError(f"row ids up to {self.hasher.max_rows} are beyond int32", remedy="give int64")
        batch: Any = ffi.new("struct ed_cuda_hash *", self._plan[0])
        arrays = {"token_ids": tokens, "out": target}
        batch.sequences = 1
        if starts is not None:
            bounds = _of(starts, "starts", ("int64",), None)
            batch.starts, batch.sequences = bounds.address, bounds.shape[0] - 1
            arrays["starts"] = bounds
        if blocked is not None:
            stops = _of(blocked, "blocked", ("bool", "uint8"), (count,))
            batch.blocked = stops.address
            arrays["blocked"] = stops
        if history is not None:
            before = _of(history, "history", ("int64",), (int(batch.sequences), int(self._plan.max_ngram) - 1))
            batch.history = before.address
            arrays["history"] = before
        for what, array in arrays.items():
            array.check_dense(what)
        batch.tokens, batch.count, batch.tokens_64 = tokens.address, count, tokens.itemsize == 8
        batch.out, batch.out_64 = target.address, target.itemsize == 8
        handle = stream_handle(stream, tuple(arrays.values()))
        wait_for_producers(tuple(arrays.values()), handle)
        if result := lib.ed_cuda_hash(batch, self._function, handle):
            raise error(result, "the hash cannot be launched")
        return out


def _reciprocals(primes: np.ndarray[Any, np.dtype[np.uint64]]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """floor(2**64 / prime), exactly."""
    values = [[min((1 << 64) // int(p), (1 << 64) - 1) for p in row] for row in primes]
    return np.array(values, np.uint64)


def _of(array: Any, what: str, dtypes: tuple[str, ...], shape: tuple[int, ...] | None) -> DeviceArray:
    seen = device_array(array, what)
    if seen.dtype not in dtypes or (len(seen.shape) != 1 if shape is None else seen.shape != shape):
        raise ParameterError(f"{what} is {seen.dtype} {seen.shape}", remedy=f"give {dtypes[0]} {shape or '[B + 1]'}")
    return seen
