# SPDX-License-Identifier: Apache-2.0
"""A report as a file for node_exporter's textfile collector.

By its rules: base units, no timestamps, a temporary file beside and a rename. What is not known is left out, and the
probe's success is 0 then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engramdax.errors import EngramdaxError
from engramdax.files import replace_file
from engramdax.health.finding import EXIT_CODES, State

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from engramdax.health.report import PoolSeen, Report

    Family = tuple[str, str, tuple[str, ...], Sequence[tuple[tuple[str, ...], float]]]
    """Name without prefix, help, labels, and samples: values of the labels and the figure."""

FILE_MODE: Final = 0o644
"""node_exporter is a user of its own."""

FIGURES: Final = {
    "device.size": ("device_size_bytes", "Bytes of the device under the pool"),
    "device.align": ("device_align_bytes", "Bytes of the pages that the device is mapped in"),
    "pool.superblock": ("pool_superblock_good_copies", "Copies of the superblock that are as they should be"),
    "pool.directory": ("pool_directory_slot_generation", "Generation that a slot of the directory holds"),
    "pool.readers": ("pool_readers", "Processes of this host that have the pool open or mapped"),
    "pool.old_generation": ("pool_held_bytes", "Bytes of removed tables that a process still holds"),
    "pool.bandwidth": ("pool_gather_bytes_per_second", "Bytes per second of a gather of some thousand rows"),
    "pool.latency": ("pool_gather_latency_seconds", "Seconds of a gather of one row"),
    "table.bytes": ("table_bad_blocks", "Blocks of a table that differ from what was published"),
    "memdev.temperature": ("memdev_temperature_celsius", "Temperature of a memory device"),
    "memdev.life_used": ("memdev_life_used_ratio", "Share of a memory device's life that is used"),
    "memdev.corrected": ("memdev_corrected_errors", "Errors that a memory device corrected"),
    "memdev.poison": ("memdev_poison_records", "Records in a memory device's poison list"),
    "memdev.events": ("memdev_events", "Events that a memory device reported"),
    "nvdimm.bad_blocks": ("nvdimm_bad_ranges", "Ranges of an nvdimm region that the kernel knows to be bad"),
    "pcie.link": ("pcie_link_bytes_per_second", "What a memory device's link carries in one direction"),
    "pcie.errors": ("pcie_errors", "AER errors of a memory device and the ports above it since they came up"),
    "host.numa": ("host_numa_distance", "Distance of the pool's memory from the CPUs of the check"),
    "host.pages": ("pool_page_bytes", "Bytes of the pages that map the pool"),
    "host.memlock": ("host_memlock_limit_bytes", "Bytes that a process may lock"),
}
"""Metric and help by the probe whose figure it is."""


def write_metrics(report: Report, path: Path) -> None:
    """Write the file; BackingError where that fails, EngramdaxError where prometheus-client is not installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415
    except ImportError:
        raise EngramdaxError(
            "the Python package prometheus-client is not installed", remedy="pip install 'engramdax[metrics]'"
        ) from None

    class Collector:
        def collect(self) -> Iterator[Any]:
            for name, help_, labels, samples in families(report):
                family = GaugeMetricFamily(f"engramdax_{name}", help_, labels=labels)
                for values, figure in samples:
                    family.add_metric(values, figure)
                yield family

    registry = CollectorRegistry()
    registry.register(Collector())
    text = generate_latest(registry)
    replace_file(path, lambda file: file.write(text), mode=FILE_MODE, remedy="give another --prometheus")


def families(report: Report) -> Iterator[Family]:
    """Give all metrics of a report."""
    code = float(EXIT_CODES[report.state])
    yield "health_state", "0 ok, 1 warning, 2 critical, 3 unknown: what `engramdax health` ends with", (), [((), code)]
    yield (
        "health_last_run_timestamp_seconds",
        "When the report was made, in seconds since 1970",
        (),
        [((), report.time)],
    )
    versions = [((name, version), 1.0) for name, version in report.versions.items()]
    yield "version_info", "Versions of engramdax, the kernel and tools", ("component", "version"), versions
    labels = ("probe", "object")
    found = [((f.probe, f.object), f.state) for f in report.findings]
    # Of several findings of one thing, such as lines of a poison list, the worst counts.
    states: dict[tuple[str, str], State] = {}
    for key, state in found:
        states[key] = max(states.get(key, State.OK), state, key=list(State).index)
    success = [(key, 0.0 if state is State.UNKNOWN else 1.0) for key, state in states.items()]
    yield "probe_success", "1 where a probe got an answer, 0 where it could not ask", labels, success
    known = [(key, float(EXIT_CODES[state])) for key, state in states.items() if state is not State.UNKNOWN]
    yield "probe_state", "0 ok, 1 warning, 2 critical; left out where it is not known", labels, known
    for probe, (name, help_) in FIGURES.items():
        figures = {f.object: f.figure for f in report.findings if f.probe == probe and f.figure is not None}
        if figures:
            yield name, help_, ("object",), [((object_,), float(figure)) for object_, figure in figures.items()]
    if report.pool is not None:
        yield from _pool(report.pool)


def _pool(pool: PoolSeen) -> Iterator[Family]:
    labels = ("pool", "uuid")
    key = (pool.name, pool.uuid)
    figures: Iterable[tuple[str, str, float | None]] = (
        ("pool_size_bytes", "Bytes of the pool", pool.size),
        ("pool_free_bytes", "Bytes of the pool that no table takes", pool.free),
        ("pool_generation", "Generation of the directory; it grows with each publication", pool.generation),
        ("pool_epoch", "Epoch of the directory; it grows with each change of the owner", pool.epoch),
        ("pool_tables", "Published tables", len(pool.tables) if pool.generation is not None else None),
    )
    for name, help_, figure in figures:
        if figure is not None:
            yield name, help_, labels, [(key, float(figure))]
    if pool.tables:
        tables = [((pool.name, t.name), t) for t in pool.tables]
        yield "table_bytes", "Bytes of a table's rows", ("pool", "table"), [(k, float(t.bytes)) for k, t in tables]
        yield "table_rows", "Rows of a table", ("pool", "table"), [(k, float(t.rows)) for k, t in tables]
        verified = [(k, t.verified.time) for k, t in tables if t.verified is not None and not t.verified.problem]
        if verified:
            help_ = "When a table was last verified on this host, in seconds since 1970"
            yield "table_verified_timestamp_seconds", help_, ("pool", "table"), verified
