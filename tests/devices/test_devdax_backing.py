# SPDX-License-Identifier: Apache-2.0
"""What a pool's backing believes of a devdax device. /dev/null stands in for its node, sysfs is written by hand."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trees import MIB, Sysfs

from engramdax.backing import Kind, inspect
from engramdax.errors import BackingError, RefusedError

NODE = Path("/dev/null")


def device(sysfs: Sysfs, driver: str = "device_dax", **values: Any) -> None:
    place = sysfs.dax("dax0.0", driver=driver, dev="1:3", **values)
    (place / "subsystem").symlink_to(os.path.relpath(sysfs.root / "bus/dax", place))
    numbers = sysfs.root / "dev/char"
    numbers.mkdir(parents=True)
    (numbers / "1:3").symlink_to(os.path.relpath(place, numbers))


def test_size_is_rounded_down_to_whole_pages(sysfs: Sysfs) -> None:
    device(sysfs, size=33 * MIB)
    found = inspect(NODE, sysfs=sysfs.root)
    assert (found.kind, found.size, found.align) == (Kind.DEVDAX, 32 * MIB, 2 * MIB)


@pytest.mark.parametrize("values", [{"align": 0}, {"align": -1}, {"size": (1 << 64) - 1}, {"size": -4096}])
def test_sentinels_are_no_sizes(sysfs: Sysfs, values: dict[str, int]) -> None:
    device(sysfs, **values)
    with pytest.raises(BackingError, match="sysfs says size"):
        inspect(NODE, sysfs=sysfs.root)


@pytest.mark.parametrize("values", [{"align": None}, {"size": "many"}])
def test_missing_and_senseless_attributes_are_named(sysfs: Sysfs, values: dict[str, Any]) -> None:
    device(sysfs, **values)
    with pytest.raises(BackingError, match="does not tell its size and align"):
        inspect(NODE, sysfs=sysfs.root)


def test_system_ram_is_refused(sysfs: Sysfs) -> None:
    device(sysfs, driver="kmem")
    with pytest.raises(RefusedError, match="online as system RAM"):
        inspect(NODE, sysfs=sysfs.root)
