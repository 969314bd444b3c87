# SPDX-License-Identifier: Apache-2.0
"""Engram tables of a checkpoint: per layer a weight, and for float8 weights their scales beside it.

DeepSeek-V4.1 holds `layers.{i}.engram.embed.weight` F8_E4M3 `[rows, 256]` and
`layers.{i}.engram.embed.scale` F8_E8M0 `[rows, 8]`, one scale per 32 values. They are packed, 256 bytes
then 8, for a row in one piece costs a GPU one address translation and not two. Unquantised tables (the
Engram paper's are bfloat16) have no scales and stay as they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from engramdax.errors import SourceError
from engramdax.format.layout import RowLayout
from engramdax.ingest.file import SourceFile
from engramdax.ingest.naming import shown
from engramdax.ingest.safetensors import LAYOUT_DTYPES, Checkpoint, Tensor, table_of_tensors

if TYPE_CHECKING:
    from engramdax.ingest.source import TableSource

VALUES_PER_SCALE: Final = 32

_TENSOR: Final = re.compile(r"(?:model\.)?layers\.(0|[1-9][0-9]{0,8})\.engram\.embed\.(weight|scale)")
_UNQUANTISED: Final = ("BF16", "F16", "F32")

Found = tuple[SourceFile, Tensor]


def open_engram(checkpoint: Checkpoint) -> list[TableSource]:
    """Open each layer's Engram table, in the order of the layers; names are "layers.{i}".

    Fields: "weight" float8_e4m3fn `dim` and "scale" float8_e8m0fnu `dim / 32`, or only "weight" for
    BF16, F16 and F32. Raises SourceError when there is none, or one that is not whole or not of these
    types; then no table is left open.
    """
    layers = _find_layers(checkpoint)
    sources: list[TableSource] = []
    try:
        for layer in sorted(layers):
            sources.append(_open_layer(checkpoint, layer, layers[layer]))  # noqa: PERF401 (closed below)
    except BaseException:
        for source in sources:
            source.close()
        raise
    return sources


def _find_layers(checkpoint: Checkpoint) -> dict[int, dict[str, Found]]:
    layers: dict[int, dict[str, Found]] = {}
    for name in checkpoint.tensors:
        match = _TENSOR.fullmatch(name)
        if match is None:
            continue
        parts = layers.setdefault(int(match[1]), {})
        if match[2] in parts:
            raise SourceError(
                f"{checkpoint.where}: holds both {parts[match[2]][1].name} and {name}",
                remedy="give the shards of one checkpoint",
            )
        parts[match[2]] = checkpoint.find(name)
    if not layers:
        near = [name for name in checkpoint.tensors if "engram" in name][:3]
        raise SourceError(
            f"{checkpoint.where}: none of its {len(checkpoint.tensors)} tensors is named "
            "[model.]layers.N.engram.embed.weight or .scale",
            remedy=f"load {' or '.join(map(shown, near))} with --tensor"
            if near
            else "give a checkpoint with Engram tables, or name one tensor with --tensor",
        )
    return layers


def _open_layer(checkpoint: Checkpoint, layer: int, parts: dict[str, Found]) -> TableSource:
    where = f"{checkpoint.where}: layer {layer}"
    if "weight" not in parts:
        raise SourceError(
            f"{where}: has {parts['scale'][1].name} but no weight",
            remedy="give all shards that hold the layer's tensors",
        )
    file, weight = parts["weight"]
    rows, dim = _require_rows(where, weight)
    if "scale" not in parts and weight.dtype in _UNQUANTISED:
        layout = RowLayout.packed(("weight", LAYOUT_DTYPES[weight.dtype], dim))
        return table_of_tensors("engram", f"layers.{layer}", layout, [(file, weight)])
    if weight.dtype != "F8_E4M3":
        raise SourceError(
            f"{where}: {weight.name} is {shown(weight.dtype)}, expected F8_E4M3 with scales, or "
            f"{', '.join(_UNQUANTISED)} without",
            remedy="give the checkpoint as its maker released it",
        )
    if "scale" not in parts:
        raise SourceError(
            f"{where}: has {weight.name}, which is F8_E4M3, but no scale",
            remedy="give all shards that hold the layer's tensors",
        )
    scale_file, scale = parts["scale"]
    if scale.dtype != "F8_E8M0":
        raise SourceError(
            f"{where}: {scale.name} is {shown(scale.dtype)}, expected F8_E8M0",
            remedy="give the checkpoint as its maker released it: float8 scales that are read as integers "
            "give fluent wrong text",
        )
    scale_rows, scales = _require_rows(where, scale)
    if scale_rows != rows:
        raise SourceError(
            f"{where}: weight has {rows} rows and scale has {scale_rows}",
            remedy="give weight and scale of one version of the checkpoint",
        )
    if dim % VALUES_PER_SCALE or scales != dim // VALUES_PER_SCALE:
        raise SourceError(
            f"{where}: weight has {dim} values a row and scale has {scales}, expected one scale per "
            f"{VALUES_PER_SCALE} values",
            remedy="give the checkpoint as its maker released it",
        )
    layout = RowLayout.packed(
        ("weight", LAYOUT_DTYPES[weight.dtype], dim), ("scale", LAYOUT_DTYPES[scale.dtype], scales)
    )
    tensors = [(file, weight), (scale_file, scale)]
    return table_of_tensors("engram", f"layers.{layer}", layout, tensors)


def _require_rows(where: str, tensor: Tensor) -> tuple[int, int]:
    """Give rows and elements a row of a tensor that must be two-dimensional and not empty."""
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise SourceError(
            f"{where}: {tensor.name} has shape {shown(str(list(tensor.shape)))}, expected rows and elements",
            remedy="give the checkpoint as its maker released it",
        )
    rows, elements = tensor.shape
    return rows, elements
