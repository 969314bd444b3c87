# SPDX-License-Identifier: Apache-2.0
"""Tables in .safetensors files: one file, several shards, or a directory with its index.

A file is a little-endian u64 with the header's length, the header in JSON, and the data; the header
gives each tensor's dtype, shape and byte range within the data
(https://github.com/huggingface/safetensors, "Format"). The rules checked here are those of the format's
reference implementation.

The PyPI package `safetensors` is not used: its public interface hands out whole tensors from a memory
mapping and no byte offsets, so a table could not be streamed from the file in bounded memory, and a
file cut short under the mapping would be a SIGBUS instead of an error.
"""

from __future__ import annotations

import difflib
import json
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from engramdax.errors import SourceError
from engramdax.format.layout import MAX_ROW_BYTES, RowLayout
from engramdax.ingest.file import SourceFile
from engramdax.ingest.naming import SHOWN_CHARS, shown, table_name
from engramdax.ingest.source import Column, TableSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

SUFFIX: Final = ".safetensors"
INDEX_SUFFIX: Final = ".safetensors.index.json"

MAX_HEADER_BYTES: Final = 100_000_000
"""The format's bound on a header, and ours on an index."""

LAYOUT_DTYPES: Final[dict[str, str]] = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
    "F64": "float64",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
}
"""The row layout's name of each safetensors dtype that a table can hold."""

# All dtypes that the format defined when this was written. A tensor of a later one is not checked, for
# the size of its elements is not known; it is refused when it is asked for.
_DTYPE_BITS: Final[dict[str, int]] = {
    **dict.fromkeys(("F4",), 4),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
}

_FETCH_AGAIN: Final = "the file is damaged or not .safetensors: fetch it again"


