# SPDX-License-Identifier: Apache-2.0
"""Errors that devices reported by themselves: media, memory module and poison events.

rasdaemon writes them down for good. Where it does not run, the kernel's trace events are listened to in an instance of
their own, from the first look of root on.
"""

from __future__ import annotations

import re
import sqlite3
import time
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

from engramdax.health.finding import Finding, State, ok, unknown
from engramdax.health.memdevs import object_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from engramdax.devices.tree import Memdev
    from engramdax.health.subject import Subject

INSTANCE: Final = "engramdax"
EVENTS: Final = (
    "cxl_general_media",
    "cxl_dram",
    "cxl_memory_module",
    "cxl_generic_event",
    "cxl_overflow",
    "cxl_poison",
    "cxl_aer_uncorrectable_error",
    "cxl_aer_correctable_error",
)
"""Of the kernel's cxl trace events. Poison that somebody asks for is traced as well, so it counts as told already."""

LISTENED: Final = tuple(event for event in EVENTS if event != "cxl_poison")
BUFFER_KB: Final = 64

TABLES: Final = (
    "cxl_general_media_event",
    "cxl_dram_event",
    "cxl_memory_module_event",
    "cxl_generic_event",
    "cxl_overflow_event",
    "cxl_poison_event",
    "cxl_aer_ue_event",
    "cxl_aer_ce_event",
)
"""Of rasdaemon's database; older versions have fewer."""

RECORDED: Final = "recorded"
UNCORRECTABLE: Final = "UNCORRECTABLE"
MOST_ROWS: Final = 1000
RECENT_DAYS: Final = 30
SERIOUS: Final = re.compile(r"fatal|failure|uncorrect", re.IGNORECASE)
_LINE: Final = re.compile(
    r": (?P<event>cxl_\w+): memdev=(?P<memdev>\S+)(?: host=\S+)?(?: serial=(?P<serial>\S+))?(?: log=(?P<log>\w+))?"
)


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at what the memdevs behind the pool reported."""
    memdevs = subject.device.memdevs if subject.device else ()
    if not memdevs:
        return
    path, rows = subject.sources.rasdaemon, None
    try:
        rows = _rows(path)
    # The last two come of a damaged name and of a damaged length, which sqlite3 lets through.
    except (sqlite3.Error, OSError, UnicodeDecodeError, MemoryError) as e:
        remedy, why = "" if subject.root else "run as root", str(e) or "it is damaged"
        yield unknown("memdev.events", f"rasdaemon's {path} cannot be read: {why}", object=RECORDED, remedy=remedy)
    if rows is not None:
        yield from _recorded(rows, memdevs)
    if rows is None or not _records(subject.sources.proc):
        yield from _traced(subject.sources.tracing, memdevs, root=subject.root)


def _records(proc: Path) -> bool:
    """Tell whether rasdaemon runs now, to write down what comes."""
    for name in proc.glob("[0-9]*/comm"):
        with suppress(OSError):
            if name.read_text(errors="replace").strip() == "rasdaemon":
                return True
    return False


def _recorded(rows: list[dict[str, Any]], memdevs: tuple[Memdev, ...]) -> Iterator[Finding]:
    for memdev in memdevs:
        mine = [r for r in rows if _is(memdev, r.get("memdev"), r.get("serial"))]
        texts = [f"{r['table'].removesuffix('_event')} {r.get('log_type') or ''}".strip() for r in mine]
        text = f"{len(mine)} events within {RECENT_DAYS} days in rasdaemon's database"
        name = f"{object_name(memdev)} {RECORDED}"
        yield _finding(name, texts, text, "`ras-mc-ctl --errors` shows them", count=len(mine))


def _rows(path: Path) -> list[dict[str, Any]] | None:
    """Give the recent events of memdevs; None without a database, or from a rasdaemon that knows none of them."""
    try:
        if not path.exists():
            return None
    except PermissionError as e:
        raise PermissionError(e.errno, e.strerror) from None
    since = time.strftime("%Y-%m-%d", time.localtime(time.time() - RECENT_DAYS * 86400))
    rows = []
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=2)) as database:
        database.row_factory = sqlite3.Row
        there = {row[0] for row in database.execute("select name from sqlite_master where type = 'table'")}
        known = [table for table in TABLES if table in there]
        for table in known:
            query = f"select * from {table} where timestamp >= ? order by id desc limit {MOST_ROWS}"  # noqa: S608
            rows += [{**dict(row), "table": table} for row in database.execute(query, (since,))]
    return rows if known else None


def _traced(tracing: Path, memdevs: tuple[Memdev, ...], *, root: bool) -> Iterator[Finding]:
    if not root:
        remedy = "run as root, or install rasdaemon"
        yield unknown("memdev.events", "only root may listen to the kernel's events", remedy=remedy)
        return
    try:
        started = _listen(tracing)
        lines = (tracing / "instances" / INSTANCE / "trace").read_text(errors="replace").splitlines()
    except OSError as e:
        yield unknown("memdev.events", f"the kernel's events cannot be had: {e}", remedy="install rasdaemon")
        return
    found = [match for line in lines if not line.startswith("#") and (match := _LINE.search(line))]
    forget = f"note them down; `echo > {tracing}/instances/{INSTANCE}/trace` forgets them"
    for memdev in memdevs:
        mine = [m for m in found if _is(memdev, m["memdev"], m["serial"])]
        texts = [f"{m['event']} {m['log'] or ''}{' uncorrectable' if UNCORRECTABLE in m.string else ''}" for m in mine]
        since = "listening from now on" if started else f"{len(mine)} events since this boot's first look"
        yield _finding(object_name(memdev), texts, since, forget, count=len(mine))


def _listen(tracing: Path) -> bool:
    """Have the kernel's events kept in an instance of our own; tells whether that began now."""
    instance = tracing / "instances" / INSTANCE
    began = not instance.is_dir()
    if began:
        if not (tracing / "events" / "cxl").is_dir():
            raise FileNotFoundError(2, "the kernel traces no CXL events", str(tracing / "events" / "cxl"))
        instance.mkdir()
        (instance / "buffer_size_kb").write_text(f"{BUFFER_KB}\n")
    for event in LISTENED:
        switch = instance / "events" / "cxl" / event / "enable"
        if switch.exists() and switch.read_text().strip() == "0":
            switch.write_text("1\n")
    return began


def _is(memdev: Memdev, name: Any, serial: Any) -> bool:
    """Tell whether an event is this memdev's: by serial, since names change from boot to boot."""
    if memdev.serial and serial not in (None, ""):
        try:
            return (int(str(serial), 0) & (1 << 64) - 1) == memdev.serial
        except ValueError:
            return False
    return str(name) == memdev.name


def _finding(name: str, texts: list[str], text: str, remedy: str, *, count: int) -> Finding:
    if not texts:
        return ok("memdev.events", text, object=name, figure=count)
    state = State.CRITICAL if any(SERIOUS.search(t) for t in texts) else State.WARNING
    shown = ", ".join(dict.fromkeys(texts))
    return Finding("memdev.events", state, f"{text}: {shown}", object=name, figure=count, remedy=remedy)
