# SPDX-License-Identifier: Apache-2.0
"""Who has a pool mapped on this host, and which generation each of them still holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from engramdax.backing import Kind
from engramdax.devices.holders import holders
from engramdax.errors import EngramdaxError
from engramdax.health.finding import Finding, ok, unknown, warning
from engramdax.locks import held_generations, pin_path, pinned_before

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engramdax.health.subject import Subject


@dataclass(frozen=True, slots=True)
class Reader:
    """A process that has the pool open or mapped."""

    pid: int
    command: str
    generation: int | None
    """The oldest that it holds; None for one that holds no pin: a writer, another program, a container of its own."""


def probe(subject: Subject, found: list[Reader]) -> Iterator[Finding]:
    """Look who reads; they are left in `found`."""
    if subject.opened is None or subject.superblock is None:
        return
    backing, uuid = subject.opened.backing, subject.superblock.value.pool
    if subject.pool is not None:
        subject.pool.close()  # this process is none of them
        subject.pool = None
    try:
        held = held_generations(pin_path(backing, uuid))
        held.pop(os.getpid(), None)
        hidden = not held and pinned_before(backing, uuid, 1 << 62)
    except EngramdaxError as e:
        yield unknown("pool.readers", e.problem, remedy=e.remedy)
        return
    others = set(holders(backing.device, subject.sources.proc)) if backing.kind is Kind.DEVDAX else set()
    proc = subject.sources.proc
    for pid in sorted(others | held.keys()):
        generations = held.get(pid)
        found.append(Reader(pid, _command(proc / str(pid) / "comm"), min(generations) if generations else None))
    names = ", ".join(
        f"{r.pid} ({r.command})" + ("" if r.generation is None else f" at {r.generation}") for r in found[:8]
    )
    text = f"{len(found)} processes" + (f": {names}" if found else "")
    if hidden:
        text += "; and some that /proc does not show here"
    if backing.kind is Kind.DEVDAX and not subject.root:
        yield unknown("pool.readers", f"{text}; root sees all", figure=len(found), remedy="run as root")
    else:
        yield ok("pool.readers", text, figure=len(found))
    yield from _old(subject, found)


def _old(subject: Subject, found: list[Reader]) -> Iterator[Finding]:
    if subject.directory is None:
        return
    directory = subject.directory.value
    for reader in found:
        waiting = [r for r in directory.retired if reader.generation is not None and reader.generation < r.generation]
        if waiting:
            size = sum(extent.length for r in waiting for extent in r.extents)
            yield warning(
                "pool.old_generation",
                f"process {reader.pid} ({reader.command}) holds generation {reader.generation}, the pool is at "
                f"{directory.generation}: {size} bytes of removed tables wait for it",
                object=f"process {reader.pid}",
                figure=size,
                unit="bytes",
                remedy="let it take its tables anew (`pool.refresh()`), or end it",
            )


def _command(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return "gone"
