# SPDX-License-Identifier: Apache-2.0
"""One host's part in a soak of a shared pool: to write while it owns the pool, to read while another host does.

Runs in a guest, as a task of its zygote. Hands change by turns in the two ways that there are: an owner of an even
epoch releases the pool when its turn is over, from one of an odd epoch it is taken, in the middle of what it does.
"""

from __future__ import annotations

import io
import json
import random
import time
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from contents import rows_of, version_of, write_source

import engramdax
from engramdax.commands.main import run
from engramdax.pool.records import resolve

NAMES = [f"t{n}" for n in range(5)]
MAX_ROWS = 9_000
BATCH = 512
MAX_HELD = 3
FOR_EVER = 1e9
MORE_SECONDS = 300.0

CHANGES = ("loads", "replaces", "reclaims", "removals", "loads", "replaces")
"""What an owner does in turn, where there is something to do it with."""

WAITS = "of removed tables wait"
"""What `reclaim` says, with the exit code of a refusal, where readers still hold some."""

LOST = ("took pool", "is taking pool", "is written by host", "this host released")
"""What a writer is told whose turn another host has ended."""


class Part:
    """One host: its clock, its dice and what it has counted."""

    def __init__(self, seed: int, seconds: float, turn: float) -> None:
        self.random = random.Random(seed)
        self.changes = cycle(CHANGES)
        self.counts: Counter[str] = Counter()
        self.path = resolve(None)
        self.turn = turn
        self.end = time.monotonic() + seconds
        self.versions = 0
        self.longest_wait = 0.0
        self.first_epoch = self.epoch = self.standing()["epoch"]

    @property
    def over(self) -> bool:
        """Tell whether the time is up; on a machine that is very busy hands have to change both ways all the same."""
        now = time.monotonic()
        return now >= self.end and (self.epoch >= self.first_epoch + 2 or now >= self.end + MORE_SECONDS)

    def standing(self) -> dict[str, Any]:
        """Give what this host knows of the owner; with a claim, of the one to be."""
        code, said = self.command("own", "--json")
        assert code == 0, said
        standing: dict[str, Any] = json.loads(said)
        if standing["claim"]:
            standing["epoch"] = standing["claim"]["epoch"]
        return standing

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command; give its exit code and all that it said."""
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = run(list(words))
        return code, said.getvalue()

    # The owner's part.

    def write(self) -> None:
        """Change tables until the turn is over, or another host has taken the pool."""
        end = time.monotonic() + (self.turn if self.epoch % 2 == 0 else FOR_EVER)
        with engramdax.open(self.path) as pool:
            present = set(pool.tables)
        # On a busy machine a turn that ends by a release is as long as each kind of change takes.
        while not self.over and (time.monotonic() < end or not all(self.counts[what] for what in CHANGES)):
            if not self._change(present):
                self.counts["turns ended by a take-over"] += 1
                return
        if not self.over:
            self.counts["releases"] += self._done("own", "--release")

    def _change(self, present: set[str]) -> bool:
        """Load, replace, remove or reclaim; tell whether this host still may."""
        what = next(self.changes)
        if what == "reclaims":
            done = self._done("reclaim")
        elif what == "removals" and present:
            name = self.random.choice(sorted(present))
            done = self._done("rm", name)
            present.remove(name)
        else:
            absent = [name for name in NAMES if name not in present]
            what = "loads" if not present or (what == "loads" and absent) else "replaces"
            name = self.random.choice(absent if what == "loads" else sorted(present))
            self.versions += 1
            version = self.epoch * 100_000 + self.versions
            source = write_source(Path("/run"), name, version, self.random.randint(1, MAX_ROWS))
            replace = [] if what == "loads" else ["--replace"]
            done = self._done("load", str(source), "--name", name, *replace)
            source.unlink()
            present.add(name)
        self.counts[what] += done
        return done

    def _done(self, *words: str) -> bool:
        """Run a command that writes: it succeeds, or this host is the owner no more."""
        code, said = self.command(*words)
        if code == 0 or WAITS in said:
            return True
        assert any(lost in said for lost in LOST), (words, code, said)
        self.counts["operations that a take-over ended"] += 1
        return False

    # A reader's part.

    def read(self) -> None:
        """Gather and compare until this host is to own the pool."""
        take_at = time.monotonic() + (self.turn if self.epoch % 2 else FOR_EVER)
        held: list[engramdax.Table] = []
        released = False
        with engramdax.open(self.path) as pool:
            self.counts["attaches"] += 1
            while not self.over and not released and time.monotonic() < take_at:
                if pool.changed():
                    self.counts["refreshes"] += pool.refresh()
                    self.epoch = pool.directory.epoch
                released = pool.directory.released and pool.directory.heir == pool._open.access.host
                self._read_some(pool, held)
        held.clear()
        if not self.over:
            self._take(released)

    def _read_some(self, pool: engramdax.Pool, held: list[engramdax.Table]) -> None:
        if pool.tables and len(held) < MAX_HELD:
            held.append(pool[self.random.choice(pool.tables)])
        for table in held:
            entry = pool.directory.table(table.name)
            old = entry is None or entry.load != table.entry.load
            ids = np.array([self.random.randrange(table.rows) for _ in range(BATCH)])
            expected = rows_of(table.name, version_of(table.source), ids)
            assert np.array_equal(table.gather(ids), expected), (table.name, table.source)
            self.counts["rows gathered"] += BATCH
            self.counts["rows gathered of versions replaced or removed"] += BATCH if old else 0
        if held and self.random.random() < 0.2:
            table = self.random.choice(held)
            assert table.verify() == [], (table.name, table.source)
            self.counts["tables verified"] += 1
        if held and self.random.random() < 0.3:
            del held[self.random.randrange(len(held))]

    def _take(self, released: bool) -> None:
        """Become the owner: of a released pool by any write, else by a take-over that the others prove."""
        if released:
            assert self._done("reclaim")
            return
        started = time.monotonic()
        while not self.over:
            code, said = self.command("own", "--take-over", "--json")
            if code == 0:
                self.counts["take-overs"] += 1
                self.longest_wait = max(self.longest_wait, time.monotonic() - started)
                return
            # A busy machine may keep a guest from answering in time.
            silent = json.loads(said)["silent"]
            self.counts["take-overs put off by silence" if silent else "take-overs put off by a writer"] += 1

    def play(self) -> None:
        """Do what this host's standing says, until the end."""
        while not self.over:
            standing = self.standing()
            self.epoch = standing["epoch"]
            if standing["may_write"]:
                self.write()
            else:
                self.read()


def take_part(seed: int, seconds: float, turn: float) -> int:
    """Play one host's part; print what was counted."""
    # One copy of the metadata may be bad while the other host is in the middle of a publication; older it never is.
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", message=".*(slot|superblock copy)", category=engramdax.DegradedPoolWarning)
        part = Part(seed, seconds, turn)
        part.play()
    print(json.dumps({**part.counts, "longest take-over, s": round(part.longest_wait, 1)}))
    return 0
