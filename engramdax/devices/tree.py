# SPDX-License-Identifier: Apache-2.0
"""What memory devices a host has: dax devices, their regions and namespaces, and the CXL tree behind them.

None means that the kernel does not tell, whatever it writes for that (no attribute, ULLONG_MAX, -1, nothing), or that
this user may not read it: `Tree.unread` names what that concerns. Sizes and addresses are bytes. Names that the host
gives (dax0.0, mem1, region2) are its own and differ from boot to boot; a memdev's serial stays.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Origin(StrEnum):
    """Where the memory of a dax device comes from."""

    CXL_RAM = "cxl-ram"
    CXL_PMEM = "cxl-pmem"
    NVDIMM = "nvdimm"
    HMEM = "hmem"
    """Memory that firmware reserved for a purpose; CXL memory, too, where firmware made its region."""
    OTHER = "other"


class Mode(StrEnum):
    """What a dax device is at the moment, by the driver bound to it."""

    DEVDAX = "devdax"
    SYSTEM_RAM = "system-ram"
    DISABLED = "disabled"
    """No driver: the node may be there, open() gives ENXIO."""
    OTHER = "other"
    """A driver that this engramdax does not know, such as famfs' own."""


class Map(StrEnum):
    """Where the kernel keeps its page structures for a namespace."""

    MEM = "mem"
    DEV = "dev"
    """On the device itself: each host's kernel writes them into what hosts share."""


@dataclass(frozen=True, slots=True)
class Memdev:
    """A CXL type-3 memory device."""

    name: str
    path: Path
    serial: int | None
    """All 64 bits, unsigned. 0 is what devices without one say, so it identifies nothing."""
    ram_size: int | None
    pmem_size: int | None
    numa_node: int | None
    firmware: str | None
    driver: str | None
    """cxl_mem once it can be used."""
    parent: str
    """The device that it is a function of, such as the PCI address."""


@dataclass(frozen=True, slots=True)
class Port:
    """A CXL root, a switch's or host bridge's port, or the endpoint of a memdev."""

    name: str
    path: Path
    kind: str
    """root, port or endpoint."""
    parent: str | None
    """The port above, None for a root."""
    uport: str | None
    """The device whose port it is: an ACPI or PCI device, or for an endpoint the memdev."""
    decoders_committed: int | None


@dataclass(frozen=True, slots=True)
class Decoder:
    """An HDM decoder: of a root (a window that firmware opened), a switch or an endpoint."""

    name: str
    path: Path
    kind: str
    """root, switch or endpoint."""
    port: str
    memdev: str | None
    """Of an endpoint."""
    start: int | None
    size: int | None
    locked: bool | None
    """Firmware forbids to change it until the next reset."""
    ways: int | None
    granularity: int | None
    region: str | None
    mode: str | None
    """Of an endpoint: ram, pmem, mixed, none."""
    dpa_start: int | None
    dpa_size: int | None
    capabilities: tuple[str, ...]
    """Of a root: which of ram, pmem, type2, type3 its window takes."""


@dataclass(frozen=True, slots=True)
class Target:
    """One position of a region's interleave; None where nothing is there or it cannot be told."""

    decoder: Decoder | None
    memdev: Memdev | None


@dataclass(frozen=True, slots=True)
class CxlRegion:
    """Memory of one or several memdevs, interleaved, at one host-physical range."""

    name: str
    path: Path
    mode: str | None
    """ram or pmem; None from kernels that do not tell."""
    uuid: str | None
    """Of pmem regions alone."""
    size: int | None
    resource: int | None
    ways: int | None
    granularity: int | None
    targets: tuple[Target, ...]
    """In the order of the interleave."""
    committed: bool | None
    driver: str | None
    decoder: str
    """The root decoder above it."""

    @property
    def enabled(self) -> bool:
        """Tell whether its memory can be had: committed, and the driver bound."""
        return bool(self.committed) and self.driver is not None

    @property
    def locked(self) -> tuple[Decoder, ...]:
        """Decoders of its targets that cannot be changed before a reset."""
        return tuple(t.decoder for t in self.targets if t.decoder is not None and t.decoder.locked)

    @property
    def memdevs(self) -> tuple[Memdev, ...]:
        """What is behind it, in target order."""
        return tuple(t.memdev for t in self.targets if t.memdev is not None)


@dataclass(frozen=True, slots=True)
class NdRegion:
    """A persistent range of the nvdimm bus, which namespaces are cut from."""

    name: str
    path: Path
    size: int | None
    available: int | None
    resource: int | None
    align: int | None
    numa_node: int | None
    read_only: bool | None
    dimms: tuple[str, ...]
    """nmemX, in the order of the interleave."""
    provider: str | None
    """Of the bus: ACPI.NFIT, CXL, ..."""
    driver: str | None
    cxl_region: CxlRegion | None
    memdevs: tuple[Memdev, ...]
    """Behind the dimms, in their order; none for real nvdimms."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block device of a namespace."""

    name: str
    device: tuple[int, int] | None
    """Major and minor."""
    holders: tuple[str, ...]
    """Block devices made of it (dm, md)."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A part of an NdRegion."""

    name: str
    path: Path
    mode: str
    """devdax, fsdax, sector or raw, as ndctl says."""
    map: Map | None
    size: int | None
    """What is usable: without the info block, and the page structures where they are on the device."""
    raw_size: int | None
    """What it takes of its region; 0 for a seed, from which the next one is made."""
    uuid: str | None
    enabled: bool
    align: int | None
    region: NdRegion | None
    device: str | None
    """The personality bound on it (dax0.0, pfn0.0, btt0.0)."""
    blocks: tuple[Block, ...]
    alt_name: str | None
    numa_node: int | None
    target_node: int | None
    resource: int | None

    @property
    def seed(self) -> bool:
        """Tell whether it is no namespace yet, but the place for the next."""
        return self.raw_size == 0


