# SPDX-License-Identifier: Apache-2.0
"""What `--json` prints: one document for each command, with keys that programs rely on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest
from outcomes import Outcome

Command = Callable[..., Outcome]

MIB = 1 << 20
TABLE_KEYS = {"name", "rows", "row_bytes", "bytes", "layout", "heads", "addressing", "hot_rows", "load", "source"}


def test_provision_and_deprovision(command: Command, tmp_path: Path) -> None:
    path = tmp_path / "p.pool"
    made = command("provision", "--file", path, "--size", "16M", "--name", "p", "--json").json()
    assert set(made) == {"name", "uuid", "path", "size", "done", "steps"}
    assert (made["name"], made["path"], made["size"], made["done"]) == ("p", str(path), 16 * MIB, True)
    gone = command("deprovision", "--pool", "p", "--json").json()
    assert set(gone) == set(made)
    assert (gone["uuid"], gone["done"]) == (made["uuid"], True)


def test_load_and_rm(command: Command, pool: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.zeros((6, 4), np.int16))
    (loaded,) = command("load", tmp_path / "t.npy", "--pool", pool, "--json").json()
    assert (loaded.pop("name"), loaded.pop("rows"), loaded.pop("row_bytes")) == ("t", 6, 8)
    UUID(loaded.pop("load"))
    assert loaded == {}
    assert command("rm", "t", "--pool", pool, "--json").json() == {"name": "t", "bytes": 48, "free": True}


def test_ls(command: Command, pool: Path) -> None:
    listed = command("ls", "--pool", pool, "--json").json()
    assert set(listed) == {"pool", "tables", "free", "largest_free_extent", "waiting_for_readers", "unfinished"}
    assert (listed["pool"], listed["waiting_for_readers"], listed["unfinished"]) == ("shelf", 0, 0)
    assert listed["free"] == listed["largest_free_extent"] == 8 * MIB
    (table,) = listed["tables"]
    assert set(table) == TABLE_KEYS
    assert (table["name"], table["rows"], table["row_bytes"], table["bytes"]) == ("kept", 500, 48, 24_000)
    assert table["layout"] == {
        "row_bytes": 48,
        "fields": [{"name": "row", "dtype": "uint8", "count": 48, "offset": 0, "stride": 48}],
    }
    assert table["heads"] is None
    UUID(table["load"])
    assert table["source"]["kind"] == "npy"


def test_info(command: Command, pool: Path) -> None:
    info = command("info", "--pool", pool, "--json").json()
    assert set(info) == {
        *("name", "uuid", "path", "kind", "size", "page_size", "shared", "created", "generation", "epoch"),
        *("owner", "hosts", "tables", "free", "problems", "here"),
    }
    assert (info["name"], info["path"], info["size"], info["tables"]) == ("shelf", str(pool), 24 * MIB, 1)
    assert info["kind"] in ("file", "tmpfs")
    assert info["page_size"] in (4096, 2 * MIB)
    assert info["problems"] == []
    assert [host["id"] for host in info["hosts"]] == [info["owner"]]
    assert set(command("info", "kept", "--pool", pool, "--json").json()) == TABLE_KEYS


def test_verify(command: Command, pool: Path) -> None:
    assert command("verify", "--pool", pool, "--json").json() == [{"name": "kept", "ok": True, "bad_blocks": []}]
    assert command("verify", "kept", "--pool", pool, "--json").json()[0]["ok"] is True


def test_gather(command: Command, pool: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.zeros((2, 3), np.int32))
    files = ("--ids", tmp_path / "ids.npy", "--out", tmp_path / "out.npy")
    assert command("gather", "kept", *files, "--pool", pool, "--json").json() == {
        "table": "kept",
        "ids": 6,
        "shape": [2, 3, 48],
        "dtype": "uint8",
    }


@pytest.mark.parametrize("verb", ["ls", "info", "verify", "rm x", "deprovision"])
def test_errors_are_text_on_stderr_even_so(command: Command, tmp_path: Path, verb: str) -> None:
    command(*verb.split(), "--pool", tmp_path / "absent.pool", "--json").failed(1, "does not exist")
