# SPDX-License-Identifier: Apache-2.0
"""Mutated files of JSON that a host keeps, and a model's config.json: read, forgotten, or refused by name."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pytest
from mutants import Mutant, changed_json
from survival import report, share, survive

from engramdax.errors import EngramdaxError
from engramdax.health.history import History, Speed, Verified
from engramdax.host import host_id, state_dir
from engramdax.ngram import Layout
from engramdax.ngram.config import read_layout
from engramdax.pool.records import Assembly, Record, read_records, write_record

FILES = share(10)
POOL = UUID(int=5)


class Kept(NamedTuple):
    """A file, what stands in it, and what reads it: that tells whether it was of use."""

    path: Path
    whole: bytes
    read: Callable[[], bool]


def read_history() -> bool:
    history = History.of(POOL)
    assert history.save(POOL, set(history.verified)) == ""
    return bool(history.verified)


def kept_files(tmp_path: Path) -> dict[str, Kept]:
    """Have everything written that is kept."""
    host_id()
    write_record(Record(str(POOL), "pool", "/dev/dax0.0", assembly=Assembly("cxl-ram", memdevs=("0x1122",), size=7)))
    History({"load": Verified(1.0, 0.5, 0)}, [Speed(1.0, 2.0, 3.0)], (1, 2)).save(POOL, {"load"})
    layout = Layout.make(
        layer_ids=(1, 4), max_ngram=3, heads_per_order=2, vocab_size=100, pad_id=0, compressed_vocab=50
    )
    values = {"layer_ids": [1, 4], "max_ngram_size": 3, "n_heads": 2, "vocab_size": 100, "pad_token_id": 0}
    values |= {"compressed_vocab_size": 50, "num_embeddings": [layout.rows(0), layout.rows(1)]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({f"engram_{name}": value for name, value in values.items()}))
    readers: dict[Path, Callable[[], bool]] = {
        state_dir() / "host-id": lambda: bool(host_id()),
        state_dir() / "pools" / f"{POOL}.json": lambda: bool(read_records()),
        state_dir() / "health" / f"{POOL}.json": read_history,
        config: lambda: bool(read_layout(config, token_map=None).heads),
    }
    return {path.parent.name: Kept(path, path.read_bytes(), read) for path, read in readers.items()}


def examine(files: dict[str, Kept], mutant: Mutant) -> str:
    kept = files[mutant.name]
    kept.path.write_bytes(mutant.data)
    try:
        return "read" if kept.read() else "forgotten"
    except EngramdaxError as e:
        said = str(e)
        assert str(kept.path) in said
        return "refused"


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Kept]:
    return kept_files(tmp_path)


def test_whole_files_are_read(files: dict[str, Kept]) -> None:
    assert len(files) == 4
    assert {examine(files, Mutant(kind, kept.whole)) for kind, kept in files.items()} == {"read"}


def test_mutated_json_files_are_read_forgotten_or_refused(
    files: dict[str, Kept], figure: Callable[[str], None]
) -> None:
    def mutant(chance: random.Random) -> Mutant:
        kind = chance.choice(list(files))
        return Mutant(kind, changed_json(files[kind].whole, chance))

    outcomes = survive(FILES, mutant, lambda mutant: examine(files, mutant))
    report(figure, "files of JSON", FILES, outcomes)
    if FILES >= 1000:
        assert outcomes.keys() == {"read", "forgotten", "refused"}
