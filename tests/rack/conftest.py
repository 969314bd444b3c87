# SPDX-License-Identifier: Apache-2.0
"""One rack for all tests that need one: it takes seconds to boot, so each test leaves it as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pool_of_two import PoolOfTwo

from tools.rack.errors import UnavailableError
from tools.rack.prefix import Prefix, set_up
from tools.rack.rack import Rack


@pytest.fixture(scope="session")
def prefix() -> Prefix:
    """Give the programs of a rack, downloaded where they are missing."""
    try:
        return set_up()
    except UnavailableError as e:
        pytest.skip(f"no virtual rack here: {e}")


@pytest.fixture(scope="session")
def rack(prefix: Prefix) -> Iterator[Rack]:
    """Give two hosts that are up and share one pool of each kind."""
    with Rack(prefix) as rack:
        yield rack


@pytest.fixture(scope="session")
def _pool_of_two(rack: Rack) -> PoolOfTwo:
    return PoolOfTwo(rack)


@pytest.fixture(scope="module")
def pool(_pool_of_two: PoolOfTwo) -> PoolOfTwo:
    """Give the hosts' pool in CXL memory, with no table in it. It stays for the next module, and is in nobody's way."""
    _pool_of_two.set_up()
    return _pool_of_two