class _DuplicateKeyError(ValueError):
    """A JSON object names a key twice, which json would hide."""


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        seen: set[str] = set()
        duplicate = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise _DuplicateKeyError(duplicate)
    return unique


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _parse_json_object(text: bytes, where: str, what: str) -> dict[str, Any]:
    """Parse the JSON object that `what` of the file `where` is; SourceError for anything else."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except UnicodeDecodeError as e:
        raise SourceError(f"{where}: {what} is not valid UTF-8 at byte {e.start}", remedy=_FETCH_AGAIN) from e
    except _DuplicateKeyError as e:
        raise SourceError(f"{where}: {what} has the key {shown(str(e))} twice", remedy=_FETCH_AGAIN) from e
    except (ValueError, RecursionError) as e:
        raise SourceError(f"{where}: {what} is not valid JSON: {shown(str(e))}", remedy=_FETCH_AGAIN) from e
    if not isinstance(value, dict):
        raise SourceError(f"{where}: {what} is not a JSON object", remedy=_FETCH_AGAIN)
    return value


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor: its bytes are `[begin, end)` of the file, counted from the file's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One file whose header was read and checked; `tensors` are by name.

    Holds `file` open until `close`. Raises SourceError for everything that the format rules out.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.file = SourceFile(path)
        try:
            self.tensors: dict[str, Tensor] = _read_tensors(self.file)
        except BaseException:
            self.file.close()
            raise

    def close(self) -> None:
        """Close the file, unless a table still reads it."""
        self.file.close()


def _read_tensors(file: SourceFile) -> dict[str, Tensor]:
    where = shown(file.path)
    if file.size < 8:
        raise SourceError(f"{where}: {file.size} bytes are too few for a .safetensors file", remedy=_FETCH_AGAIN)
    length = int.from_bytes(file.read_header(0, 8), "little")
    if length > MAX_HEADER_BYTES:
        raise SourceError(
            f"{where}: the header claims {length} bytes, more than the format's {MAX_HEADER_BYTES}",
            remedy=_FETCH_AGAIN,
        )
    data = 8 + length
    if data > file.size:
        raise SourceError(
            f"{where}: the header claims {length} bytes and would end past the file's {file.size}",
            remedy=_FETCH_AGAIN,
        )
    text = file.read_header(8, length) if length else b""
    if not text.startswith(b"{"):
        raise SourceError(f"{where}: the header starts with {text[:1]!r}, not with b'{{'", remedy=_FETCH_AGAIN)
    header = _parse_json_object(text, where, "the header")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise SourceError(f"{where}: __metadata__ is not a map of strings to strings", remedy=_FETCH_AGAIN)
    tensors = [_tensor(where, name, entry, data) for name, entry in header.items()]
    _require_data_covered(where, tensors, data, file.size)
    return {tensor.name: tensor for tensor in tensors}


def _tensor(where: str, name: str, entry: Any, data: int) -> Tensor:
    """Check one entry of the header by itself; `data` is the offset of the data in the file."""
    what = f"{where}: tensor {shown(name)}"
    if not name.isascii() and any("\ud800" <= char <= "\udfff" for char in name):
        raise SourceError(f"{what}: the name holds half of a surrogate pair", remedy=_FETCH_AGAIN)
    if not isinstance(entry, dict):
        raise SourceError(f"{what}: the entry is not a JSON object", remedy=_FETCH_AGAIN)
    missing = [key for key in ("dtype", "shape", "data_offsets") if key not in entry]
    if missing:
        raise SourceError(f"{what}: the entry lacks {' and '.join(missing)}", remedy=_FETCH_AGAIN)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise SourceError(f"{what}: dtype is not a string", remedy=_FETCH_AGAIN)
    if not _are_lengths(shape):
        raise SourceError(f"{what}: shape is not a list of lengths", remedy=_FETCH_AGAIN)
    if not _are_lengths(offsets) or len(offsets) != 2:
        raise SourceError(f"{what}: data_offsets is not a list of two offsets", remedy=_FETCH_AGAIN)
    begin, end = offsets
    if begin > end:
        raise SourceError(f"{what}: data_offsets {begin} to {end} run backwards", remedy=_FETCH_AGAIN)
    bits = _DTYPE_BITS.get(dtype)
    if bits is not None and _elements(shape) * bits != (end - begin) * 8:
        raise SourceError(
            f"{what}: {dtype} of shape {shown(str(shape))} does not make the {end - begin} bytes that "
            f"data_offsets {begin} to {end} hold",
            remedy=_FETCH_AGAIN,
        )
    return Tensor(name, dtype, tuple(shape), data + begin, data + end)


def _are_lengths(value: Any) -> bool:
    """Whether it is a list of integers that a u64 can hold; true and false are none."""
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 64 for n in value)


def _elements(shape: list[int]) -> int:
    """Give the product of the lengths, or some number above 2**64 where it is above that."""
    if 0 in shape:
        return 0
    elements = 1
    for length in shape:
        elements *= length
        if elements > 1 << 64:  # a header of 100 MB could make a number of as many digits
            break
    return elements


def _require_data_covered(where: str, tensors: Iterable[Tensor], data: int, size: int) -> None:
    """Check that the tensors lie inside the file, do not overlap, and leave no byte of the data out."""
    covered, previous = data, None
    for tensor in sorted(tensors, key=lambda tensor: (tensor.begin, tensor.end)):
        what = f"{where}: tensor {shown(tensor.name)}: data_offsets {tensor.begin - data} to "
        what += str(tensor.end - data)
        if tensor.end > size:
            raise SourceError(f"{what} end past the {size - data} bytes of data", remedy=_FETCH_AGAIN)
        if tensor.begin < covered and previous is not None:
            raise SourceError(f"{what} overlap tensor {shown(previous.name)}", remedy=_FETCH_AGAIN)
        if tensor.begin > covered:
            raise SourceError(f"{what} leave a hole of {tensor.begin - covered} bytes before it", remedy=_FETCH_AGAIN)
        covered, previous = tensor.end, tensor
    if covered != size:
        raise SourceError(f"{where}: {size - covered} bytes after the last tensor belong to none", remedy=_FETCH_AGAIN)


class Checkpoint:
    """The tensors of one or more .safetensors files, by name, each with the file that holds it.

    `where` is what the user gave, for messages. Holds the files open until `close`; tables opened from
    it stay readable after that.
    """

    def __init__(
        self,
        where: str,
        shards: Sequence[SafetensorsFile],
        tensors: dict[str, tuple[SafetensorsFile, Tensor]],
    ) -> None:
        self.where = where
        self.tensors = tensors
        self._shards = tuple(shards)
        self._closed = False

    def find(self, name: str) -> tuple[SourceFile, Tensor]:
        """Give a tensor and its file; SourceError, with the nearest names, where there is none."""
        if name in self.tensors:
            shard, tensor = self.tensors[name]
            return shard.file, tensor
        short = [other for other in self.tensors if len(other) <= SHOWN_CHARS]
        nearest = difflib.get_close_matches(name[:SHOWN_CHARS], short, n=3, cutoff=0.5)
        raise SourceError(
            f"{self.where}: has no tensor {shown(name)} among its {len(self.tensors)}",
            remedy=f"nearest: {', '.join(map(shown, nearest))}" if nearest else "check the name",
        )

    def close(self) -> None:
        """Close the files that no table reads; closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def open_checkpoint(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]) -> Checkpoint:
    """Open a .safetensors file, several shards, a directory, or an index file.

    A directory is read by its index (`model.safetensors.index.json`, or the only one with that suffix),
    without one as all its .safetensors files. All headers are read and checked, no data.
    """
    if isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    where = shown(paths[0]) if len(paths) == 1 else f"{shown(paths[0])} and {len(paths) - 1} more"
    path = Path(paths[0])
    if len(paths) > 1:
        return _open_shards(where, [Path(path) for path in paths])
    if path.name.endswith(INDEX_SUFFIX):
        return _open_index(where, path)
    if not _is_directory(path):
        return _open_shards(where, [path])
    index = _find_index(path)
    if index is not None:
        return _open_index(where, index)
    shards = _listed(path, SUFFIX)
    if not shards:
        raise SourceError(
            f"{where}: the directory holds no {SUFFIX} file", remedy="give the checkpoint's own directory"
        )
    return _open_shards(where, shards)


