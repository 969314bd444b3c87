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
from pathlib import Path

import numpy as np
from contents import rows_of, version_of, write_source

import engramdax
from engramdax.commands.main import run
from engramdax.pool.records import resolve

NAMES = [f"t{n}" for n in range(5)]
MAX_ROWS = 9_000
BATCH = 512
MAX_HELD = 3

LOST = ("took pool", "is taking pool", "is written by host", "this host released")
"""What a writer is told whose turn another host has ended."""


class Part:
    """One host: its clock, its dice and what it has counted."""

    def __init__(self, seed: int, seconds: float, turn: float) -> None:
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.path = resolve(None)
        self.turn = turn
        self.end = time.monotonic() + seconds
        self.versions = 0
        self.longest_wait = 0.0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def command(self, *words: str) -> tuple[int, str]:
        """Run a command; give its exit code and all that it said."""
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            code = run(list(words))
        return code, said.getvalue()

    # The owner's part.

    def write(self, epoch: int) -> None:
        """Change tables until the turn is over, or another host has taken the pool."""
        end = min(time.monotonic() + self.turn, self.end) if epoch % 2 == 0 else self.end
        with engramdax.open(self.path) as pool:
            present = set(pool.tables)
        while time.monotonic() < end:
            if not self._change(epoch, present):
                self.counts["turns ended by a take-over"] += 1
                return
        if not self.over and self._done("own", "--release"):
            self.counts["releases"] += 1

    def _change(self, epoch: int, present: set[str]) -> bool:
        """Load, replace, remove or reclaim; tell whether this host still may."""
        name = self.random.choice(NAMES)
        what = self.random.choices(("load", "rm", "reclaim"), (6, 2, 1))[0]
        if what == "reclaim":
            done, counted = self._done("reclaim"), "reclaims"
        elif what == "rm" and name in present:
            done, counted = self._done("rm", name), "removals"
            present.discard(name)
        else:
            self.versions += 1
            version = epoch * 100_000 + self.versions
            source = write_source(Path("/run"), name, version, self.random.randint(1, MAX_ROWS))
            replace = ["--replace"] if name in present else []
            done, counted = (
                self._done("load", str(source), "--name", name, *replace),
                "replaces" if replace else "loads",
            )
            source.unlink()
            present.add(name)
        self.counts[counted] += done
        return done

    def _done(self, *words: str) -> bool:
        """Run a command that writes: it succeeds, or this host is the owner no more."""
        code, said = self.command(*words)
        if code == 0:
            return True
        assert any(lost in said for lost in LOST), (words, code, said)
        self.counts["operations that a take-over ended"] += 1
        return False

    # A reader's part.

    def read(self, epoch: int) -> None:
        """Gather and compare until this host is to own the pool."""
        take_at = time.monotonic() + self.turn if epoch % 2 else self.end + 1
        held: list[engramdax.Table] = []
        with engramdax.open(self.path) as pool:
            self.counts["attaches"] += 1
            while not self.over:
                if pool.changed():
                    self.counts["refreshes"] += pool.refresh()
                    directory = pool.directory
                    if directory.released and directory.heir == pool._open.access.host:
                        break
                if time.monotonic() >= take_at:
                    break
                self._read_some(pool, held)
        held.clear()
        if not self.over:
            self._take(release=time.monotonic() < take_at)

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
        if held and self.random.random() < 0.5:
            del held[self.random.randrange(len(held))]

    def _take(self, *, release: bool) -> None:
        """Become the owner: of a released pool by any write, else by a take-over that the others prove."""
        if release:
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
            code, said = self.command("own", "--json")
            assert code == 0, said
            standing = json.loads(said)
            if standing["may_write"]:
                self.write(standing["epoch"])
            else:
                self.read(standing["epoch"])


def take_part(seed: int, seconds: float, turn: float) -> int:
    """Play one host's part; print what was counted."""
    # One copy of the metadata may be bad while the other host is in the middle of a publication; older it never is.
    with warnings.catch_warnings(action="error"):
        warnings.filterwarnings("ignore", message=".*(slot|superblock copy)", category=engramdax.DegradedPoolWarning)
        part = Part(seed, seconds, turn)
        part.play()
    print(json.dumps({**part.counts, "longest take-over, s": round(part.longest_wait, 1)}))
    return 0
