# SPDX-License-Identifier: Apache-2.0
"""How near a pool's memory is, in what pages, and whether a GPU's driver may pin it."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax import hugepages
from engramdax.backing import Kind
from engramdax.errors import EngramdaxError
from engramdax.health.finding import Finding, ok, unknown, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.tree import DaxDevice
    from engramdax.health.subject import Subject
    from engramdax.pool.pool import Pool

HUGE: Final = 2 << 20
GPU_NODE: Final = Path("/dev/nvidiactl")


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at NUMA, pages and limits."""
    if subject.device is not None:
        yield _distance(subject.device, subject.sources.sysfs / "devices" / "system" / "node")
    if subject.pool is not None:
        yield _pages(subject.pool)
    if subject.superblock is not None:
        yield _memlock(subject.superblock.value.size)


def _distance(device: DaxDevice, nodes: Path) -> Finding:
    node = device.numa_node
    if node is None:
        return unknown("host.numa", "the kernel does not tell which NUMA node the device is near")
    try:
        distances = [int(word) for word in (nodes / f"node{node}" / "distance").read_text().split()]
        if not all(0 < distance < 256 for distance in distances):
            raise ValueError(distances)
    except (OSError, ValueError):
        return unknown("host.numa", f"near node {node}, whose distances the kernel does not tell")
    here = {n for n in range(len(distances)) if _runs_on(nodes / f"node{n}")}
    if not here:
        return unknown("host.numa", f"near node {node}; which nodes this process runs on is not known")
    near = min(distances[n] for n in here)
    text = f"near node {node}, at distance {near} from this process's CPUs"
    return ok("host.numa", text, figure=near)


def _runs_on(node: Path) -> bool:
    """Tell whether this process may run on a CPU of the node."""
    cpus = os.sched_getaffinity(0)
    try:
        parts = [part.partition("-") for part in (node / "cpulist").read_text().strip().split(",")]
        ranges = [(int(first), int(last or first)) for first, _, last in parts]
    except (OSError, ValueError):
        return False
    return any(first <= cpu <= last for first, last in ranges for cpu in cpus)


def _pages(pool: Pool) -> Finding:
    page, kind = pool.page_bytes(), pool.backing.kind
    text = f"{page >> 10} KiB" if page < HUGE else f"{page >> 20} MiB"
    if kind is not Kind.HUGETLBFS:
        slow = "; gathers take about twice as long as with 2 MiB" if page < HUGE else ""
        return ok("host.pages", f"mapped in pages of {text}{slow}", figure=page, unit="bytes")
    try:
        free = hugepages.available(page)
    except (EngramdaxError, OSError, ValueError) as e:
        return unknown("host.pages", f"huge pages of {text}; the kernel does not tell its reserve: {e}")
    found = f"huge pages of {text}, {free} more are free"
    if free < 0:
        return warning("host.pages", f"{found}: more are promised than there are", figure=page, unit="bytes")
    return ok("host.pages", found, figure=page, unit="bytes")


def _memlock(size: int) -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if limit == resource.RLIM_INFINITY:
        return ok("host.memlock", "no limit on locked memory")
    text = f"{limit} bytes may be locked, the pool has {size}"
    if limit < size and GPU_NODE.exists():
        remedy = "LimitMEMLOCK=infinity in the unit, or memlock in /etc/security/limits.conf, if pinning fails"
        return warning("host.memlock", text, figure=limit, unit="bytes", remedy=remedy)
    return ok("host.memlock", text, figure=limit, unit="bytes")
