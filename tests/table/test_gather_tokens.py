# SPDX-License-Identifier: Apache-2.0
"""Hash and gather in one go against the two one after the other."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engramdax
from engramdax._core import lib
from engramdax.errors import ParameterError
from engramdax.ingest.open import open_sources
from engramdax.ngram import Hasher, Layout
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer
from engramdax.table import Table

VOCAB = 300
LAYOUT = Layout.make(
    layer_ids=[1, 14],
    max_ngram=4,
    heads_per_order=8,
    vocab_size=300,
    pad_id=2,
    compressed_vocab=200,
    token_map=np.arange(VOCAB) % 200,
)
HASHER = Hasher(LAYOUT)
Tables = Callable[..., Table]


@pytest.fixture
def table_of(make_pool: Callable[..., Path], tmp_path: Path) -> Tables:
    """Give a function that makes the table of a layer, of random rows, knowing as much of its layout as asked."""

    def make(layout: Layout, layer: int, knows: str = "addressing", width: int = 33) -> Table:
        path, file = make_pool(64 << 20), tmp_path / "rows.npy"
        np.save(file, np.random.default_rng(layer).integers(0, 256, (layout.rows(layer), width), np.uint8))
        heads = layout.head_sizes(layer) if knows != "rows" else None
        addressing = {**layout.addressing(layer), "pad_token_id": 2} if knows == "addressing" else None
        (source,) = open_sources([file])
        with source, Writer(path) as writer:
            load_tables(writer, [Load(source, "t", heads, addressing)])
        return engramdax.open(path)["t"]

    return make


def batches(count: int) -> list[dict[str, Any]]:
    """Arguments of every form for so many tokens."""
    chance = np.random.default_rng(count)
    starts = np.array([0, count // 3, count // 3, count // 2, count - count // 8])
    blocked = chance.random(count) < 0.1
    history = chance.integers(-1, VOCAB, (4, 3))
    return [
        {},
        {"blocked": blocked},
        {"starts": starts},
        {"history": history[:1]},
        {"starts": starts, "history": history},
        {"starts": starts, "history": history, "blocked": blocked},
    ]


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("count", [0, 1, 40, 700])
def test_every_batch_gives_the_rows_of_its_ids(table_of: Tables, layer: int, count: int) -> None:
    table = table_of(LAYOUT, layer)
    tokens = np.random.default_rng(count).integers(0, VOCAB, count)
    tokens[count // 2 : count // 2 + 1] = -1
    for arguments in batches(count):
        ids = HASHER(tokens, **arguments)[:, layer]
        expected = table.gather(np.ascontiguousarray(ids))
        for threads in (None, 1, 2, 4):
            rows = table.gather_tokens(HASHER, tokens, **arguments, threads=threads)
            assert rows.shape == (count, 24, 33)
            np.testing.assert_array_equal(rows, expected)
        rows = table.gather_tokens(HASHER, tokens.astype(np.int32), **arguments)
        np.testing.assert_array_equal(rows, expected)


def test_padding_gets_rows_of_zeros_in_memory_that_was_not(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0)
    out = np.full((5, 24, 33), 9, np.uint8)
    rows = table.gather_tokens(HASHER, [4, -1, 5, 6, 7], starts=[0, 4], out=out)
    assert rows is out
    assert not out[[1, 4]].any()
    assert out[[0, 2, 3]].any(axis=(1, 2)).all()


@pytest.mark.parametrize("knows", ["addressing", "heads", "rows"])
def test_the_layer_is_found_by_what_the_table_knows(table_of: Tables, knows: str) -> None:
    table = table_of(LAYOUT, 1, knows)
    tokens = np.arange(50)
    ids = np.ascontiguousarray(HASHER(tokens)[:, 1])
    np.testing.assert_array_equal(table.gather_tokens(HASHER, tokens), table.gather(ids))


def test_a_table_of_another_model_is_refused(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0)
    others = [
        {"vocab_size": 310},  # other rows
        {"seed": 1},  # the same rows, other multipliers
    ]
    for other in others:
        layout = Layout.make(
            **{
                "layer_ids": [1, 14],
                "max_ngram": 4,
                "heads_per_order": 8,
                "vocab_size": 300,
                "pad_id": 2,
                "compressed_vocab": 200,
                **other,
            }
        )
        with pytest.raises(ParameterError, match=r"table t of \d+ rows is no layer of this layout"):
            table.gather_tokens(Hasher(layout), [1])


def test_bad_tokens_are_named_as_by_the_hasher(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0)
    tokens = np.zeros(3000, np.int64)
    tokens[[431, 432, 2900]] = 300, -2, 301
    for threads in (1, 2, 4):
        with pytest.raises(ParameterError, match=r"token_ids\[431\] is 300; the vocabulary has ids 0 to 299"):
            table.gather_tokens(HASHER, tokens, threads=threads)
    with pytest.raises(ParameterError, match=r"history\[0\] holds 300"):
        table.gather_tokens(HASHER, [1, 2], history=[[300, 0, 0]])
    with pytest.raises(ParameterError, match="starts does not ascend"):
        table.gather_tokens(HASHER, [1, 2], starts=[0, 3])
    # The next call is not the worse for it.
    table.gather_tokens(HASHER, [1, 2])


def test_memory_that_rows_do_not_go_into_is_refused(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0)
    with pytest.raises(ParameterError):
        table.gather_tokens(HASHER, [1, 2], out=np.empty(2 * 24 * 33 - 1, np.uint8))
    tokens = np.zeros(24 * 33 * 2 // 8, np.int64)
    with pytest.raises(ParameterError, match="overlaps the tokens"):
        table.gather_tokens(HASHER, tokens[:2], out=tokens.view(np.uint8))


def test_more_heads_than_are_hashed_at_once(table_of: Tables) -> None:
    layout = Layout(
        layer_ids=(1,),
        orders=(2, 3),
        heads_per_order=2100,
        primes=((3,) * 4200,),
        multipliers=((7, 9, 11),),
        pad_id=0,
        compressed_vocab=50,
    )
    assert layout.heads > lib.ED_IDS_AT_ONCE
    table, hasher = table_of(layout, 0, width=3), Hasher(layout)
    tokens = np.arange(5)
    ids = np.ascontiguousarray(hasher(tokens)[:, 0])
    np.testing.assert_array_equal(table.gather_tokens(hasher, tokens), table.gather(ids))


def test_threads_gather_tokens_at_the_same_time(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0)
    sequences = [np.random.default_rng(seed).integers(0, VOCAB, 400) for seed in range(4)]
    expected = [table.gather(np.ascontiguousarray(HASHER(tokens)[:, 0])) for tokens in sequences]
    wrong: list[int] = []

    def work(place: int) -> None:
        found = (table.gather_tokens(HASHER, sequences[place]) for _ in range(30))
        wrong.extend(place for rows in found if not np.array_equal(rows, expected[place]))

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


POISONED = """
import os, sys
import numpy as np
import engramdax
from engramdax._core import lib
from engramdax.errors import PoisonedRowsError
from engramdax.ngram import Hasher, Layout
path = sys.argv[1]
table = engramdax.open(path)["t"]
hasher = Hasher(Layout.of_table(table))
tokens = np.random.default_rng(3).integers(0, 200, 300)
starts, history = [0, 100, 290], [[4, 5, 6], [-1, 0, 0]]
ids = np.ascontiguousarray(hasher(tokens, starts=starts, history=history)[:, 0])
expected = table.gather(ids)
begin = table._entry.extent.offset
page = os.sysconf("SC_PAGE_SIZE")
end = (begin + table.nbytes // 2) // page * page
os.truncate(path, end)
lost = np.flatnonzero((ids.reshape(-1) >= 0) & (begin + (ids.reshape(-1) + 1) * table.row_bytes > end))
for threads in (1, 2, 4):
    out = np.full(expected.shape, 7, np.uint8)
    try:
        table.gather_tokens(hasher, tokens, starts=starts, history=history, out=out, threads=threads)
    except PoisonedRowsError as e:
        assert e.table == "t"
        assert e.positions.tolist() == lost.tolist(), (e.positions, lost)
        assert e.ids.tolist() == ids.reshape(-1)[lost].tolist()
    else:
        sys.exit("nothing was raised")
    flat, right = out.reshape(-1, out.shape[-1]), expected.reshape(-1, out.shape[-1]).copy()
    right[lost] = 0
    assert np.array_equal(flat, right)
print(len(lost), ids.size)
"""


def test_rows_that_cannot_be_read_are_reported_and_all_others_are_right(table_of: Tables) -> None:
    table = table_of(LAYOUT, 0, width=264)
    path = table._attachment.backing.path
    del table
    done = subprocess.run(
        [sys.executable, "-c", POISONED, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    lost, rows = map(int, done.stdout.split())
    assert 1000 < lost < rows - 1000
