# SPDX-License-Identifier: Apache-2.0
"""What a command ended with, and what of a pool must be the same after one that failed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Outcome:
    """Exit code and output of one command."""

    code: int
    out: str
    err: str

    def succeeded(self) -> Outcome:
        assert (self.code, self.err) == (0, "")
        return self

    def failed(self, code: int, *said: str) -> None:
        """One line on stderr with cause and remedy, holding each of `said`; nothing on stdout."""
        assert self.err.startswith("engramdax: ")
        assert self.err.endswith("\n")
        line = self.err.removeprefix("engramdax: ").removesuffix("\n")
        assert line.isprintable()
        problem, mark, remedy = line.partition("; ")
        assert problem
        assert mark
        assert remedy
        assert "Traceback" not in line
        for words in said:
            assert words in line
        assert (self.code, self.out) == (code, "")

    def warned(self, *said: str) -> None:
        """Done, with one warning on stderr."""
        assert self.code == 0
        assert self.err.startswith("engramdax: warning: ")
        assert self.err.count("\n") == 1
        for words in said:
            assert words in self.err

    def json(self) -> Any:
        self.succeeded()
        return json.loads(self.out)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@contextmanager
def unchanged(*paths: Path) -> Iterator[None]:
    """Check that no byte of these files, nor their sizes, change meanwhile."""
    before = [digest(path) for path in paths]
    yield
    assert [digest(path) for path in paths] == before
