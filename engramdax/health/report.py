# SPDX-License-Identifier: Apache-2.0
"""One host's look at one pool: the probes in their order, and what they found together."""

from __future__ import annotations

import platform
import time
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from engramdax.devices import tools
from engramdax.errors import EngramdaxError
from engramdax.health import (
    device,
    events,
    locality,
    memdevs,
    metadata,
    pcie,
    poison,
    readers,
    speed,
    tables,
)
from engramdax.health.finding import Finding, State, is_figure, unknown, worst
from engramdax.health.history import Verified
from engramdax.health.readers import Reader
from engramdax.health.subject import Sources, Subject
from engramdax.host import host_id, host_name
from engramdax.pool.space import free_extents
from engramdax.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from engramdax.health.history import Speed
    from engramdax.health.tables import Seen

FORMAT: Final = 1
PROBES: Final = (
    "device",
    "pool",
    "table",
    "memdev",
    "nvdimm",
    "pcie",
    "host",
)
"""Groups of probes, as their names begin."""


@dataclass(frozen=True, slots=True)
class TableSeen:
    """A table as this host sees it."""

    name: str
    load: str
    rows: int
    bytes: int
    checksums: int
    """crc32c of its checksums, as the directory says."""
    hot_rows: int
    """In its hot list; 0 without one."""
    hot_share: float | None
    """Of the reads of the trace that the hot list was made of, those that it serves; None where that is not known."""
    digest: str | None
    """Of the bytes looked at; None where they were not."""
    verified: Verified | None


@dataclass(frozen=True, slots=True)
class PoolSeen:
    """A pool as this host sees it."""

    uuid: str
    name: str
    path: str
    kind: str
    size: int
    shared: bool
    generation: int | None
    epoch: int | None
    owner: str | None
    free: int | None
    tables: tuple[TableSeen, ...]


