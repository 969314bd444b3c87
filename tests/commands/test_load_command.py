# SPDX-License-Identifier: Apache-2.0
"""Tables loaded from each kind of source, and removed again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from outcomes import Outcome

import engramdax
from engramdax.demo.checkpoint import write_checkpoint
from engramdax.demo.compare import expected_rows

Command = Callable[..., Outcome]

MIB = 1 << 20


def test_raw_rows_of_bytes(command: Command, pool: Path, tmp_path: Path) -> None:
    data = np.random.default_rng(1).integers(0, 256, (300, 7), np.uint8)
    (tmp_path / "my rows.bin").write_bytes(data.tobytes())
    outcome = command("load", tmp_path / "my rows.bin", "--row-bytes", 7, "--pool", pool).succeeded()
    assert outcome.out == "my-rows: 300 rows of 7 bytes, 2.1 KiB, published\n"
    with engramdax.open(pool) as opened:
        np.testing.assert_array_equal(opened["my-rows"].gather(np.arange(300)), data)


def test_raw_rows_of_elements(command: Command, pool: Path, tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((30, 5)).astype(np.float32)
    (tmp_path / "rows").write_bytes(data.tobytes())
    command("load", tmp_path / "rows", "--dtype", "float32", "--dim", 5, "--name", "a/b", "--pool", pool).succeeded()
    with engramdax.open(pool) as opened:
        np.testing.assert_array_equal(opened["a/b"].gather(np.arange(30)), data)


def test_array(command: Command, pool: Path, tmp_path: Path) -> None:
    data = np.random.default_rng(1).standard_normal((30, 5)).astype(np.float16)
    np.save(tmp_path / "halves.npy", data)
    command("load", tmp_path / "halves.npy", "--pool", pool).succeeded()
    with engramdax.open(pool) as opened:
        np.testing.assert_array_equal(opened["halves"].gather(np.arange(30)), data)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Write a checkpoint of V4.1's form with two tables of some 0.3 MB."""
    path = tmp_path / "tiny-v4.1"
    write_checkpoint(path, vocab_size=20)
    return path


def all_rows_are_right(checkpoint: Path, table: Any, layer: int) -> None:
    ids = np.arange(table.rows)
    np.testing.assert_array_equal(table.gather(ids), expected_rows(checkpoint, layer, ids))


@pytest.mark.parametrize("prefix", [None, "other/prefix"])
def test_engram_tables_of_a_checkpoint(
    command: Command, make_pool: Callable[..., Path], checkpoint: Path, prefix: str | None
) -> None:
    path = make_pool(32 * MIB)
    options = [] if prefix is None else ["--name", prefix]
    loaded = command("load", checkpoint, "--engram", "--pool", path, "--json", *options).json()
    begin = prefix or "tiny-v4.1"
    assert [one["name"] for one in loaded] == [f"{begin}/layers.1", f"{begin}/layers.14"]
    assert {one["row_bytes"] for one in loaded} == {264}
    with engramdax.open(path) as opened:
        tables = {layer: opened[f"{begin}/layers.{layer}"] for layer in (1, 14)}
    for layer, table in tables.items():
        all_rows_are_right(checkpoint, table, layer)
        assert len(table.heads or ()) == 24
        assert table.verify() == []


def test_engram_tables_by_shards_or_index(command: Command, make_pool: Callable[..., Path], checkpoint: Path) -> None:
    path = make_pool(32 * MIB)
    shards = sorted(checkpoint.glob("*.safetensors"))
    command("load", *shards, "--engram", "--name", "a", "--pool", path).succeeded()
    index = checkpoint / "model.safetensors.index.json"
    command("load", index, "--engram", "--name", "b", "--pool", path).succeeded()
    with engramdax.open(path) as opened:
        for layer in (1, 14):
            for name in ("a", "b"):
                all_rows_are_right(checkpoint, opened[f"{name}/layers.{layer}"], layer)


def test_one_tensor_of_a_checkpoint(command: Command, pool: Path, checkpoint: Path) -> None:
    name = "layers.1.engram.embed.scale"
    command("load", checkpoint, "--tensor", name, "--pool", pool).succeeded()
    with engramdax.open(pool) as opened:
        table = opened[name]
        ids = np.arange(table.rows)
        np.testing.assert_array_equal(table.gather(ids), expected_rows(checkpoint, 1, ids)[:, 256:])


def test_of_two_tables_that_do_not_fit_together_none_is_loaded(command: Command, pool: Path, checkpoint: Path) -> None:
    before = command("ls", "--json", "--pool", pool).json()
    filler = checkpoint.parent / "filler.bin"
    filler.write_bytes(bytes(48))
    command("load", filler, "--row-bytes", 48, "--pool", pool).succeeded()
    command("load", checkpoint, "--engram", "--pool", pool).failed(1, "bytes are needed", "are free")
    command("rm", "filler", "--pool", pool).succeeded()
    assert command("ls", "--json", "--pool", pool).json() == before


def test_gather_within_heads(command: Command, make_pool: Callable[..., Path], checkpoint: Path) -> None:
    path = make_pool(32 * MIB)
    command("load", checkpoint, "--engram", "--name", "m", "--pool", path).succeeded()
    with engramdax.open(path) as opened:
        heads = opened["m/layers.14"].heads
    assert heads
    begins = np.cumsum([0, *heads[:-1]])
    local = np.random.default_rng(2).integers(0, heads, (5, len(heads)))
    ids, out = checkpoint.parent / "ids.npy", checkpoint.parent / "out.npy"
    np.save(ids, local)
    arguments = ("gather", "m/layers.14", "--ids", ids, "--out", out, "--pool", path, "--per-head")
    command(*arguments).succeeded()
    np.testing.assert_array_equal(np.load(out), expected_rows(checkpoint, 14, local + begins))
    local[3, 2] = heads[2]
    np.save(ids, local)
    command(*arguments).failed(2, f"ids[3, 2] is {heads[2]}", "head 2 of table m/layers.14")


def test_removed_table_gives_its_space_back(command: Command, pool: Path) -> None:
    free = command("ls", "--json", "--pool", pool).json()["free"]
    outcome = command("rm", "kept", "--pool", pool).succeeded()
    assert outcome.out == "kept is removed; its space is free\n"
    listed = command("ls", "--json", "--pool", pool).json()
    assert listed["tables"] == []
    assert listed["free"] == free + 4 * MIB
    command("rm", "kept", "--pool", pool).failed(1, "holds no table 'kept'", "it is empty")


def test_space_of_a_table_that_is_read_waits_for_its_readers(
    command: Command, pool: Path, kept: np.ndarray[Any, Any]
) -> None:
    with engramdax.open(pool) as opened:
        table = opened["kept"]
    outcome = command("rm", "kept", "--pool", pool).succeeded()
    assert "waits until no reader holds the table" in outcome.out
    assert "4.0 MiB of removed tables wait for readers" in command("ls", "--pool", pool).succeeded().out
    np.testing.assert_array_equal(table.gather(np.arange(500)), kept)
    del table
    np.save(pool.parent / "next.npy", kept)
    command("load", pool.parent / "next.npy", "--pool", pool).succeeded()
    assert command("ls", "--json", "--pool", pool).json()["waiting_for_readers"] == 0


def test_checkpoint_that_does_not_exist_is_named(command: Command, pool: Path, tmp_path: Path) -> None:
    for options in (("--engram",), ("--tensor", "t")):
        outcome = command("load", tmp_path / "flash", *options, "--pool", pool)
        outcome.failed(1, f"{tmp_path / 'flash'}: no such file or directory")
