# SPDX-License-Identifier: Apache-2.0
"""Mutated .npy and .npz files, as tables, row ids, hot lists, token traces and token maps: each is read, or refused
with an error that names the file.
"""

from __future__ import annotations

import ast
import io
import random
import warnings
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpora import seeds
from mutants import Mutant, changed_bytes
from survival import report, share, survive

import engramdax
from engramdax.bench.ids import Trace as BenchTrace
from engramdax.commands.gather import _read_ids
from engramdax.commands.trace import _token_map
from engramdax.errors import EngramdaxError, ParameterError, RowIdError
from engramdax.ingest.open import open_sources
from engramdax.ngram import Layout
from engramdax.trace.hotlist import read_hot_list
from engramdax.trace.tokens import read_traces

FILES = share(20)
ROWS = 64
VOCAB = 8

HEADERS = {
    "descr": ("'<i8'", "'|u1'", "'>f4'", "'|O'", "'|V8'", "'<U4'", "'<M8[ns]'", "'<f2'", "'|S0'", "'x'", "17", "None",
              "[('a', '<i4')]", "[('a', '<i4', (2, 3))]", "('<i4', (2,))", "'<i4,<i4'", "'<i8' * 9", "b'<i8'"),
    "fortran_order": ("True", "False", "None", "0", "'True'"),
    "shape": ("()", "(0,)", "(-1,)", "(3, 2)", "(1 << 40,)", "(1099511627776,)", "(9223372036854775807,)", "(4, 4, 4)",
              "(18446744073709551616, 2)", "(2.0,)", "(True, True)", "[3]", "3", "('3',)", "(4611686018427387905, 4)",
              "(" + "1, " * 70 + ")", "(0, 18446744073709551616)", "(9" + "9" * 4400 + ",)"),
}  # fmt: skip
"""What a header may say that no array has."""


def header_of(data: bytes) -> tuple[int, int]:
    """Give where the header's text begins and ends."""
    begin = 10 if data[6] == 1 else 12
    return begin, begin + int.from_bytes(data[8:begin], "little")


def changed_array(data: bytes, chance: random.Random) -> bytes:
    """Change an .npy file: its header, with a length that is right again, or any of its bytes."""
    begin, end = header_of(data)
    kind = chance.random()
    if kind < 0.4:
        given = {name: chance.choice(values) for name, values in HEADERS.items()}
        kept = ast.literal_eval(data[begin:end].decode())
        given = {name: text if chance.random() < 0.5 else repr(kept[name]) for name, text in given.items()}
        if chance.random() < 0.1:
            del given[chance.choice(list(given))]
        text = ("{" + ", ".join(f"{name!r}: {value}" for name, value in given.items()) + ", }\n").encode()
    elif kind < 0.7:
        text = changed_bytes(data[begin:end], chance)
    else:
        return changed_bytes(data, chance)
    length = len(text).to_bytes(8, "little")[: begin - 8]
    return data[:8] + length + text + data[end:]


def changed_archive(data: bytes, chance: random.Random) -> bytes:
    """Change an .npz file: arrays in it, with checksums that are right again, or any of its bytes."""
    if chance.random() < 0.25:
        return changed_bytes(data, chance)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    changed = io.BytesIO()
    method = chance.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(changed, "w", method) as archive:  # of names twice
        for info, member in members:
            name = info.filename
            if chance.random() < 0.05:
                continue
            if chance.random() < 0.05:
                name = chance.choice(("row_ids.npy", "../x.npy", "token_ids", "a" * 300))
            spoilt = chance.random()
            if spoilt < 0.3:
                member = changed_array(member, chance)  # noqa: PLW2901
            elif spoilt < 0.5:  # other numbers of the same kind
                begin = header_of(member)[1]
                member = member[:begin] + changed_bytes(member[begin:], chance)[: len(member) - begin]  # noqa: PLW2901
            archive.writestr(name, member)
    return changed.getvalue()


def mutant(chance: random.Random) -> Mutant:
    arrays, archives = seeds_of("npy"), seeds_of("npz")
    if chance.random() < 0.5:
        name = chance.choice(list(arrays))
        return Mutant(name, changed_array(arrays[name], chance))
    name = chance.choice(list(archives))
    return Mutant(name, changed_archive(archives[name], chance))


@cache
def seeds_of(kind: str) -> dict[str, bytes]:
    return seeds(kind)


