# SPDX-License-Identifier: Apache-2.0
"""From what sysfs holds to a tree: what each value means, and what belongs to what.

Where a device is in sysfs tells what it is made of: .../decoder0.0/region2/dax_region2/dax2.0. Only persistent CXL
memory goes round by the nvdimm bus, from where a dimm's provider leads back to the memdev.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax.devices.sysfs import Entry, read_entries
from engramdax.devices.tree import (
    Block,
    CxlRegion,
    DaxDevice,
    DaxRegion,
    Decoder,
    Map,
    Memdev,
    Mode,
    Namespace,
    NdRegion,
    Origin,
    Port,
    Target,
    Tree,
    Unread,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

SYSFS: Final = Path("/sys")
DEV: Final = Path("/dev")

UINT64_MAX: Final = (1 << 64) - 1
"""What the kernel writes for a number that it does not know (ULLONG_MAX)."""

_NUMBER: Final = re.compile(rb"0[xX][0-9a-fA-F]{1,16}|[0-9]{1,20}")
_DIGITS: Final = re.compile(r"([0-9]+)")
_MODES: Final = {None: Mode.DISABLED, "device_dax": Mode.DEVDAX, "kmem": Mode.SYSTEM_RAM}
_MAPS: Final = {"ram": Map.MEM, "pmem": Map.DEV}
_CLAIMS: Final = {"dax": "devdax", "memory": "fsdax", "pfn": "fsdax", "safe": "sector", "btt": "sector"}
"""ndctl's word for what the kernel says a namespace's mode or its label's class is."""

_NOT_SET: Final = (errno.ENXIO, errno.ENODEV)
"""What attributes of a seed give, and of a device that goes at this moment."""


def read_tree(sysfs: Path = SYSFS, dev: Path = DEV) -> Tree:
    """Read what a host has: the sysfs mounted or unpacked at `sysfs`, nodes in `dev`.

    Needs no privileges, but addresses (`resource`) are root's to read. Opens no device. Thread-safe.
    BackingError where `sysfs` cannot be read at all.
    """
    return _Reading(read_entries(sysfs), sysfs, dev).tree()


def _number(entry: Entry, name: str) -> int | None:
    value = entry.attributes.get(name)
    if value is None or not _NUMBER.fullmatch(value):
        return None
    number = int(value, 16 if value[1:2] in (b"x", b"X") else 10)
    return number if number < UINT64_MAX else None


def _flag(entry: Entry, name: str) -> bool | None:
    value = _number(entry, name)
    return None if value is None else bool(value)


def _text(entry: Entry, name: str) -> str | None:
    return entry.attributes[name].decode("utf-8", "backslashreplace") or None if name in entry.attributes else None


def _linked(entry: Entry, name: str) -> str | None:
    """Give the last part of where a link leads to."""
    return entry.links[name].rpartition("/")[2] if name in entry.links else None


def _numbers(value: bytes | None) -> tuple[int, int] | None:
    """Read major:minor."""
    major, colon, minor = (value or b"").partition(b":")
    if not (colon and major.isdigit() and minor.isdigit() and len(major) < 10 and len(minor) < 10):
        return None
    device = int(major), int(minor)
    return device if device[0] < 1 << 12 and device[1] < 1 << 20 else None  # as wide as Linux has them


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _natural(entry: Entry) -> list[str | int]:
    return [int(part) if i % 2 else part for i, part in enumerate(_DIGITS.split(entry.name))]


