# SPDX-License-Identifier: Apache-2.0
"""What the TARGET of provisioning means: a part of the tree, by any of the names that it goes by."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from engramdax.devices.tree import CxlRegion, DaxDevice, Memdev, Namespace, NdRegion, Tree
from engramdax.errors import BackingError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Sequence

Place: TypeAlias = DaxDevice | Namespace | NdRegion | CxlRegion | tuple[Memdev, ...]
"""Where a pool can go: memdevs are those of a region to be made, in the order of its interleave."""

_DAX: Final = re.compile(r"dax[0-9]+\.[0-9]+")
_NAMESPACE: Final = re.compile(r"namespace[0-9]+\.[0-9]+")
_REGION: Final = re.compile(r"region[0-9]+")
_MEMDEV: Final = re.compile(r"mem[0-9]+|0x[0-9a-fA-F]{1,16}|[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]")
"""A name of this host, a serial, or the PCI address of one whose serial says nothing."""


def find_place(text: str, tree: Tree) -> Place | None:
    """Give what `text` names; None for a path that is none of a dax device.

    BackingError where no such thing is there, ParameterError where `text` names no kind of thing.
    """
    if "/" in text:
        return _at_path(Path(text), tree)
    parts = text.split(",")
    if all(_MEMDEV.fullmatch(part) for part in parts):
        memdevs = tuple(find_memdev(part, tree) for part in parts)
        if len(set(memdevs)) < len(memdevs):
            raise ParameterError(f"{text} names a memdev twice", remedy="name each once")
        return memdevs
    found: DaxDevice | Namespace | NdRegion | CxlRegion | None
    if _DAX.fullmatch(text):
        found, there = tree.dax(text), [d.name for d in tree.dax_devices]
    elif _NAMESPACE.fullmatch(text):
        found, there = tree.namespace(text), [n.name for n in tree.namespaces if not n.seed]
    elif _REGION.fullmatch(text):
        # Both kinds share one range of numbers, and a CXL pmem region has one of each with the same.
        found = tree.nd_region(text) or tree.cxl_region(text)
        there = sorted({*(r.name for r in tree.nd_regions), *(r.name for r in tree.cxl_regions)})
    else:
        raise ParameterError(
            f"{text!r} is no device, namespace, region or memdev",
            remedy="name one as daxX.Y, namespaceX.Y, regionN, memN or by a memdev's serial (0x...)",
        )
    if found is None:
        raise BackingError(f"there is no {text} on this host", remedy=_listed(there))
    return found


def find_memdev(text: str, tree: Tree) -> Memdev:
    """Give the memdev with this name, serial or PCI address."""
    if text.startswith("0x"):
        matches = [m for m in tree.memdevs if m.serial == int(text, 16)]
        if len(matches) > 1:
            raise ParameterError(
                f"{len(matches)} memdevs have the serial {text}: {', '.join(m.name for m in matches)}",
                remedy="name one by its PCI address: " + ", ".join(m.parent for m in matches),
            )
    else:
        matches = [m for m in tree.memdevs if text in (m.name, m.parent)]
    if not matches:
        raise BackingError(f"there is no memdev {text} on this host", remedy=_listed([_named(m) for m in tree.memdevs]))
    return matches[0]


def lasting_name(memdev: Memdev, tree: Tree) -> str:
    """Give what names a memdev over boots, and on other hosts: its serial where that is one, else its PCI address."""
    unique = memdev.serial and tree.memdev(memdev.serial) is not None
    return f"{memdev.serial:#x}" if unique else memdev.parent


def place_name(place: Place) -> str:
    """Give the name that messages use."""
    return ",".join(m.name for m in place) if isinstance(place, tuple) else place.name


def _at_path(path: Path, tree: Tree) -> DaxDevice | None:
    try:
        device = path.stat().st_rdev
    except OSError:
        return tree.dax(path)
    return tree.dax_by_number(device) if device else None


def _named(memdev: Memdev) -> str:
    return memdev.name if memdev.serial is None else f"{memdev.name} ({memdev.serial:#x})"


def _listed(names: Sequence[str]) -> str:
    return (
        f"there is {', '.join(names[:12])}" if names else "there is none of that kind; look with `engramdax discover`"
    )