@dataclass(frozen=True, slots=True)
class DaxRegion:
    """What dax devices are cut from: a CXL region's, hmem's or namespace's whole memory."""

    path: Path
    """Of the device that it belongs to, which is the parent of its dax devices."""
    id: int | None
    size: int | None
    available: int | None
    """None where it cannot be cut: a namespace is one device."""
    align: int | None
    origin: Origin
    namespace: Namespace | None
    cxl_region: CxlRegion | None
    memdevs: tuple[Memdev, ...]

    @property
    def name(self) -> str:
        """What its parent is called: dax_region2, hmem.0, dax0.0."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class DaxDevice:
    """A device-dax instance, daxX.Y."""

    name: str
    path: Path
    node: Path
    """Where its node is or would be."""
    node_exists: bool
    """A character device with this device's numbers is there."""
    device: tuple[int, int] | None
    """Major and minor."""
    size: int | None
    """0 for a seed."""
    align: int | None
    target_node: int | None
    """The NUMA node that it would be as system RAM; 0 is one."""
    numa_node: int | None
    """The NUMA node that is nearest."""
    resource: int | None
    driver: str | None
    mode: Mode
    memory_blocks: int | None
    """Of system RAM: hot-plugged blocks; None where the range is not known."""
    online_blocks: int | None
    region: DaxRegion | None

    @property
    def origin(self) -> Origin:
        """Where its memory comes from."""
        return self.region.origin if self.region else Origin.OTHER

    @property
    def namespace(self) -> Namespace | None:
        """The namespace that it is of, if any."""
        return self.region.namespace if self.region else None

    @property
    def cxl_region(self) -> CxlRegion | None:
        """The CXL region behind it, if any."""
        return self.region.cxl_region if self.region else None

    @property
    def memdevs(self) -> tuple[Memdev, ...]:
        """The CXL memdevs behind it, in target order."""
        return self.region.memdevs if self.region else ()


@dataclass(frozen=True, slots=True)
class Unread:
    """A part of sysfs that could not be read."""

    path: Path
    reason: str
    denied: bool
    """For want of permission: root could."""


@dataclass(frozen=True)
class Tree:
    """All of it at one moment, sorted by name with numbers as numbers. Immutable."""

    dax_devices: tuple[DaxDevice, ...]
    dax_regions: tuple[DaxRegion, ...]
    namespaces: tuple[Namespace, ...]
    nd_regions: tuple[NdRegion, ...]
    memdevs: tuple[Memdev, ...]
    cxl_regions: tuple[CxlRegion, ...]
    decoders: tuple[Decoder, ...]
    ports: tuple[Port, ...]
    dax_drivers: tuple[str, ...]
    """Loaded ones: device_dax, kmem, ..."""
    unread: tuple[Unread, ...]

    def dax(self, name: str | Path) -> DaxDevice | None:
        """Give a dax device by its name (dax0.0) or node (/dev/dax0.0)."""
        text = str(name)
        return (
            self._dax.get(text) if "/" not in text else next((d for d in self.dax_devices if str(d.node) == text), None)
        )

    def dax_by_number(self, device: int) -> DaxDevice | None:
        """Give the dax device that a node with this st_rdev opens, wherever the node is and whatever it is called."""
        return self._numbers.get(device)

    def memdev(self, serial: int) -> Memdev | None:
        """Give the memdev with this serial; None where there is none or more than one, as happens with 0."""
        found = [m for m in self.memdevs if m.serial == serial]
        return found[0] if len(found) == 1 else None

    def memdev_named(self, name: str) -> Memdev | None:
        """Give a memdev by its name on this host."""
        return next((m for m in self.memdevs if m.name == name), None)

    def cxl_region(self, name: str) -> CxlRegion | None:
        """Give a CXL region by its name on this host."""
        return next((r for r in self.cxl_regions if r.name == name), None)

    def cxl_regions_of(self, memdev: Memdev) -> tuple[CxlRegion, ...]:
        """Give the CXL regions that a memdev is a target of."""
        return tuple(r for r in self.cxl_regions if memdev in r.memdevs)

    def namespace(self, name: str) -> Namespace | None:
        """Give a namespace by its name on this host."""
        return next((n for n in self.namespaces if n.name == name), None)

    def nd_region(self, name: str) -> NdRegion | None:
        """Give an nvdimm region by its name on this host; CXL regions share its naming, and are others."""
        return next((r for r in self.nd_regions if r.name == name), None)

    def dax_devices_of(self, part: DaxRegion | Namespace | NdRegion | CxlRegion | Memdev) -> tuple[DaxDevice, ...]:
        """Give the dax devices whose memory comes from this."""
        return tuple(d for d in self.dax_devices if part in _behind(d))

    @cached_property
    def _dax(self) -> dict[str, DaxDevice]:
        return {d.name: d for d in self.dax_devices}

    @cached_property
    def _numbers(self) -> dict[int, DaxDevice]:
        return {os.makedev(*d.device): d for d in self.dax_devices if d.device is not None}


def _behind(device: DaxDevice) -> tuple[object, ...]:
    namespace = device.namespace
    return device.region, namespace, namespace and namespace.region, device.cxl_region, *device.memdevs