@dataclass(frozen=True)
class Report:
    """What one host says. Keys of its JSON are always there; null is unknown."""

    host: str
    host_id: str | None
    time: float
    """Seconds since 1970."""
    versions: dict[str, str]
    pool: PoolSeen | None
    readers: tuple[Reader, ...]
    links: dict[str, str]
    """By memdev: speed and width."""
    bandwidth: float | None
    latency: float | None
    findings: tuple[Finding, ...] = field(default=())

    @property
    def state(self) -> State:
        """The worst of all findings."""
        return worst(f.state for f in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Give the form that `--json` prints."""
        value = asdict(self)
        value["findings"] = [f.to_json() for f in self.findings]
        return {"format": FORMAT, "state": str(self.state), **value}

    @classmethod
    def from_json(cls, value: Any) -> Report:
        """Read what `to_json` gave, on this host or another.

        ValueError, KeyError, TypeError or AttributeError for anything else. Keys that are not known are left alone.
        """
        if _one(value["format"], int) != FORMAT:
            raise ValueError(f"it is of format {value['format']!r}, this engramdax reads {FORMAT}")
        return cls(
            _one(value["host"], str),
            _one(value["host_id"], str, None),
            _one(value["time"], float, int),
            {_one(k, str): _one(v, str) for k, v in value["versions"].items()},
            None if value["pool"] is None else _pool_from_json(value["pool"]),
            tuple(Reader(**_fields(Reader, r)) for r in value["readers"]),
            {_one(k, str): _one(v, str) for k, v in value["links"].items()},
            _one(value["bandwidth"], float, int, None),
            _one(value["latency"], float, int, None),
            tuple(Finding.from_json(f) for f in value["findings"]),
        )


_TYPES: Final[dict[str, tuple[type | None, ...]]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "str | None": (str, None),
    "int | None": (int, None),
    "float | None": (float, int, None),
}
"""What JSON may hold for a field, by its annotation."""


def _one(value: Any, *types: type | None) -> Any:
    if (None if value is None else type(value)) not in types:
        raise TypeError(f"{str(value)[:40]!r} is no {' or '.join(str(t and t.__name__) for t in types)}")
    if type(value) in (int, float) and not is_figure(value):
        raise ValueError(f"{str(value)[:40]} is no number of 64 bits")
    return value


def _fields(kind: type, value: Any) -> dict[str, Any]:
    """Give the plain fields of a dataclass out of JSON."""
    return {f.name: _one(value[f.name], *_TYPES[str(f.type)]) for f in fields(kind) if str(f.type) in _TYPES}


def _pool_from_json(value: Any) -> PoolSeen:
    tables = [
        TableSeen(
            **_fields(TableSeen, t),
            verified=None if t["verified"] is None else Verified(**_fields(Verified, t["verified"])),
        )
        for t in value["tables"]
    ]
    return PoolSeen(**_fields(PoolSeen, value), tables=tuple(tables))


@dataclass
class _Look:
    """What probes leave for the report beside their findings."""

    seen: dict[str, Seen] = field(default_factory=dict)
    readers: list[Reader] = field(default_factory=list)
    speeds: list[Speed] = field(default_factory=list)


def examine(
    target: str | None = None,
    *,
    share: float | None = None,
    skip: Sequence[str] = (),
    sources: Sources | None = None,
) -> Report:
    """Look at a pool with all probes, but those whose name is one of `skip` or begins with one and a dot.

    `target` as of `engramdax.open`. `share` of the blocks of each table are verified. Raises nothing on purpose: what
    goes wrong is a finding. Opens devices O_RDONLY, maps PROT_READ. As root it makes an instance of tracefs, where
    there is no rasdaemon.
    """
    look = _Look()
    with Subject.open(target, sources or Sources()) as subject:
        findings = [f for f in _findings(subject, look, share, skip) if not _skipped(f.probe, skip)]
        pool = _pool_seen(subject, look)
        if subject.superblock is not None:
            loads = {t.load for t in pool.tables} if pool else set()
            problem = subject.history.save(subject.superblock.value.pool, loads)
            if problem and not _skipped("host.history", skip):
                text = f"what was measured cannot be kept for the next time: {problem}"
                findings.append(unknown("host.history", text, remedy="run as root once, or set ENGRAMDAX_STATE_DIR"))
        links = {f.object: f.found for f in findings if f.probe == "pcie.link" and f.figure is not None}
    last = look.speeds[-1] if look.speeds else None
    return Report(
        host_name(),
        _host_id(),
        time.time(),
        _versions(),
        pool,
        tuple(look.readers),
        links,
        last.bandwidth if last else None,
        last.latency if last else None,
        tuple(findings),
    )


def _findings(subject: Subject, look: _Look, share: float | None, skip: Sequence[str]) -> Iterator[Finding]:
    if subject.tree_problem is not None:
        yield unknown("device.sysfs", subject.tree_problem.problem, remedy=subject.tree_problem.remedy)
    probes: dict[str, Callable[[], Iterator[Finding]]] = {
        "device": lambda: device.probe(subject),
        "pool": lambda: metadata.probe(subject),
        "table.bytes": lambda: tables.probe(subject, look.seen, share=share),
        "memdev": lambda: memdevs.probe(subject),
        "memdev.poison": lambda: poison.probe(subject),
        "memdev.events": lambda: events.probe(subject),
        "pcie": lambda: pcie.probe(subject),
        "host": lambda: locality.probe(subject),
        "pool.bandwidth": lambda: speed.probe(subject, look.speeds),
        # The last one: it lets go of the pool.
        "pool.readers": lambda: readers.probe(subject, look.readers),
    }
    for name, probe in probes.items():
        if _skipped(name, skip):
            continue
        try:
            yield from probe()
        except Exception as e:  # noqa: BLE001 - a probe that fails must not hide what the others find
            text = e.problem if isinstance(e, EngramdaxError) else f"{type(e).__name__}: {e}"
            remedy = e.remedy if isinstance(e, EngramdaxError) else "report it with the output of tools/capture_sysfs"
            yield unknown(name, f"could not be found out: {text}", remedy=remedy)


def _skipped(name: str, skip: Sequence[str]) -> bool:
    return any(name == one or name.startswith(f"{one}.") for one in skip)


def _pool_seen(subject: Subject, look: _Look) -> PoolSeen | None:
    if subject.superblock is None or subject.opened is None:
        return None
    superblock = subject.superblock.value
    directory = subject.directory.value if subject.directory else None
    seen = tuple(
        TableSeen(
            t.name,
            str(t.load),
            t.rows,
            t.bytes,
            t.checksums_crc,
            t.hot.rows if t.hot else 0,
            t.hot.served[-1][1] if t.hot and t.hot.served else None,
            look.seen[str(t.load)].digest if str(t.load) in look.seen else None,
            subject.history.verified.get(str(t.load)),
        )
        for t in sorted(directory.published() if directory else (), key=lambda t: t.name)
    )
    free = None
    if directory is not None:
        free = sum(e.length for e in free_extents(superblock.geometry, superblock.size, directory.taken()))
    return PoolSeen(
        str(superblock.pool),
        superblock.name,
        str(subject.path),
        str(subject.opened.backing.kind),
        superblock.size,
        superblock.shared,
        directory.generation if directory else None,
        directory.epoch if directory else None,
        str(directory.owner) if directory else None,
        free,
        seen,
    )


def _host_id() -> str | None:
    try:
        return str(host_id())
    except EngramdaxError:
        return None


def _versions() -> dict[str, str]:
    found = {"engramdax": __version__, "kernel": platform.release(), "python": platform.python_version()}
    for name in tools.PACKAGES:
        try:
            version = tools.version(name)
        except EngramdaxError:
            continue
        if version is not None:
            found[name] = ".".join(map(str, version))
    return found
