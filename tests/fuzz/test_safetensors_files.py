# SPDX-License-Identifier: Apache-2.0
"""Mutated .safetensors files and indices: tables are read to the byte, or refused with an error that names the file."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from corpora import seeds
from mutants import Mutant, changed_bytes, changed_json
from survival import report, share, survive

from engramdax.errors import EngramdaxError, SourceError
from engramdax.ingest.engram import open_engram
from engramdax.ingest.safetensors import open_checkpoint, open_tensor

FILES = share(10)


WHOLE = seeds("safetensors")


def mutant(chance: random.Random) -> Mutant:
    name = chance.choice(list(WHOLE))
    data = WHOLE[name]
    if name.endswith(".json"):
        return Mutant(name, changed_json(data, chance, list(WHOLE.values())))
    if chance.random() < 0.2:
        return Mutant(name, changed_bytes(data, chance))
    length = int.from_bytes(data[:8], "little")
    header = changed_json(data[8 : 8 + length], chance)
    # The length is right again, mostly, and the data have as many bytes as the header may ask for.
    length = len(header) if chance.random() < 0.9 else chance.choice((0, 1, len(header) + 8, 1 << 63, (1 << 64) - 1))
    body = data[8 + int.from_bytes(data[:8], "little") :]
    more = chance.choice((0, 0, 0, 1, 1024)) if chance.random() < 0.3 else 0
    return Mutant(name, length.to_bytes(8, "little") + header + body + bytes(more))


def examine(folder: Path, mutant: Mutant) -> str:
    """Open a checkpoint and all that could be a table in it."""
    path = folder / (mutant.name if mutant.name.endswith(".json") else "fuzzed.safetensors")
    path.write_bytes(mutant.data)
    read = 0
    try:
        with open_checkpoint(path) as checkpoint:
            for name in checkpoint.tensors:
                try:
                    source = open_tensor(checkpoint, name)
                except SourceError as e:
                    check(e, path)
                    continue
                with source:
                    out = bytearray(source.nbytes)
                    source.read_into(0, memoryview(out))
                    file, tensor = checkpoint.find(name)
                    assert bytes(out) == file.path.read_bytes()[tensor.begin : tensor.end]
                    assert source.rows * source.layout.row_bytes == len(out)
                    read += 1
            for source in open_engram(checkpoint):
                with source:
                    source.read_into(0, memoryview(bytearray(source.nbytes)))
                    read += 1
    except EngramdaxError as e:
        check(e, path)
    return "read" if read else "refused"


def check(error: EngramdaxError, path: Path) -> None:
    assert isinstance(error, SourceError)
    text = str(error)
    assert str(path.parent)[:100] in text
    assert text.isprintable()
    assert len(text) < 1500


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder with the shard that the index names."""
    (tmp_path / "tensor.safetensors").write_bytes(WHOLE["tensor.safetensors"])
    return tmp_path


def test_whole_files_are_read(folder: Path) -> None:
    assert {examine(folder, Mutant(name, data)) for name, data in WHOLE.items()} == {"read"}
    assert json.loads(WHOLE["model.safetensors.index.json"])["weight_map"]


def test_mutated_safetensors_files_are_read_or_refused(folder: Path, figure: Callable[[str], None]) -> None:
    outcomes = survive(FILES, mutant, lambda mutant: examine(folder, mutant))
    report(figure, "safetensors files", FILES, outcomes)
    if FILES >= 1000:
        assert outcomes.keys() == {"read", "refused"}