class _Reading:
    """The entries of one moment, and what has been made of them."""

    def __init__(self, entries: list[Entry], sysfs: Path, dev: Path) -> None:
        self._sysfs = str(sysfs)
        self._dev = str(dev)
        self._entries = entries
        self._kinds: dict[tuple[str, str], list[Entry]] = defaultdict(list)
        """By folder, and by name without numbers."""
        self._dax_regions: dict[str, Entry] = {}
        """By the path of what they belong to."""
        self._states: dict[str, list[bytes]] = defaultdict(list)
        """Of memory blocks, by the name of their dax device."""
        device = ""
        for entry in entries:
            if entry.folder == "devices/system/memory":
                self._states[device].append(entry.attributes.get("state", b""))
            elif not entry.folder:
                self._dax_regions[_above(entry.path)] = entry
            elif entry.path:
                kind = entry.name.rstrip("0123456789.")
                self._kinds[entry.folder, kind].append(entry)
                if entry.folder == "bus/dax/devices":
                    device = entry.name

    def _all(self, bus: str, *kinds: str) -> list[Entry]:
        return sorted((e for kind in kinds for e in self._kinds[f"bus/{bus}/devices", kind]), key=_natural)

    def _path(self, path: str) -> Path:
        return Path(f"{self._sysfs}/{path}")

    def tree(self) -> Tree:
        self._memdevs = {e.name: self._memdev(e) for e in self._all("cxl", "mem")}
        ports = self._all("cxl", "root", "port", "endpoint")
        self._ports = {e.path: self._port(e, {p.path for p in ports}) for e in ports}
        self._decoders = {e.name: self._decoder(e) for e in self._all("cxl", "decoder")}
        self._cxl_regions = {e.path: self._cxl_region(e) for e in self._all("cxl", "region")}
        self._dimms = self._find_dimms()
        providers = {e.path: _text(e, "provider") for e in self._all("nd", "ndbus")}
        self._nd_regions = {e.path: self._nd_region(e, providers) for e in self._all("nd", "region")}
        personalities = self._all("nd", "dax", "pfn", "btt")
        holders = {
            e.attributes["namespace"].decode("ascii", "replace"): e
            for e in personalities
            if "namespace" in e.attributes
        }
        self._namespaces = {e.name: self._namespace(e, holders.get(e.name)) for e in self._all("nd", "namespace")}
        self._claims = {e.path: _text(e, "namespace") for e in personalities}
        devices = self._all("dax", "dax")
        # Above each device is its region, whether or not the kernel tells anything else of that.
        below: dict[str, list[Entry]] = defaultdict(list)
        for entry in devices:
            below[_above(entry.path)].append(entry)
        regions = {path: self._dax_region(path, found) for path, found in below.items()}
        return Tree(
            dax_devices=tuple(self._dax_device(e, regions[_above(e.path)]) for e in devices),
            dax_regions=tuple(regions.values()),
            namespaces=tuple(self._namespaces.values()),
            nd_regions=tuple(self._nd_regions.values()),
            memdevs=tuple(self._memdevs.values()),
            cxl_regions=tuple(self._cxl_regions.values()),
            decoders=tuple(self._decoders.values()),
            ports=tuple(self._ports.values()),
            dax_drivers=tuple(
                sorted(d for e in self._entries if e.folder == "bus" for d in e.listings.get("drivers", ()))
            ),
            unread=tuple(self._unread()),
        )

    # The CXL tree.

    def _memdev(self, entry: Entry) -> Memdev:
        return Memdev(
            name=entry.name,
            path=self._path(entry.path),
            serial=_serial(entry),
            ram_size=_number(entry, "ram/size"),
            pmem_size=_number(entry, "pmem/size"),
            numa_node=_number(entry, "numa_node"),
            firmware=_text(entry, "firmware_version"),
            driver=_linked(entry, "driver"),
            parent=_above(entry.path).rpartition("/")[2],
        )

    def _port(self, entry: Entry, ports: set[str]) -> Port:
        above = _above(entry.path)
        return Port(
            name=entry.name,
            path=self._path(entry.path),
            kind=entry.name.rstrip("0123456789"),
            parent=above.rpartition("/")[2] if above in ports else None,
            uport=_linked(entry, "uport"),
            decoders_committed=_number(entry, "decoders_committed"),
        )

    def _decoder(self, entry: Entry) -> Decoder:
        port = self._ports.get(_above(entry.path))
        return Decoder(
            name=entry.name,
            path=self._path(entry.path),
            kind=(_text(entry, "devtype") or "").removeprefix("cxl_decoder_"),
            port=_above(entry.path).rpartition("/")[2],
            memdev=port.uport if port is not None and port.uport in self._memdevs else None,
            start=_number(entry, "start"),
            size=_number(entry, "size"),
            locked=_flag(entry, "locked"),
            ways=_number(entry, "interleave_ways"),
            granularity=_number(entry, "interleave_granularity"),
            region=_text(entry, "region"),
            mode=_text(entry, "mode"),
            dpa_start=_number(entry, "dpa_resource"),
            dpa_size=_number(entry, "dpa_size"),
            capabilities=tuple(c for c in ("ram", "pmem", "type2", "type3") if _flag(entry, f"cap_{c}")),
        )

    def _cxl_region(self, entry: Entry) -> CxlRegion:
        targets: list[Target] = []
        while (name := f"target{len(targets)}") in entry.attributes:
            decoder = self._decoders.get(_text(entry, name) or "")
            targets.append(Target(decoder, self._memdevs.get(decoder.memdev or "") if decoder else None))
        return CxlRegion(
            name=entry.name,
            path=self._path(entry.path),
            mode=_text(entry, "mode"),
            uuid=_text(entry, "uuid"),
            size=_number(entry, "size"),
            resource=_number(entry, "resource"),
            ways=_number(entry, "interleave_ways"),
            granularity=_number(entry, "interleave_granularity"),
            targets=tuple(targets),
            committed=_flag(entry, "commit"),
            driver=_linked(entry, "driver"),
            decoder=_above(entry.path).rpartition("/")[2],
        )

    # The nvdimm bus.

    def _find_dimms(self) -> dict[str, Memdev]:
        """Give the memdev behind each nmemX that has one: its provider pmemY is a child of it."""
        owners = {e.name: _above(e.path).rpartition("/")[2] for e in self._all("cxl", "pmem")}
        found = {}
        for entry in self._all("nd", "nmem"):
            if memdev := self._memdevs.get(owners.get(_text(entry, "cxl/provider") or "", "")):
                found[entry.name] = memdev
        return found

    def _nd_region(self, entry: Entry, providers: dict[str, str | None]) -> NdRegion:
        dimms: list[str] = []
        while (name := f"mapping{len(dimms)}") in entry.attributes:
            dimms.append((_text(entry, name) or "").partition(",")[0])
        memdevs = tuple(self._dimms[d] for d in dimms if d in self._dimms)
        resource, size = _number(entry, "resource"), _number(entry, "size")
        return NdRegion(
            name=entry.name,
            path=self._path(entry.path),
            size=size,
            available=_number(entry, "available_size"),
            resource=resource,
            align=_number(entry, "align") or None,
            numa_node=_number(entry, "numa_node"),
            read_only=_flag(entry, "read_only"),
            dimms=tuple(dimms),
            provider=providers.get(_above(entry.path)),
            driver=_linked(entry, "driver"),
            cxl_region=self._pmem_region(memdevs, resource, size),
            memdevs=memdevs,
        )

    def _pmem_region(self, memdevs: tuple[Memdev, ...], resource: int | None, size: int | None) -> CxlRegion | None:
        """Give the CXL region that an nvdimm region is: of the same memdevs, at the same place as far as told."""
        found = [
            r
            for r in self._cxl_regions.values()
            if memdevs and set(r.memdevs) == set(memdevs) and r.mode != "ram" and r.size == size
        ]
        exact = [r for r in found if resource is not None and r.resource == resource]
        return exact[0] if exact else found[0] if len(found) == 1 else None

    def _namespace(self, entry: Entry, holder: Entry | None) -> Namespace:
        claim = _text(entry, "mode")
        if holder is None and claim in (None, "raw"):
            claim = _text(entry, "holder_class")  # disabled: its label still says what it is
        mode = _CLAIMS.get(claim or "", "raw")
        raw_size = _number(entry, "size")
        map_ = None
        if holder is not None:
            map_ = _MAPS.get(_text(holder, "mode") or "")
        elif mode == "fsdax" and _linked(entry, "driver"):
            map_ = Map.MEM  # bound as it is, without an info block that could ask for anything else
        usable = _number(holder, "size") if holder else raw_size
        driver = _linked(holder, "driver") if holder else _linked(entry, "driver")
        return Namespace(
            name=entry.name,
            path=self._path(entry.path),
            mode=mode,
            map=map_,
            size=raw_size if usable is None else usable,
            raw_size=raw_size,
            uuid=(_text(holder, "uuid") if holder else None) or _text(entry, "uuid"),
            enabled=driver is not None,
            align=(_number(holder, "align") if holder else None) or None,
            region=self._nd_regions.get(_above(entry.path)),
            device=holder.name if holder else None,
            blocks=tuple(b for e in (holder, entry) if e is not None for b in _blocks(e)),
            alt_name=_text(entry, "alt_name"),
            numa_node=_number(entry, "numa_node"),
            target_node=_number(entry, "target_node"),
            resource=_number(entry, "resource"),
        )

    # The dax bus.

    def _dax_region(self, path: str, devices: list[Entry]) -> DaxRegion:
        entry = self._dax_regions.get(path)
        number = partial(_number, entry) if entry else lambda _name: None
        namespace = self._namespaces.get(self._claims.get(path) or "")
        size = number("size")
        cxl_region = self._cxl_regions.get(_above(path))
        name = path.rpartition("/")[2]
        if namespace is not None:
            nd = namespace.region
            cxl_region = nd.cxl_region if nd else None
            memdevs = cxl_region.memdevs if cxl_region else nd.memdevs if nd else ()
            cxl = bool(memdevs) or (nd is not None and nd.provider == "CXL")
            origin = Origin.CXL_PMEM if cxl else Origin.NVDIMM
        elif cxl_region is not None:
            origin, memdevs = Origin.CXL_RAM, cxl_region.memdevs
        else:
            origin = Origin.HMEM if name.startswith("hmem.") else Origin.OTHER
            # Firmware made the CXL region and called it reserved: nothing but the address says what is behind.
            cxl_region = self._region_at(_number(devices[0], "resource"))
            memdevs = cxl_region.memdevs if cxl_region else ()
        return DaxRegion(
            path=self._path(path),
            id=number("id"),
            size=size,
            available=number("available_size"),
            align=number("align") or None,
            origin=origin,
            namespace=namespace,
            cxl_region=cxl_region,
            memdevs=memdevs,
        )

    def _region_at(self, address: int | None) -> CxlRegion | None:
        if address is None:
            return None
        for region in self._cxl_regions.values():
            if None not in (region.resource, region.size) and 0 <= address - (region.resource or 0) < (
                region.size or 0
            ):
                return region
        return None

    def _dax_device(self, entry: Entry, region: DaxRegion) -> DaxDevice:
        driver = _linked(entry, "driver")
        device = _numbers(entry.attributes.get("dev"))
        resource = _number(entry, "resource")
        known = driver == "kmem" and resource is not None
        states = self._states.get(entry.name, [])
        node = f"{self._dev}/{entry.name}"
        return DaxDevice(
            name=entry.name,
            path=self._path(entry.path),
            node=Path(node),
            node_exists=_is_node(node, device),
            device=device,
            size=_number(entry, "size"),
            align=_number(entry, "align") or None,
            target_node=_number(entry, "target_node"),
            numa_node=_number(entry, "numa_node"),
            resource=resource,
            driver=driver,
            mode=_MODES.get(driver, Mode.OTHER),
            memory_blocks=len(states) if known else None,
            online_blocks=sum(s == b"online" for s in states) if known else None,
            region=region,
        )

    def _unread(self) -> Iterable[Unread]:
        for entry in self._entries:
            for name, error in entry.errors.items():
                if error not in _NOT_SET:
                    place = "/".join(p for p in (entry.path or f"{entry.folder}/{entry.name}".rstrip("/"), name) if p)
                    yield Unread(self._path(place), os.strerror(error), error in (errno.EACCES, errno.EPERM))


def _serial(entry: Entry) -> int | None:
    """Read all 64 bits: none of them means anything but itself."""
    value = entry.attributes.get("serial")
    if value is None or not _NUMBER.fullmatch(value):
        return None
    serial = int(value, 16 if value[1:2] in (b"x", b"X") else 10)
    return serial if serial <= UINT64_MAX else None


def _blocks(entry: Entry) -> Iterable[Block]:
    for name in entry.listings.get("block", ()):
        device = _numbers(entry.attributes.get(f"block/{name}/dev"))
        yield Block(name, device, tuple(sorted(entry.listings.get(f"block/{name}/holders", ()))))


def _is_node(path: str, device: tuple[int, int] | None) -> bool:
    if device is None:
        return False
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each would cost more than the call
    except OSError:
        return False
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(*device)
