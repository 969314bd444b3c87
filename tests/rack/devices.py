# SPDX-License-Identifier: Apache-2.0
"""The pools of a rack as dax devices of a host, with the field's own tools."""

from __future__ import annotations

from typing import Final

from tools.rack.guest import Guest
from tools.rack.pools import DEFAULT, Kind, Pool
from tools.rack.rack import Rack

POOLS: Final = tuple(pool.name for pool in DEFAULT)

REGION_UUID: Final = "5f7a3c70-66c4-4a3e-9d53-6c1f1f0e7c11"
"""Of the CXL pmem region: a host that makes it with the same uuid finds the namespaces in its labels."""

# Numbers of memdevs, regions and dax devices differ between hosts and boots. Where a device hangs does not.
PLACES: Final = {
    Kind.NVDIMM: "*/ACPI0012:*/ndbus*",
    Kind.HMEM: "*/platform/hmem.*",
    Kind.CXL_RAM: "*/decoder0.0/region*",
    Kind.CXL_PMEM: "*/nvdimm-bridge*",
}

FIND: Final = """
for d in /sys/bus/dax/devices/dax[0-9]*; do
    [ -e $d ] || continue
    case $(realpath $d) in {place}) basename $d ;; esac
done
"""

# A namespace that another host made is seen by a host that looks at the media again.
JOIN: Final = {
    Kind.NVDIMM: "ndctl disable-namespace namespace0.0; ndctl enable-namespace namespace0.0",
    Kind.HMEM: "",
    Kind.CXL_RAM: "cxl create-region -t ram -d decoder0.0 -m $memdev",
    Kind.CXL_PMEM: "cxl disable-memdev -f $memdev; cxl enable-memdev $memdev; "
    f"cxl create-region -t pmem -d decoder0.0 -m $memdev -U {REGION_UUID}",
}

# -M mem: with the default, each host's kernel keeps its page structures in the shared pool.
CREATE: Final = {
    Kind.NVDIMM: "ndctl create-namespace -m devdax -M mem -e namespace0.0 -f",
    Kind.CXL_PMEM: "ndctl create-namespace -m devdax -M mem "
    "-r $(basename $(ls -d /sys/bus/cxl/devices/nvdimm-bridge*/ndbus*/region*))",
}

MEMDEV: Final = "memdev=$(basename $(dirname $(grep -lx {serial:#x} /sys/bus/cxl/devices/mem*/serial))); "


def attach(rack: Rack, host: Guest, name: str) -> str:
    """Make a pool a devdax device of this host that can be opened, if it is none yet; gives its path."""
    pool = rack.pools[name]
    found = find(host, pool)
    if found is None:
        memdev = MEMDEV.format(serial=pool.serial) if pool.kind.is_cxl else ""
        for script in (JOIN, CREATE):
            if found is None and pool.kind in script:
                host.run(memdev + script[pool.kind])
                found = find(host, pool)
    assert found is not None, f"{name} is no dax device of {host.name}"
    # Without kmem, a device of volatile memory is there, but disabled: open gives ENXIO.
    host.run(f"[ -e /sys/bus/dax/devices/{found}/driver ] || daxctl reconfigure-device -m devdax {found}")
    return f"/dev/{found}"


def find(host: Guest, pool: Pool) -> str | None:
    """Give the name of a pool's dax device, None where the host has none."""
    return host.run(FIND.format(place=PLACES[pool.kind])).stdout.strip() or None
