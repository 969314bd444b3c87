# SPDX-License-Identifier: Apache-2.0
"""Rows as the checkpoint's files hold them, read by a way that shares no code with the loader.

The demonstration compares what comes out of a pool with these bytes; were both read by the same code, a
mistake in it would compare equal.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from engramdax.errors import RowIdError, SourceError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["expected_rows"]


def expected_rows(checkpoint_dir: Path, layer: int, row_ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.uint8]:
    """Read rows of one layer's Engram table from a sharded safetensors checkpoint.

    Args:
        checkpoint_dir: Directory with `model.safetensors.index.json` and the shards.
        layer: Layer number of the model.
        row_ids: Integers of any shape, each 0 or more and below the table's rows.

    Returns:
        uint8 [*row_ids.shape, 264], new memory: 256 bytes of `embed.weight`, then 8 of `embed.scale`.

    Raises:
        RowIdError: An id is no row of the table.
        SourceError: The checkpoint has no such layer, or its files cannot be read.

    """
    weight, scale = (_tensor(checkpoint_dir, f"layers.{layer}.engram.embed.{part}") for part in ("weight", "scale"))
    outside = row_ids[(row_ids < 0) | (row_ids >= len(weight))]
    if outside.size:
        raise RowIdError(f"row {outside[0]} of layer {layer}; the table has rows 0 to {len(weight) - 1}")
    rows: npt.NDArray[np.uint8] = np.concatenate([weight[row_ids], scale[row_ids]], axis=-1)
    return rows


def _tensor(checkpoint_dir: Path, name: str) -> npt.NDArray[np.uint8]:
    """Map one tensor of one-byte items, uint8 [rows, columns]."""
    index = checkpoint_dir / "model.safetensors.index.json"
    try:
        shard = checkpoint_dir / json.loads(index.read_bytes())["weight_map"][name]
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            entry = json.loads(file.read(length))[name]
        rows, columns = entry["shape"]
        start = 8 + length + entry["data_offsets"][0]
        return np.memmap(shard, np.uint8, "r", offset=start, shape=(rows, columns))
    except (OSError, KeyError, ValueError) as error:
        raise SourceError(
            f"{checkpoint_dir}: tensor {name} cannot be read: {type(error).__name__}: {error}",
            remedy="write the checkpoint anew",
        ) from error
