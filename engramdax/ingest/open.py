# SPDX-License-Identifier: Apache-2.0
"""The choice of a reader: by the arguments first, then by what the path is and how the file starts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from numpy.lib import format as npy_format

from engramdax.errors import ParameterError, SourceError
from engramdax.ingest.binary import open_binary
from engramdax.ingest.engram import open_engram
from engramdax.ingest.file import SourceFile
from engramdax.ingest.naming import shown
from engramdax.ingest.npy import open_npy
from engramdax.ingest.safetensors import (
    INDEX_SUFFIX,
    LAYOUT_DTYPES,
    SUFFIX,
    Checkpoint,
    open_checkpoint,
    open_tensor,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engramdax.ingest.source import TableSource


_OF_OTHERS: Final = {b"PK\x03\x04": "a zip archive, as .npz and .pt files are", b"GGUF": "a GGUF file"}
"""How files begin whose bytes are no rows, whatever row size they are given."""

_START_BYTES: Final = 8


def open_sources(
    paths: Sequence[str | Path],
    *,
    row_bytes: int | None = None,
    dtype: str | None = None,
    dim: int | None = None,
    tensor: str | None = None,
    engram: bool = False,
) -> list[TableSource]:
    """Open the tables that a user named: one, or with `engram` one per layer. The caller closes them.

    `paths`: one raw file (with `row_bytes`, or `dtype` and `dim`), one .npy file, or one checkpoint: a
    .safetensors file, several shards, a directory, an index. Raises ParameterError when the arguments
    contradict each other or the kind of file, SourceError for the files.
    """
    if not paths:
        raise ParameterError("no source was given", remedy="name a file or a checkpoint directory")
    if tensor is not None and engram:
        raise ParameterError("--tensor and --engram were both given", remedy="give one of them")
    raw = row_bytes is not None or dtype is not None or dim is not None
    if all(_is_checkpoint(path) for path in paths):
        if raw:
            raise ParameterError(
                f"{shown(paths[0])}: a checkpoint says itself what its rows are",
                remedy="leave out --row-bytes, --dtype and --dim",
            )
        if len(paths) > 1:
            _require_shards(paths)
        with open_checkpoint(paths) as checkpoint:
            if engram:
                return open_engram(checkpoint)
            return [open_tensor(checkpoint, _only_tensor(checkpoint) if tensor is None else tensor)]
    if len(paths) > 1:
        other = next(path for path in paths if not _is_checkpoint(path))
        raise ParameterError(
            f"{len(paths)} sources were given and {shown(other)} is no {SUFFIX} shard",
            remedy="load one table at a time; only the shards of one checkpoint go together",
        )
    (path,) = paths
    if tensor is not None or engram:
        option = "--engram" if engram else "--tensor"
        raise ParameterError(
            f"{shown(path)}: {option} needs a checkpoint", remedy=f"give {SUFFIX} files or a directory"
        )
    start = _start_of(path)
    if os.fspath(path).endswith(".npy") or start.startswith(npy_format.MAGIC_PREFIX):
        if raw:
            raise ParameterError(
                f"{shown(path)}: a .npy file says itself what its rows are",
                remedy="leave out --row-bytes, --dtype and --dim",
            )
        return [open_npy(path)]
    for magic, kind in _OF_OTHERS.items():
        if start.startswith(magic):
            raise SourceError(
                f"{shown(path)} is {kind}, no file of rows", remedy="save its table as .npy or .safetensors"
            )
    return [open_binary(path, row_bytes=row_bytes, dtype=dtype, dim=dim)]


def _is_checkpoint(path: str | Path) -> bool:
    name = os.fspath(path)
    return name.endswith((SUFFIX, INDEX_SUFFIX)) or os.path.isdir(name)  # noqa: PTH112 (raises less)


def _require_shards(paths: Sequence[str | Path]) -> None:
    for path in paths:
        if not os.fspath(path).endswith(SUFFIX):
            raise ParameterError(
                f"{len(paths)} sources were given and {shown(path)} is no {SUFFIX} shard",
                remedy="give a directory or an index alone, or only shards",
            )


def _start_of(path: str | Path) -> bytes:
    with SourceFile(path) as file:
        return bytes(file.read_header(0, min(file.size, _START_BYTES)))


def _only_tensor(checkpoint: Checkpoint) -> str:
    """Give the name of the one tensor that could be a table; SourceError if there are more or none."""
    names = [
        name
        for name, (_, tensor) in checkpoint.tensors.items()
        if len(tensor.shape) == 2 and 0 not in tensor.shape and tensor.dtype in LAYOUT_DTYPES
    ]
    if len(names) == 1:
        return names[0]
    if not names:
        raise SourceError(
            f"{checkpoint.where}: none of its {len(checkpoint.tensors)} tensors is a table of two dimensions",
            remedy="give another file",
        )
    listed = ", ".join(shown(name) for name in sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
    raise SourceError(
        f"{checkpoint.where}: holds {len(names)} tensors that could be meant: {listed}",
        remedy="name one with --tensor, or say --engram for Engram tables",
    )
