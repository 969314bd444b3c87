# SPDX-License-Identifier: Apache-2.0
"""A pool that hosts share, in a file: each host is a state directory of its own, and one of them is this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import numpy as np

from engramdax.format.directory import Host, TableEntry
from engramdax.host import host_id
from engramdax.ingest.open import open_sources
from engramdax.pool.access import LocalAccess
from engramdax.pool.loader import Load, load_tables
from engramdax.pool.provision import initialise, new_superblock
from engramdax.pool.records import Record, write_record
from engramdax.pool.writer import Writer

MIB = 1 << 20
PROGRAM = Path(sys.executable).with_name("engramdax")


class SharedPool:
    """The pool at `path`, and its hosts by name; the first one owns it."""

    def __init__(self, folder: Path, *names: str, size: int = 32 * MIB) -> None:
        self.folder = folder
        self.path = folder / "shared.pool"
        self.ids: dict[str, UUID] = {}
        for name in names:
            with self.on(name):
                self.ids[name] = host_id()
        with self.path.open("wb") as file:
            file.truncate(size)
        access = LocalAccess(self.path, writable=True)
        superblock = new_superblock("shared", size, shared=True)
        initialise(access.media, superblock, Host(self.ids[names[0]], names[0]))
        access.close()
        for name in names:
            with self.on(name):
                write_record(Record(str(superblock.pool), "shared", str(self.path)))
        with self.on(names[0]), Writer(self.path) as writer:
            writer.publish(hosts=tuple(Host(id_, name) for name, id_ in self.ids.items()))

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Be this host meanwhile."""
        before = {key: os.environ.get(key) for key in self.environment(name)}
        os.environ.update(self.environment(name))
        try:
            yield
        finally:
            for key, value in before.items():
                if value is None:
                    os.environ.pop(key, None)
                else:
                    os.environ[key] = value

    def environment(self, name: str) -> dict[str, str]:
        """What makes a process one of this host."""
        return {
            "ENGRAMDAX_STATE_DIR": str(self.folder / name / "state"),
            "ENGRAMDAX_RUN_DIR": str(self.folder / name / "run"),
        }

    def ask(self) -> str:
        """Give a value of ENGRAMDAX_ASK that asks each host by being it."""
        state, run = self.folder / "{host}" / "state", self.folder / "{host}" / "run"
        return f"env ENGRAMDAX_STATE_DIR={state} ENGRAMDAX_RUN_DIR={run} {PROGRAM} info --json --pool {self.path}"

    def load(self, name: str, rows: np.ndarray, **options: bool) -> TableEntry:
        """Load an array on the present host."""
        file = self.folder / f"{name}.npy"
        np.save(file, rows)
        (source,) = open_sources([file])
        keep = options.get("resume", False)
        with source, Writer(self.path, keep=lambda _: keep) as writer:
            return load_tables(writer, [Load(source, name)], **options)[0]
