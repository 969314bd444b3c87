# SPDX-License-Identifier: Apache-2.0
"""From made-up traces to hot lists, and what is said of wrong ones."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from outcomes import Outcome, unchanged

import engramdax
from engramdax.ingest.open import open_sources
from engramdax.ngram import Hasher, Layout
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.writer import Writer
from engramdax.trace.hotlist import read_hot_list

Command = Callable[..., Outcome]

VOCAB = 60
TOKEN_MAP = np.arange(VOCAB) % 40
CONFIG = {
    "engram_layer_ids": [1, 3],
    "engram_max_ngram_size": 3,
    "engram_n_heads": 2,
    "engram_vocab_size": 500,
    "engram_num_embeddings": [2056, 2208],
    "engram_pad_token_id": 41,
    "engram_compressed_vocab_size": 40,
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"text_config": CONFIG}))
    return path


@pytest.fixture
def token_map(tmp_path: Path) -> Path:
    np.savez(tmp_path / "map.npz", token_map=TOKEN_MAP)
    return tmp_path / "map.npz"


@pytest.fixture
def tokens() -> np.ndarray[Any, Any]:
    return np.minimum(np.random.default_rng(0).zipf(1.4, 4000) - 1, VOCAB - 1)


@pytest.fixture
def file(tmp_path: Path, tokens: Any) -> Path:
    np.savez(tmp_path / "trace.npz", token_ids=tokens, doc_lengths=np.array([1000, 2999, 1]))
    return tmp_path / "trace.npz"


@pytest.fixture
def traced(command: Command, file: Path, config: Path, token_map: Path) -> Command:
    """Give a function that runs `trace` on the trace of `tokens` with further options."""

    def call(*options: object) -> Outcome:
        return command("trace", file, "--config", config, "--token-map", token_map, *options)

    return call


def counts_of(tokens: Any, layer: int, starts: Any = (0, 1000, 3999, 4000)) -> np.ndarray[Any, Any]:
    layout = Layout.from_config(CONFIG, token_map=TOKEN_MAP)
    ids = Hasher(layout)(tokens, starts=starts)[:, layer]
    return np.bincount(ids.reshape(-1), minlength=layout.rows(layer))


def test_every_layer_gets_a_list_of_its_rows(traced: Command, tokens: Any, tmp_path: Path) -> None:
    outcome = traced("--out", tmp_path / "hot-{layer}.npz").succeeded()
    first, heading, *lines = outcome.out.splitlines()
    assert first == "4000 tokens counted, exactly; served of the same trace:"
    assert heading.split() == ["LAYER", "BUDGET", "ROWS", "SERVED", "ORDER", "2", "ORDER", "3"]
    assert [line.split()[0] for line in lines] == ["1", "3"]
    for position, layer in enumerate((1, 3)):
        found = read_hot_list(tmp_path / f"hot-{layer}.npz")
        counts = counts_of(tokens, position)
        expected = np.lexsort((np.arange(counts.size), -counts))[: np.count_nonzero(counts)]
        np.testing.assert_array_equal(found.hot.row_ids, expected)
        np.testing.assert_array_equal(found.hot.counts, counts[expected])
        assert (found.hot.accesses, found.rows) == (16_000, counts.size)


def test_budgets_say_what_they_serve(traced: Command, tokens: Any) -> None:
    found = traced("--layer", 3, "--row-bytes", 1 << 20, "--json").json()
    assert found["tokens"] == 4000
    (layer,) = found["layers"]
    counts = np.sort(counts_of(tokens, 1))[::-1]
    assert (layer["layer"], layer["accesses"], layer["rows"]) == (3, 16_000, np.count_nonzero(counts))
    assert [line["rows"] for line in layer["budgets"]] == [64, 256, 1024, np.count_nonzero(counts)]
    for line in layer["budgets"]:
        assert line["served"] == pytest.approx(counts[: line["rows"]].sum() / 16_000)
        assert line["served"] == pytest.approx(sum(line["by_order"].values()) / 2)
    assert layer["budgets"][-1]["served"] == 1


def test_part_of_the_trace_is_served_from_the_list_of_the_other(traced: Command, tokens: Any) -> None:
    found = traced("--split", 0.9, "--rows", 200, "--json").json()
    for position, layer in enumerate(found["layers"]):
        counts = counts_of(tokens[:3600], position, (0, 1000, 3600))
        listed = np.lexsort((np.arange(counts.size), -counts))[:200]
        reads = counts_of(tokens[3600:], position, (0, 399, 400))
        assert layer["budgets"][-1]["served"] == pytest.approx(reads[listed].sum() / reads.sum())
    assert traced("--split", 0.9).out.startswith("3600 tokens counted, exactly; served of the rest of the trace:\n")


def test_less_memory_gives_the_same_in_more_passes(traced: Command) -> None:
    few = 192 * (1 << 20) + 4000 * 4 + 2 * 8 * 2208 + 600 * 4
    assert traced("--json", "--memory", few).json() == traced("--json").json()


def test_text_is_read_with_the_tokenizer(command: Command, config: Path, tmp_path: Path) -> None:
    words = {f"w{chr(97 + i // 26)}{chr(97 + i % 26)}": i for i in range(40)} | {"WAA": 40, "WAB": 41}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="waa"))  # noqa: S106
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("waa wab WAA wac\n" * 10)
    arguments = ("--config", config, "--layer", 1, "--json")
    by_text = command("trace", tmp_path / "text.txt", "--tokenizer", tmp_path / "tokenizer.json", *arguments).json()
    assert by_text["tokens"] == 40
    np.savez(tmp_path / "compressed.npz", compressed_ids=np.tile([0, 1, 0, 2], 10))
    compressed = ("trace", tmp_path / "compressed.npz")
    # The tokenizer then only compresses the config's pad.
    assert command(*compressed, "--tokenizer", tmp_path / "tokenizer.json", *arguments).json() == by_text
    command(*compressed, *arguments).failed(1, "pad_id is 41")


@pytest.fixture
def layer_pool(make_pool: Callable[..., Path], tmp_path: Path) -> Path:
    """Make a pool with the table of layer 3 that knows its addressing."""
    path = make_pool(32 << 20)
    layout = Layout.from_config(CONFIG, token_map=TOKEN_MAP)
    np.save(tmp_path / "rows.npy", np.zeros((layout.rows(1), 8), np.uint8))
    (source,) = open_sources([tmp_path / "rows.npy"])
    addressing = {**layout.addressing(1), "pad_token_id": 41}
    with source, Writer(path) as writer:
        load_tables(writer, [Load(source, "m/layers.3", layout.head_sizes(1), addressing)])
    return path


def test_table_with_its_addressing_stands_for_the_config(
    command: Command, traced: Command, layer_pool: Path, tmp_path: Path
) -> None:
    files = (tmp_path / "trace.npz", "--token-map", tmp_path / "map.npz", "--pool", layer_pool)
    out = tmp_path / "hot.npz"
    by_table = command("trace", *files, "--table", "m/layers.3", "--json", "--out", out).json()
    assert by_table == traced("--layer", 3, "--json").json()
    told = command("info", "m/layers.3", "--pool", layer_pool).succeeded().out
    assert "addressing  layer id 3, orders " in told
    command("hot", "set", "m/layers.3", out, "--pool", layer_pool).succeeded()
    with engramdax.open(layer_pool) as pool:
        np.testing.assert_array_equal(pool["m/layers.3"].hot, read_hot_list(out).hot.row_ids)
    command("trace", *files, "--table", "absent").failed(1, "no table 'absent'")


def test_table_without_its_addressing_is_refused(command: Command, file: Path, token_map: Path, pool: Path) -> None:
    with unchanged(pool):
        outcome = command("trace", file, "--table", "kept", "--pool", pool, "--token-map", token_map)
    outcome.failed(2, "table kept was loaded without its model's config.json")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (-2, "trace.npz: token 2 is -2; the vocabulary has ids 0 to 59"),
        (60, "trace.npz: token 2 is 60; the vocabulary has ids 0 to 59"),
        (2**40, "token 2 is 1099511627776"),
    ],
)
def test_token_outside_the_vocabulary_is_named(traced: Command, tmp_path: Path, bad: int, said: str) -> None:
    np.savez(tmp_path / "trace.npz", token_ids=np.array([1, 2, bad, 3]))
    outcome = traced("--out", tmp_path / "hot{layer}.npz")
    outcome.failed(1, said, "use the tokenizer of the table's model")
    assert list(tmp_path.glob("hot*")) == []


def test_empty_trace_is_refused(command: Command, config: Path, token_map: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "trace.npy", np.empty(0, np.int32))
    outcome = command("trace", tmp_path / "trace.npy", "--config", config, "--token-map", token_map)
    outcome.failed(1, "the trace is empty", "trace.npy")


def test_map_of_another_tokenizer_is_refused(command: Command, file: Path, config: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "map.npy", np.arange(50))
    outcome = command("trace", file, "--config", config, "--token-map", tmp_path / "map.npy")
    outcome.failed(1, "leads to 50 compressed ids", "has 40", "another tokenizer")


def test_config_of_no_engram_model_is_refused(command: Command, file: Path, token_map: Path, tmp_path: Path) -> None:
    config = tmp_path / "other.json"
    arguments = ("trace", file, "--config", config, "--token-map", token_map)
    command(*arguments).failed(1, f"{config} does not exist")
    config.write_text("{")
    command(*arguments).failed(1, f"{config} cannot be read")
    for text in ("[" * 100_000, '{"a":' * 100_000):
        config.write_text(text)
        command(*arguments).failed(1, f"{config} cannot be read")
    command("trace", file, "--config", tmp_path, "--token-map", token_map).failed(
        1, f"{tmp_path} cannot be read: Is a directory; take"
    )
    config.write_text("[]")
    command(*arguments).failed(1, f"{config}: the config is a list")
    config.write_text(json.dumps({"hidden_size": 7}))
    command(*arguments).failed(1, f"{config}: the config has no field engram_layer_ids")
    config.write_text(json.dumps(CONFIG | {"engram_num_embeddings": [2056, 2209]}))
    command(*arguments).failed(1, f"{config}: engram_num_embeddings is [2056, 2209]", "add up to [2056, 2208]")


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--layer", 2), 2, "layer 2 has no table"),
        (("--rows", 0), 2, "--rows 0"),
        (("--row-bytes", 0), 2, "--row-bytes 0"),
        (("--memory", "lots"), 2, "'lots' is no size"),
        (("--memory", "1M"), 2, "--memory 193M"),
        (("--split", 1.0), 2, "--split 1.0 is no share"),
        (("--split", 0.00001), 2, "leaves nothing"),
        (("--out", "hot.npz"), 2, "would hold 2 layers"),
        (("--out", "/nowhere/hot{layer}.npz"), 1, "there is no directory /nowhere"),
        (("--table", "t"), 2, "--config and --table were both given"),
    ],
)
def test_option_that_makes_no_sense_is_refused(traced: Command, options: tuple[Any, ...], code: int, said: str) -> None:
    traced(*options).failed(code, said)


def test_what_is_needed_is_asked_for(command: Command, file: Path, config: Path, token_map: Path) -> None:
    command("trace", file, "--config", config).failed(2, "raw token ids need the model's map", "--token-map")
    command("trace", file, "--token-map", token_map).failed(2, "either --config or --table")
    command("trace", "--config", config).failed(2, "Missing argument")


def test_map_or_tokenizer_that_is_none_is_refused(command: Command, file: Path, config: Path, tmp_path: Path) -> None:
    for name, content in (
        ("map.npy", b"x"),
        ("map.npz", b""),
        ("cut.npz", b"PK\3\4"),
        ("open.npy", b"\x93NUMPY\x01\x00\x0b\x00{'descr': ("),
        ("indented.npy", b"\x93NUMPY\x01\x00\x06\x00  {\n 1"),
    ):
        (tmp_path / name).write_bytes(content)
        outcome = command("trace", file, "--config", config, "--token-map", tmp_path / name)
        outcome.failed(1, f"{tmp_path / name} is no token map")
    np.savez(tmp_path / "other.npz", ids=np.arange(3))
    outcome = command("trace", file, "--config", config, "--token-map", tmp_path / "other.npz")
    outcome.failed(1, "other.npz is no token map")
    (tmp_path / "tokenizer.json").write_text("{}")
    outcome = command("trace", file, "--config", config, "--tokenizer", tmp_path / "tokenizer.json")
    outcome.failed(1, "tokenizer.json is no tokenizer.json")


def test_list_that_cannot_be_written_is_an_error_and_leaves_nothing(
    traced: Command, file: Path, tmp_path: Path
) -> None:
    for out in (tmp_path, file / "hot.npz"):
        traced("--layer", 1, "--out", out).failed(1, f"cannot write {out}")
    assert list(tmp_path.glob(".*")) == []


def test_older_list_is_replaced(traced: Command, tmp_path: Path) -> None:
    out = tmp_path / "hot.npz"
    out.write_bytes(os.urandom(100))
    traced("--layer", 1, "--out", out).succeeded()
    assert read_hot_list(out).rows == 2056


def test_shares_are_drawn(traced: Command, tmp_path: Path) -> None:
    plot = tmp_path / "shares.png"
    traced("--row-bytes", 1 << 20, "--plot", plot).succeeded()
    assert plot.read_bytes().startswith(b"\x89PNG")
    traced("--plot", tmp_path / "shares.xyz").failed(2, "shares.xyz has no known ending", ".png")
    traced("--plot", tmp_path / "no" / "shares.png").failed(2, "is no directory")


def test_drawing_without_matplotlib_is_refused_before_anything_is_counted(
    traced: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    files = ("--out", tmp_path / "hot{layer}.npz", "--plot", tmp_path / "shares.png")
    traced(*files).failed(1, "matplotlib is not installed", "pip install")
    assert list(tmp_path.glob("hot*")) == []
