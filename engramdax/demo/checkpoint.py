# SPDX-License-Identifier: Apache-2.0
"""A small checkpoint with the tensor names, dtypes and shards of DeepSeek-V4.1, filled with random bytes.

The Engram tables have V4.1's layers, orders, heads and row of 256 + 8 bytes; only the primes are smaller,
so that the whole is some 250 MB instead of 189 GiB. The safetensors files are written here, byte by byte,
so that reading them tests the reader against the format and not against a library shared with it.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engramdax.errors import EngramdaxError, RefusedError
from engramdax.ngram import Layout

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DEFAULT_VOCAB_SIZE", "write_checkpoint"]

DEFAULT_VOCAB_SIZE = 20_000
"""Where the search for the head sizes starts; two tables of 24 heads then hold 254 MB."""

_LAYER_IDS = (1, 14)
_MAX_NGRAM = 4
_HEADS = 8
_HEAD_DIM = 256
_SCALE_BLOCK = 32
_HIDDEN = 5120
_HYPER_CONNECTIONS = 4
_PAD = 2
_COMPRESSED_VOCAB = 99_092
_ITEM_BYTES = {"BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1}
_BLOCK_WORDS = 1 << 20


@dataclass(frozen=True)
class _Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


def write_checkpoint(directory: Path, *, vocab_size: int = DEFAULT_VOCAB_SIZE, seed: int = 0) -> None:
    """Write `config.json`, three safetensors shards and their index.

    The first shard holds no Engram tensor; each of the others holds one layer's table behind a tensor that
    is none of it. Contents depend on `vocab_size` and `seed` alone. Memory stays below 32 MiB.

    Args:
        directory: Made if it is missing; must be empty.
        vocab_size: `engram_vocab_size` of the config, at least 2; the tables take about 12,672 bytes times
            this.
        seed: Of the random bytes. The multipliers of the hash have V4.1's seed, 0.

    Raises:
        ParameterError: `vocab_size` is no number from 2 on.
        RefusedError: The directory is not empty.
        EngramdaxError: The files cannot be written.

    """
    layout = Layout.make(
        layer_ids=_LAYER_IDS,
        max_ngram=_MAX_NGRAM,
        heads_per_order=_HEADS,
        vocab_size=vocab_size,
        pad_id=_PAD,
        compressed_vocab=_COMPRESSED_VOCAB,
    )
    shards = _shards(layout)
    nbytes = sum(tensor.nbytes for shard in shards for tensor in shard)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(directory).free < nbytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if any(directory.iterdir()):
            raise RefusedError(
                f"{directory} is not empty; the demonstration checkpoint needs a place of its own",
                remedy="name an empty or new directory",
            )
        _write_json(directory / "config.json", _config(layout, vocab_size))
        weight_map: dict[str, str] = {}
        for number, shard in enumerate(shards, 1):
            name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
            _write_shard(directory / name, shard, seed=[seed, number])
            weight_map |= {tensor.name: name for tensor in shard}
        index = {"metadata": {"total_size": nbytes}, "weight_map": weight_map}
        _write_json(directory / "model.safetensors.index.json", index)
    except OSError as error:
        raise EngramdaxError(
            f"{directory}: the demonstration checkpoint cannot be written: {error.strerror}",
            remedy=f"it needs {nbytes >> 20} MiB free in a directory that can be written; TMPDIR names another one",
        ) from error


def _config(layout: Layout, vocab_size: int) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41",
        "text_config": {
            "hidden_size": _HIDDEN,
            "hc_mult": _HYPER_CONNECTIONS,
            "engram_layer_ids": list(layout.layer_ids),
            "engram_max_ngram_size": layout.max_ngram,
            "engram_n_heads": layout.heads_per_order,
            "engram_head_dim": _HEAD_DIM,
            "engram_vocab_size": vocab_size,
            "engram_num_embeddings": [layout.rows(layer) for layer in range(len(layout.layer_ids))],
            "engram_pad_token_id": _PAD,
            "engram_compressed_vocab_size": layout.compressed_vocab,
        },
    }


def _shards(layout: Layout) -> list[list[_Tensor]]:
    shards = [[_Tensor("norm.weight", "BF16", (_HIDDEN,))]]
    for layer, layer_id in enumerate(layout.layer_ids):
        prefix = f"layers.{layer_id}.engram"
        rows = layout.rows(layer)
        shards.append(
            [
                _Tensor(f"{prefix}.q_weight", "BF16", (_HYPER_CONNECTIONS, _HIDDEN)),
                _Tensor(f"{prefix}.embed.weight", "F8_E4M3", (rows, _HEAD_DIM)),
                _Tensor(f"{prefix}.embed.scale", "F8_E8M0", (rows, _HEAD_DIM // _SCALE_BLOCK)),
            ]
        )
    return shards


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _write_shard(path: Path, tensors: list[_Tensor], *, seed: list[int]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in tensors:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    words = np.random.PCG64(seed)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for start in range(0, end, 8 * _BLOCK_WORDS):
            size = min(end - start, 8 * _BLOCK_WORDS)
            # Little-endian on every machine, so that the same seed is the same file.
            block = words.random_raw(-(-size // 8)).astype("<u8", copy=False)
            file.write(block.data.cast("B")[:size])