def _is_directory(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # SourceFile says what is wrong with it
        return False


def _listed(directory: Path, suffix: str) -> list[Path]:
    try:
        return sorted(entry for entry in directory.iterdir() if entry.name.endswith(suffix))
    except OSError as e:
        raise SourceError(
            f"{shown(directory)}: the directory cannot be listed: {e.strerror}",
            remedy="let this user read the directory",
        ) from e


def _find_index(directory: Path) -> Path | None:
    indices = _listed(directory, INDEX_SUFFIX)
    usual = directory / f"model{INDEX_SUFFIX}"
    if usual in indices:
        return usual
    if len(indices) > 1:
        raise SourceError(
            f"{shown(directory)}: holds {len(indices)} indices: "
            f"{', '.join(shown(index.name) for index in indices[:8])}",
            remedy="give the one that is meant instead of the directory",
        )
    return indices[0] if indices else None


def _open_shards(where: str, paths: Sequence[Path]) -> Checkpoint:
    with ExitStack() as opened:
        shards: list[SafetensorsFile] = []
        tensors: dict[str, tuple[SafetensorsFile, Tensor]] = {}
        for path in paths:
            shard = SafetensorsFile(path)
            opened.callback(shard.close)
            shards.append(shard)
            for name, tensor in shard.tensors.items():
                if name in tensors:
                    other = tensors[name][0].file.path
                    raise SourceError(
                        f"tensor {shown(name)} is in two shards, {shown(other)} and {shown(path)}",
                        remedy="give the shards of one checkpoint, each once",
                    )
                tensors[name] = shard, tensor
        opened.pop_all()
        return Checkpoint(where, shards, tensors)


def _open_index(where: str, index: Path) -> Checkpoint:
    weight_map = _read_weight_map(index)
    with ExitStack() as opened:
        shards: dict[str, SafetensorsFile] = {}
        for shard_name in dict.fromkeys(weight_map.values()):
            path = index.parent / shard_name
            if not os.path.lexists(path):
                raise SourceError(
                    f"{shown(index)}: names the shard {shown(shard_name)}, which is missing",
                    remedy="fetch the whole checkpoint",
                )
            shards[shard_name] = SafetensorsFile(path)
            opened.callback(shards[shard_name].close)
        tensors: dict[str, tuple[SafetensorsFile, Tensor]] = {}
        for name, shard_name in weight_map.items():
            shard = shards[shard_name]
            if name not in shard.tensors:
                raise SourceError(
                    f"{shown(index)}: says that tensor {shown(name)} is in {shown(shard_name)}, which does not hold it",
                    remedy="fetch index and shards of one version of the checkpoint",
                )
            tensors[name] = shard, shard.tensors[name]
        opened.pop_all()
        return Checkpoint(where, list(shards.values()), tensors)


def _read_weight_map(index: Path) -> dict[str, str]:
    """Give the index's map of tensor names to shard names, relative to the index's directory."""
    where = shown(index)
    with SourceFile(index) as file:
        if file.size > MAX_HEADER_BYTES:
            raise SourceError(
                f"{where}: an index of {file.size} bytes is too large", remedy="give the checkpoint's own"
            )
        value = _parse_json_object(file.read_header(0, file.size), where, "the index")
    weight_map = value.get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise SourceError(f"{where}: weight_map is not a map of tensor names to shard names", remedy=_FETCH_AGAIN)
    for shard in set(weight_map.values()):
        parts = PurePosixPath(shard)
        if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in shard:
            raise SourceError(
                f"{where}: names the shard {shown(shard)}, which is not a file beside or below the index",
                remedy="do not trust this checkpoint; fetch it from its maker",
            )
    return weight_map


def open_tensor(checkpoint: Checkpoint, tensor_name: str) -> TableSource:
    """Open one two-dimensional tensor `[rows, dim]` as a table with one field "row".

    The table holds its file open by itself: the checkpoint may be closed first. Raises SourceError for
    a name that the checkpoint lacks and for a tensor that is no table.
    """
    file, tensor = checkpoint.find(tensor_name)
    what = f"{shown(file.path)}: tensor {shown(tensor.name)}"
    if tensor.dtype not in LAYOUT_DTYPES:
        raise SourceError(
            f"{what}: its dtype {shown(tensor.dtype)} cannot be loaded",
            remedy=f"a table holds one of {', '.join(LAYOUT_DTYPES)}",
        )
    if len(tensor.shape) != 2:
        raise SourceError(
            f"{what}: it has {len(tensor.shape)} dimensions, a table has 2, rows and elements",
            remedy="name a two-dimensional tensor",
        )
    rows, dim = tensor.shape
    if rows == 0 or dim == 0:
        raise SourceError(f"{what}: its shape [{rows}, {dim}] holds nothing", remedy="name a tensor that holds rows")
    dtype = LAYOUT_DTYPES[tensor.dtype]
    return table_of_tensors(
        "safetensors", table_name(tensor.name), RowLayout.packed(("row", dtype, dim)), [(file, tensor)]
    )


def table_of_tensors(
    kind: str, name: str, layout: RowLayout, tensors: Sequence[tuple[SourceFile, Tensor]]
) -> TableSource:
    """Make the table whose field c is `tensors[c]`: all `[rows, *]`, not empty, of the fields' sizes."""
    rows = tensors[0][1].shape[0]
    if layout.row_bytes > MAX_ROW_BYTES:
        file, tensor = tensors[0]
        raise SourceError(
            f"{shown(file.path)}: tensor {shown(tensor.name)}: a row of {layout.row_bytes} bytes is too large",
            remedy=f"a row has at most {MAX_ROW_BYTES} bytes; are the dimensions swapped?",
        )
    with ExitStack() as opened:
        columns = []
        for (file, tensor), field in zip(tensors, layout.fields, strict=True):
            opened.callback(file.retain().close)
            columns.append(Column(file, tensor.begin, field.bytes))
        source = TableSource(
            kind=kind,
            name=name,
            rows=rows,
            layout=layout,
            columns=columns,
            tensors=[tensor.name for _, tensor in tensors],
        )
        opened.pop_all()
        return source
