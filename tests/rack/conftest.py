# SPDX-License-Identifier: Apache-2.0
"""One rack for all tests that need one: it takes seconds to boot, so each test leaves it as it found it.

A module that cannot switches the hosts off that it has spoiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from media import as_new
from pool_of_two import PoolOfTwo
from xdist.scheduler import LoadFileScheduling

from tools.rack.errors import UnavailableError
from tools.rack.prefix import Prefix, set_up
from tools.rack.rack import Rack

OF_A_POOL = ("test_killed_guests", "test_owners_and_readers", "test_pool_soak")
"""One worker has all of them: making hosts ready that share a pool takes half a minute."""

LONGEST_FIRST = (
    "test_provisioning",
    "test_health",
    *OF_A_POOL,
    "test_discovery",
    "test_refusals",
    "test_interleave",
    "test_rack",
    "test_udev",
)
"""So that two workers, which take a file at a time, have done at about the same time. The first two want a new rack."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put them in this order."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


class Scheduling(LoadFileScheduling):
    """Gives workers files, and those of a pool as one."""

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return "of a pool" if Path(scope).stem in OF_A_POOL else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Have tests distributed so."""
    return Scheduling(config, log)


@pytest.fixture(scope="session")
def prefix() -> Prefix:
    """Give the programs of a rack, downloaded where they are missing."""
    try:
        return set_up()
    except UnavailableError as e:
        pytest.skip(f"no virtual rack here: {e}")


@pytest.fixture(scope="session")
def _rack(prefix: Prefix) -> Iterator[Rack]:
    with Rack(prefix) as rack:
        yield rack


@pytest.fixture(scope="session")
def _modules() -> set[str]:
    """Give the names of those that have had the rack."""
    return set()


@pytest.fixture(scope="module")
def rack(_rack: Rack, _modules: set[str], request: pytest.FixtureRequest) -> Rack:
    """Give two hosts that are up and share one pool of each kind."""
    _modules.add(request.module.__name__)
    _rack.boot(*(host for host in _rack.hosts if not host.alive))
    return _rack


@pytest.fixture(scope="module")
def new_rack(_rack: Rack, _modules: set[str], request: pytest.FixtureRequest) -> Rack:
    """Give the same, with media, labels and disks as they were at first."""
    if _modules - {request.module.__name__}:
        as_new(_rack)
    _modules.add(request.module.__name__)
    return _rack


@pytest.fixture(scope="session")
def _pool_of_two(_rack: Rack) -> PoolOfTwo:
    return PoolOfTwo(_rack)


@pytest.fixture(scope="module")
def pool(rack: Rack, _pool_of_two: PoolOfTwo) -> PoolOfTwo:
    """Give the hosts' pool in CXL memory, with no table in it. It stays for the next module, and is in nobody's way."""
    _pool_of_two.set_up()
    return _pool_of_two
