# SPDX-License-Identifier: Apache-2.0
"""`demo`: the whole way, from a checkpoint and a text to rows that are compared byte for byte."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import numpy as np
import typer

from engramdax.commands.output import JsonOption, print_grid, print_json, print_line, size_text
from engramdax.demo.checkpoint import DEFAULT_VOCAB_SIZE, write_checkpoint
from engramdax.demo.compare import expected_rows
from engramdax.demo.tokens import encode, load_tokenizer, sample_text
from engramdax.errors import DamagedTableError
from engramdax.host import SHARED_MEMORY
from engramdax.ingest.open import open_sources
from engramdax.ngram import Hasher, build_token_map
from engramdax.ngram.config import read_layout
from engramdax.pool.engram import engram_loads
from engramdax.pool.loader import load_tables
from engramdax.pool.pool import Pool
from engramdax.pool.provision import Consent, plan_file, plan_removal
from engramdax.pool.steps import carry_out
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from engramdax.table import Table

BATCHES: Final = (24, 384, 1536, 24_576)
"""Rows of 1, 16, 64 and 1,024 tokens, at 24 rows per token and layer."""

ROUNDS: Final = 30
POOL_SPARE: Final = 64 << 20


def demo(
    *,
    vocab_size: Annotated[
        int, typer.Option("--vocab-size", help="Size of the model's hash heads; V4.1 has 16,000,000.")
    ] = DEFAULT_VOCAB_SIZE,
    as_json: JsonOption = False,
) -> None:
    """Make a small DeepSeek-V4.1 checkpoint, load it into a pool, and gather a text's rows out of it.

    Needs no CXL, no root and no GPU; everything it makes is removed again.
    """
    say = (lambda _line: None) if as_json else print_line
    token_map = build_token_map(load_tokenizer())  # before anything is written: it may not be installed
    with tempfile.TemporaryDirectory(prefix="engramdax-demo-") as scratch:
        checkpoint = Path(scratch) / "demo"
        write_checkpoint(checkpoint, vocab_size=vocab_size)
        nbytes = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
        say(f"checkpoint   {size_text(nbytes)} with V4.1's tensor names and dtypes, in safetensors shards")
        path = _pool_place(nbytes, Path(scratch))
        carry_out(plan_file(path, nbytes + POOL_SPARE, name="demo", consent=Consent()).steps)
        try:
            result = _run(path, checkpoint, token_map, say)
        finally:
            carry_out(plan_removal(path, force=True).steps)
    if as_json:
        print_json(result)
    else:
        print_line("")
        print_grid(
            (">ROWS PER CALL", ">SPEED, NUMPY.TAKE = 1"),
            [(str(v["rows"]), f"{v['times_numpy']:.1f}") for v in result["speeds"]],
        )
    if result["wrong_bytes"]:
        raise DamagedTableError(f"{result['wrong_bytes']} bytes differ from the checkpoint")


def _run(path: Path, checkpoint: Path, token_map: npt.NDArray[np.int32], say: Callable[[str], None]) -> dict[str, Any]:
    with Writer(path) as writer:
        sources = open_sources([checkpoint], engram=True)
        try:
            load_tables(writer, engram_loads(sources, [checkpoint], None))
        finally:
            for source in sources:
                source.close()
    with Pool(path) as pool:
        tables = [pool[name] for name in pool.tables]
    # Tables outlive the Pool they came from.
    for table in tables:
        say(f"table        {table.name}: {table.rows} rows of {table.row_bytes} bytes")
    layout = read_layout(checkpoint / "config.json", token_map=token_map)
    tokens = encode(sample_text())
    row_ids = Hasher(layout)(tokens)
    say(f"text         {tokens.size} tokens, {row_ids.size} row ids by V4.1's rule")
    rows = wrong = 0
    by_layer = {int(t.name.rpartition(".")[2]): t for t in tables}
    for index, layer in enumerate(layout.layer_ids):
        table = by_layer[layer]
        ids = np.ascontiguousarray(row_ids[:, index])
        edges = np.array([0, table.rows - 1], np.int64)
        for wanted in (ids, edges):
            found = table.gather(wanted)
            wrong += int(np.count_nonzero(found != expected_rows(checkpoint, layer, wanted)))
            rows += wanted.size
    say(f"compared     {rows} rows with the checkpoint: {wrong} wrong bytes")
    speeds = _speeds(by_layer[layout.layer_ids[0]], np.ascontiguousarray(row_ids[:, 0]).reshape(-1))
    return {"rows": rows, "wrong_bytes": wrong, "speeds": speeds}


def _pool_place(nbytes: int, scratch: Path) -> Path:
    """Choose shared memory where it has the room, for a pool of real memory; else a file on disk."""
    name = f"{scratch.name}.pool"
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        free = 0
    return SHARED_MEMORY / name if free > 2 * (nbytes + POOL_SPARE) else scratch / name


def _speeds(table: Table, ids: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Time gather and numpy.take in turn on the same rows, each from its own memory."""
    ordinary = table.gather(np.arange(table.rows))
    random = np.random.default_rng(0)
    speeds = []
    for count in BATCHES:
        out = np.empty((count, table.row_bytes), np.uint8)
        ours, theirs = [], []
        for _ in range(ROUNDS):
            wanted = random.choice(ids, count)
            start = time.perf_counter()
            table.gather(wanted, out=out)
            middle = time.perf_counter()
            np.take(ordinary, wanted, axis=0, out=out, mode="clip")
            theirs.append(time.perf_counter() - middle)
            ours.append(middle - start)
        speeds.append({"rows": count, "times_numpy": float(np.median(theirs) / np.median(ours))})
    return speeds


COMMANDS = (demo,)
