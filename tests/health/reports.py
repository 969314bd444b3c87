# SPDX-License-Identifier: Apache-2.0
"""Reports, findings by name, and damage to the bytes of a pool."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from engramdax.health.finding import Finding, State
from engramdax.health.report import PoolSeen, Report, TableSeen


def found(findings: Iterable[Finding], probe: str, object_: str | None = None) -> Finding:
    """Give the one finding of a probe, or of one of its objects."""
    (one,) = [f for f in findings if f.probe == probe and object_ in (None, f.object)]
    return one


def states(findings: Iterable[Finding]) -> dict[str, State]:
    """Give the state of each probe and object that is not ok."""
    return {f"{f.probe} {f.object}".strip(): f.state for f in findings if f.state is not State.OK}


def spoil(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


TABLE = TableSeen("words", "11111111-aaaa", 10, 640, 7, 0, None, "0badcafe", None)
POOL = PoolSeen("uuid-1", "rack1", "/dev/dax0.0", "devdax", 1 << 30, True, 7, 1, "owner", 5, (TABLE,))
REPORT = Report(
    "a",
    "id",
    1.0,
    {"engramdax": "0.1.0", "kernel": "6.12"},
    POOL,
    (),
    {"0xe1": "32 GT/s on 16 lanes"},
    20e9,
    1e-6,
    (Finding("device.present", State.OK, "dax0.0"),),
)


def report(host: str, **changes: Any) -> Report:
    """Give the report of a healthy host with some changes; `pool__x` changes a field of its pool."""
    pool = {name.removeprefix("pool__"): value for name, value in changes.items() if name.startswith("pool__")}
    rest = {name: value for name, value in changes.items() if not name.startswith("pool__")}
    base = replace(REPORT, host=host, **rest)
    return replace(base, pool=replace(POOL, **pool)) if pool else base
