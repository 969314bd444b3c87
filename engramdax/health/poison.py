# SPDX-License-Identifier: Apache-2.0
"""Memory that the devices or the kernel know to be bad, and the tables and rows that lie on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from engramdax.format.geometry import LINE, Extent
from engramdax.health import cxl
from engramdax.health.finding import Finding, critical, ok, unknown, warning
from engramdax.health.memdevs import object_name
from engramdax.health.places import offset_of, uses

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.devices.tree import DaxDevice, Memdev, NdRegion
    from engramdax.health.cxl import Listing
    from engramdax.health.subject import Subject

SECTOR: Final = 512
"""Of the kernel's lists of bad blocks."""

NAMED: Final = 16
"""Bad places of one device that are named one by one."""

REMEDY: Final = "load the tables named again into other space; have the device looked after"


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at the poison lists of the memdevs behind the pool, and the kernel's bad blocks of its nvdimm region."""
    device = subject.device
    if device is None:
        return
    if device.memdevs:
        listing = cxl.listing(cxl.MEDIA_ERRORS, device.memdevs) if subject.root else cxl.Listing()
        for memdev in device.memdevs:
            yield from _memdev(subject, device, memdev, listing)
    if device.namespace is not None and device.namespace.region is not None:
        yield from _bad_blocks(subject, device, device.namespace.region)


def _memdev(subject: Subject, device: DaxDevice, memdev: Memdev, listing: Listing) -> Iterator[Finding]:
    name = object_name(memdev)
    if not subject.root:
        yield unknown("memdev.poison", "only root may ask for its poison list", object=name, remedy="run as root")
        return
    said = listing.of(memdev)
    if said is None:
        why = listing.problem or f"`{' '.join(cxl.MEDIA_ERRORS)}` does not name {memdev.name}"
        yield unknown("memdev.poison", why, object=name, remedy=listing.remedy)
        return
    errors = said.get("media_errors")
    if errors is None:
        # No list is what a device without poison gives, and one that was not asked, too.
        able = (memdev.path / "trigger_poison_list").exists()
        if able and not listing.said:
            yield ok("memdev.poison", "its poison list is empty", object=name, figure=0)
        else:
            why = (
                "it keeps no poison list that the kernel could ask for"
                if not able
                else cxl.excerpt(listing.said.splitlines()[-1])
            )
            yield unknown("memdev.poison", why, object=name)
        return
    listed = [_place(error) for error in errors] if isinstance(errors, list) else []
    places = [place for place in listed if place is not None]
    if not places or len(places) != len(listed):
        yield unknown("memdev.poison", f"its poison list makes no sense: {cxl.excerpt(errors)}", object=name)
        return
    for dpa, length, source in places[:NAMED]:
        at = offset_of(device, memdev, dpa)
        text = f"{length} bytes at {dpa:#x} of {memdev.name} ({source.lower()})"
        yield _bad(subject, "memdev.poison", name, text, where=_extent(at, length), count=len(places))
    if len(places) > NAMED:
        yield critical("memdev.poison", f"{len(places) - NAMED} more places", object=name, remedy=REMEDY)


def _place(value: Any) -> tuple[int, int, str] | None:
    if not isinstance(value, dict):
        return None
    dpa, length = cxl.number(value.get("offset", value.get("dpa"))), cxl.number(value.get("length"))
    if dpa is None or not length:
        return None
    return dpa, length, cxl.excerpt(value.get("source", "unknown source"))


def _extent(at: int | None, length: int) -> Extent | None:
    """Give the whole lines that are concerned."""
    if at is None:
        return None
    begin = at // LINE * LINE
    return Extent(begin, -(-(at + length - begin) // LINE) * LINE)


def _bad(subject: Subject, probe_name: str, name: str, text: str, *, where: Extent | None, count: int) -> Finding:
    if where is None or subject.superblock is None:
        why = "outside of this pool" if where is None else "the pool there cannot be read"
        return warning(probe_name, f"{text}: {why}", object=name, figure=count, remedy="have the device looked after")
    superblock = subject.superblock.value
    directory = subject.directory.value if subject.directory else None
    found = uses(superblock.geometry, directory, where)
    text = f"{text}: {', '.join(use.what for use in found) or 'the directory cannot say of what'}"
    if directory is None or any(use.needed for use in found):
        return critical(probe_name, text, object=name, figure=count, remedy=REMEDY)
    return warning(probe_name, text, object=name, figure=count, remedy="have the device looked after")


def _bad_blocks(subject: Subject, device: DaxDevice, region: NdRegion) -> Iterator[Finding]:
    """Look at the kernel's list of an nvdimm region: lines of first sector and count."""
    path = region.path / "badblocks"
    try:
        lines = [line.split() for line in path.read_text().splitlines() if line.strip()]
        ranges = [(int(first) * SECTOR, int(count) * SECTOR) for first, count in lines]
        if not all(0 <= first < 1 << 63 and 0 < length < 1 << 63 for first, length in ranges):
            raise ValueError(ranges)
    except (OSError, ValueError) as e:
        why = e.strerror if isinstance(e, OSError) else "it makes no sense"
        yield unknown("nvdimm.bad_blocks", f"{path}: {why}", object=region.name)
        return
    if not ranges:
        yield ok("nvdimm.bad_blocks", f"none in {region.name}", object=region.name, figure=0)
    for first, length in ranges[:NAMED]:
        at = None
        if device.resource is not None and region.resource is not None:
            at = first - (device.resource - region.resource)
            at = at if 0 <= at < (device.size or 0) else None
        text = f"{length} bytes at {first:#x} of {region.name}"
        yield _bad(subject, "nvdimm.bad_blocks", region.name, text, where=_extent(at, length), count=len(ranges))
