# SPDX-License-Identifier: Apache-2.0
"""What a guest's zygote does on request, each in a process of its own; results are JSON on stdout."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import time
import warnings
from pathlib import Path

import numpy as np
from contents import rows_of, version_of, write_source
from deaths import Half, watch_steps

import engramdax
from engramdax.commands.main import run
from engramdax.pool.records import resolve
from engramdax.pool.volume import slots_agree

PAUSE = 0.05
CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 0x40000


def command(words: list[str]) -> int:
    """Run an engramdax command."""
    return run(words)


def code(text: str) -> int:
    """Run a Python program that may use engramdax."""
    exec(text, {"__name__": "__main__"})  # noqa: S102 - what it is for
    return 0


def write_table(name: str, version: int, rows: int, folder: str = "/run") -> int:
    """Write what to load as this version of a table."""
    print(json.dumps(str(write_source(Path(folder), name, version, rows))))
    return 0


def steps(words: list[str]) -> int:
    """Run a command, and give its steps: for each whether it is a store that can be torn."""
    torn: list[bool] = []
    watch_steps(lambda _, half: torn.append(half is not None))
    code = run(words)
    print(json.dumps(torn))
    return code


def stop_at(words: list[str], step: int, torn: bool, go: str = "/nowhere") -> int:
    """Run a command that stands still at a step until there is a file `go`."""

    def stand_still(number: int, half: Half | None) -> None:
        if number == step:
            if torn and half:
                half()
            print(f"stopped at step {step}", flush=True)
            while not os.path.exists(go):  # noqa: PTH110
                time.sleep(PAUSE)

    watch_steps(stand_still)
    return run(words)


def look() -> int:
    """Open the pool as a new reader, compare every byte of every table, and say what is there."""
    with warnings.catch_warnings(action="ignore", category=engramdax.DegradedPoolWarning):
        pool = engramdax.open(resolve(None))
    with pool:
        tables = {}
        for name in pool.tables:
            table = pool[name]
            assert table.verify() == [], name
            tables[name] = version_of(table.source)
            ids = np.arange(table.rows)
            assert np.array_equal(table.gather(ids), rows_of(name, tables[name], ids)), name
        found = {
            "tables": tables,
            "unfinished": [t.name for t in pool.directory.unfinished()],
            "free": sum(extent.length for extent in pool.free()),
            "retired": len(pool.directory.retired),
            "generation": pool.generation,
            "epoch": pool.directory.epoch,
            "slots_agree": slots_agree(pool._open.media, pool.superblock, pool.directory),
        }
    print(json.dumps(found))
    return 0


def hold(table: str, go: str = "/nowhere", contained: bool = False) -> int:
    """Read a table until there is a file `go`, then take what is published now; with a /run of its own if contained."""
    if contained:
        leave_run()
    with engramdax.open(resolve(None)) as pool:
        held = pool[table]
        version = version_of(held.source)
        ids = np.arange(0, held.rows, 7)
        expected = rows_of(table, version, ids)
        print(f"holding {os.getpid()}", flush=True)
        while not os.path.exists(go):  # noqa: PTH110
            assert np.array_equal(held.gather(ids), expected)
            time.sleep(PAUSE)
        del held
        pool.refresh()
        print("refreshed", flush=True)
        while True:
            time.sleep(PAUSE)


def leave_run() -> None:
    """Mount another /run for this process alone, as a container has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    for done in (
        libc.unshare(CLONE_NEWNS),
        libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None),
        libc.mount(b"tmpfs", b"/run", b"tmpfs", 0, None),
    ):
        assert done == 0, os.strerror(ctypes.get_errno())


def map_device(node: str) -> int:
    """Map the pool's device without engramdax, as any program may."""
    fd = os.open(node, os.O_RDONLY)
    memory = mmap.mmap(fd, 2 << 20, prot=mmap.PROT_READ)
    os.close(fd)
    print(f"mapping {os.getpid()} {memory[0]}", flush=True)
    while True:
        time.sleep(PAUSE)
