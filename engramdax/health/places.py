# SPDX-License-Identifier: Apache-2.0
"""From an address of a memory device to what the pool keeps there: tables and rows, or metadata, or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engramdax.format.geometry import SUPERBLOCK_BYTES, Extent

if TYPE_CHECKING:
    from engramdax.devices.tree import CxlRegion, DaxDevice, Memdev
    from engramdax.format.directory import Directory
    from engramdax.format.geometry import Geometry


@dataclass(frozen=True, slots=True)
class Use:
    """What a pool keeps in a range of its bytes."""

    what: str
    needed: bool
    """Whether readers miss it when it cannot be read."""


def uses(geometry: Geometry, directory: Directory | None, where: Extent) -> list[Use]:
    """Say what the pool keeps in the range, by rows where it is a table."""
    found = [
        Use(f"superblock copy at {place}", needed=True)
        for place in geometry.superblocks
        if where.overlaps(Extent(place, SUPERBLOCK_BYTES))
    ]
    for index, place in enumerate(geometry.slots):
        if where.overlaps(Extent(place, geometry.slot_bytes)):
            found.append(Use(f"directory slot {index}", needed=True))
    for table in directory.tables if directory else ():
        rows = Extent(table.extent.offset, table.bytes)
        if where.overlaps(rows):
            begin, end = max(where.offset, rows.offset), min(where.end, rows.end)
            first, last = table.layout.rows_within(table.rows, begin - rows.offset, end - begin)
            which = f"row {first}" if first == last else f"rows {first} to {last}"
            state = "" if table.state == "published" else f" ({table.state})"
            found.append(Use(f"{which} of table {table.name}{state}", needed=True))
        if where.overlaps(table.checksums):
            found.append(Use(f"checksums of table {table.name}", needed=True))
        if table.hot is not None and where.overlaps(table.hot.extent):
            found.append(Use(f"hot list of table {table.name}", needed=True))
    found += [
        Use(f"space of the removed table {retired.name}", needed=False)
        for retired in (directory.retired if directory else ())
        if any(where.overlaps(extent) for extent in retired.extents)
    ]
    if not found and directory is not None:
        found.append(Use("free space", needed=False))
    return found


def offset_of(device: DaxDevice, memdev: Memdev, dpa: int) -> int | None:
    """Give where an address of a memdev lies in a dax device, in bytes; None outside, or where it cannot be told.

    The addresses of an interleave of w ways in grains of g bytes (CXL 3.1, 8.2.4.20.13): grain n of target p is grain
    n * w + p of the region. That holds of interleaves by XOR only within one host bridge, and of them it is the page
    and not the line that is right.
    """
    region = _region(device)
    if region is None:
        return None
    for position, target in enumerate(region.targets):
        decoder = target.decoder
        if target.memdev != memdev or decoder is None or decoder.dpa_start is None or decoder.dpa_size is None:
            continue
        offset = dpa - decoder.dpa_start
        if not 0 <= offset < decoder.dpa_size:
            continue
        ways, grain = region.ways or 1, region.granularity or 0
        if ways > 1:
            if not grain:
                return None
            offset = (offset // grain * ways + position) * grain + offset % grain
        begin = _begin(device, region.resource)
        if begin is None or not begin <= offset < begin + (device.size or 0):
            return None
        return offset - begin
    return None


def _region(device: DaxDevice) -> CxlRegion | None:
    if device.cxl_region is not None or device.namespace is None or device.namespace.region is None:
        return device.cxl_region
    return device.namespace.region.cxl_region


def _begin(device: DaxDevice, region_resource: int | None) -> int | None:
    """Give where the device begins in its region."""
    if device.resource is not None and region_resource is not None:
        return device.resource - region_resource
    # Addresses are root's. A volatile device that is all of its region begins with it.
    region = device.cxl_region
    return 0 if region is not None and device.namespace is None and device.size == region.size else None