class Readers:
    """Everything that reads such files, each giving a word when it took one."""

    def __init__(self, folder: Path, table: engramdax.Table) -> None:
        self.folder = folder
        self.table = table

    def examine(self, mutant: Mutant) -> str:
        return "read" if self.taken_by(mutant) else "refused"

    def taken_by(self, mutant: Mutant) -> list[str]:
        """Give which of the readers take a file."""
        path = self.folder / mutant.name
        path.write_bytes(mutant.data)
        readers: dict[str, Callable[[Path], object]] = {
            "table": self.read_table,
            "row ids": self.gather,
            "hot list": self.read_hot_list,
            "trace": self.read_trace,
            "token map": self.read_token_map,
            "trace of the benchmark": self.read_bench_trace,
        }
        return [name for name, reader in readers.items() if self._takes(reader, path)]

    @staticmethod
    def _takes(reader: Callable[[Path], object], path: Path) -> bool:
        try:
            reader(path)
        except (RowIdError, ParameterError):  # what the file holds, given to an interface that knows no file
            return False
        except EngramdaxError as e:
            text = str(e)
            assert path.name in text
            assert text.isprintable()
            assert len(text) < 1500
            return False
        return True

    @staticmethod
    def read_table(path: Path) -> None:
        for source in open_sources([path], row_bytes=None if path.suffix == ".npy" else 3):
            with source:
                assert source.nbytes == source.rows * source.layout.row_bytes <= path.stat().st_size
                out = bytearray(source.nbytes)
                source.read_into(0, memoryview(out))
                assert path.read_bytes().endswith(out)

    def gather(self, path: Path) -> None:
        ids = _read_ids(path)
        rows = self.table.gather(ids)
        assert rows.shape == (*ids.shape, self.table.row_bytes)
        assert ids.size == 0 or -1 <= ids.min() <= ids.max() < ROWS

    def read_hot_list(self, path: Path) -> None:
        found = read_hot_list(path)
        assert 0 <= found.hot.row_ids.min() <= found.hot.row_ids.max() < found.rows
        assert all(rows > 0 and 0 <= share <= 1 for rows, share in found.points())
        found.check(self.table._entry, path)

    @staticmethod
    def read_trace(path: Path) -> None:
        trace = read_traces([path])
        assert trace.starts[0] == 0
        assert trace.starts[-1] == trace.tokens.size
        assert (np.diff(trace.starts) >= 0).all()
        trace.check(VOCAB)
        trace.split(0.5)

    @staticmethod
    def read_token_map(path: Path) -> None:
        token_map = _token_map(None, path, needed=True)
        layout = Layout.make(
            layer_ids=(1,), max_ngram=3, heads_per_order=2, vocab_size=16, pad_id=0, compressed_vocab=VOCAB,
            token_map=token_map,
        )  # fmt: skip
        assert layout.token_map is not None
        assert 0 <= layout.token_map.min() <= layout.token_map.max() < VOCAB

    @staticmethod
    def read_bench_trace(path: Path) -> None:
        ids: Any = BenchTrace(path, 2000).draw(2, 5, [1])
        assert ids.shape == (2, 5)
        assert -1 <= ids.min() <= ids.max() < 2000


@pytest.fixture
def readers(make_pool: Callable[..., Path], load_array: Callable[..., Any], tmp_path: Path) -> Readers:
    path = make_pool(32 << 20)
    load_array(path, "rows", np.arange(ROWS * 8, dtype=np.uint8).reshape(ROWS, 8), (24, 40))
    with engramdax.open(path) as pool:
        return Readers(tmp_path, pool["rows"])


def test_whole_files_are_taken_for_what_they_are(readers: Readers) -> None:
    whole = seeds("npy") | seeds("npz")
    assert {name: readers.taken_by(Mutant(name, data)) for name, data in whole.items()} == {
        "bench-trace.npz": ["trace", "trace of the benchmark"],
        "columns.npy": [],
        "compressed-trace.npz": ["trace", "trace of the benchmark"],
        "hot-list.npz": ["hot list"],
        "ids-int64.npy": ["row ids"],
        "ids.npy": ["table", "row ids"],
        "rows.npy": ["table"],
        "token-map.npy": ["row ids", "trace"],
        "trace.npz": ["trace", "trace of the benchmark"],
        "version-2.npy": ["table"],
        "version-3.npy": [],
    }


def test_mutated_array_files_are_read_or_refused(readers: Readers, figure: Callable[[str], None]) -> None:
    outcomes = survive(FILES, mutant, readers.examine)
    report(figure, "files of arrays", FILES, outcomes)
    if FILES >= 1000:
        assert outcomes.keys() == {"read", "refused"}
