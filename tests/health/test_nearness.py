# SPDX-License-Identifier: Apache-2.0
"""How near a pool's memory is, by what the kernel tells of its NUMA nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from reports import found

from engramdax.health import locality
from engramdax.health.finding import Finding, State
from engramdax.health.subject import Sources, Subject
from tests.devices.trees import Sysfs


def near(sysfs: Sysfs, distances: str, cpus: str) -> Finding:
    """Give what is found of a device near node 0."""
    sysfs.dax("dax0.0", numa_node=0)
    node = sysfs.root / "devices/system/node/node0"
    node.mkdir(parents=True)
    (node / "distance").write_text(f"{distances}\n")
    (node / "cpulist").write_text(f"{cpus}\n")
    tree = sysfs.read()
    return found(locality.probe(Subject(Sources(sysfs=sysfs.root), tree=tree, device=tree.dax("dax0.0"))), "host.numa")


@pytest.fixture
def sysfs(tmp_path: Path) -> Sysfs:
    (tmp_path / "host").mkdir()
    return Sysfs(tmp_path / "host")


def test_distance_from_the_cpus_of_this_process_is_told(sysfs: Sysfs) -> None:
    cpu = min(os.sched_getaffinity(0))
    finding = near(sysfs, "17 20", f"{cpu + 9000},{cpu}-{cpu}")
    assert (finding.state, finding.figure) == (State.OK, 17)


@pytest.mark.parametrize("distances", ["many", "", "0 10", "-1", "9" * 20, "9" * 5000])
def test_distances_that_make_no_sense_are_unknown(sysfs: Sysfs, distances: str) -> None:
    assert near(sysfs, distances, "0-1023").state is State.UNKNOWN


@pytest.mark.parametrize("cpus", ["", "some", "5-", "9" * 5000])
def test_cpus_that_make_no_sense_are_unknown(sysfs: Sysfs, cpus: str) -> None:
    assert near(sysfs, "10", cpus).state is State.UNKNOWN


def test_range_of_cpus_without_end_takes_no_memory(sysfs: Sysfs) -> None:
    assert near(sysfs, "10", "0-99999999999999999").state is State.OK
