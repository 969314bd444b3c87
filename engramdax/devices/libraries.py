# SPDX-License-Identifier: Apache-2.0
"""libdaxctl, libndctl and libcxl, where a host has them: a second opinion on what sysfs says.

They know /sys and /dev alone, leave devices without a node out and answer with sentinels, so they are no source. Where
they disagree with the tree, one of the two is wrong, and the operator's tools go by the libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import cffi

from engramdax.devices.tree import Map, Mode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from engramdax.devices.tree import DaxDevice, Tree

SONAMES: Final = {"daxctl": "libdaxctl.so.1", "ndctl": "libndctl.so.6", "cxl": "libcxl.so.1"}

UNKNOWN: Final = (1 << 64) - 1

# The functions used, as the installed headers declare them (daxctl/libdaxctl.h, ndctl/libndctl.h, cxl/libcxl.h).
_DECLARATIONS: Final = {
    "daxctl": """
        typedef struct daxctl_ctx daxctl_ctx; typedef struct daxctl_region daxctl_region;
        typedef struct daxctl_dev daxctl_dev;
        int daxctl_new(daxctl_ctx **ctx);
        daxctl_ctx *daxctl_unref(daxctl_ctx *ctx);
        daxctl_region *daxctl_region_get_first(daxctl_ctx *ctx);
        daxctl_region *daxctl_region_get_next(daxctl_region *region);
        daxctl_dev *daxctl_dev_get_first(daxctl_region *region);
        daxctl_dev *daxctl_dev_get_next(daxctl_dev *dev);
        const char *daxctl_dev_get_devname(daxctl_dev *dev);
        unsigned long long daxctl_dev_get_size(daxctl_dev *dev);
        unsigned long daxctl_dev_get_align(daxctl_dev *dev);
        int daxctl_dev_get_target_node(daxctl_dev *dev);
        int daxctl_dev_is_enabled(daxctl_dev *dev);
        void *daxctl_dev_get_memory(daxctl_dev *dev);
    """,
    "ndctl": """
        typedef struct ndctl_ctx ndctl_ctx; typedef struct ndctl_bus ndctl_bus;
        typedef struct ndctl_region ndctl_region;
        typedef struct ndctl_namespace ndctl_namespace; typedef struct ndctl_dax ndctl_dax;
        typedef struct ndctl_pfn ndctl_pfn; typedef struct ndctl_btt ndctl_btt;
        int ndctl_new(ndctl_ctx **ctx);
        ndctl_ctx *ndctl_unref(ndctl_ctx *ctx);
        ndctl_bus *ndctl_bus_get_first(ndctl_ctx *ctx);
        ndctl_bus *ndctl_bus_get_next(ndctl_bus *bus);
        ndctl_region *ndctl_region_get_first(ndctl_bus *bus);
        ndctl_region *ndctl_region_get_next(ndctl_region *region);
        ndctl_namespace *ndctl_namespace_get_first(ndctl_region *region);
        ndctl_namespace *ndctl_namespace_get_next(ndctl_namespace *ndns);
        const char *ndctl_namespace_get_devname(ndctl_namespace *ndns);
        unsigned long long ndctl_namespace_get_size(ndctl_namespace *ndns);
        int ndctl_namespace_is_enabled(ndctl_namespace *ndns);
        int ndctl_namespace_get_mode(ndctl_namespace *ndns);
        ndctl_dax *ndctl_namespace_get_dax(ndctl_namespace *ndns);
        ndctl_pfn *ndctl_namespace_get_pfn(ndctl_namespace *ndns);
        ndctl_btt *ndctl_namespace_get_btt(ndctl_namespace *ndns);
        int ndctl_dax_is_enabled(ndctl_dax *dax);
        int ndctl_pfn_is_enabled(ndctl_pfn *pfn);
        int ndctl_btt_is_enabled(ndctl_btt *btt);
        int ndctl_dax_get_location(ndctl_dax *dax);
        int ndctl_pfn_get_location(ndctl_pfn *pfn);
        unsigned long ndctl_dax_get_align(ndctl_dax *dax);
    """,
    "cxl": """
        typedef struct cxl_ctx cxl_ctx; typedef struct cxl_memdev cxl_memdev; typedef struct cxl_bus cxl_bus;
        typedef struct cxl_port cxl_port; typedef struct cxl_decoder cxl_decoder; typedef struct cxl_region cxl_region;
        int cxl_new(cxl_ctx **ctx);
        cxl_ctx *cxl_unref(cxl_ctx *ctx);
        cxl_memdev *cxl_memdev_get_first(cxl_ctx *ctx);
        cxl_memdev *cxl_memdev_get_next(cxl_memdev *memdev);
        const char *cxl_memdev_get_devname(cxl_memdev *memdev);
        unsigned long long cxl_memdev_get_serial(cxl_memdev *memdev);
        unsigned long long cxl_memdev_get_pmem_size(cxl_memdev *memdev);
        unsigned long long cxl_memdev_get_ram_size(cxl_memdev *memdev);
        cxl_bus *cxl_bus_get_first(cxl_ctx *ctx);
        cxl_bus *cxl_bus_get_next(cxl_bus *bus);
        cxl_port *cxl_bus_get_port(cxl_bus *bus);
        cxl_decoder *cxl_decoder_get_first(cxl_port *port);
        cxl_decoder *cxl_decoder_get_next(cxl_decoder *decoder);
        cxl_region *cxl_region_get_first(cxl_decoder *decoder);
        cxl_region *cxl_region_get_next(cxl_region *region);
        const char *cxl_region_get_devname(cxl_region *region);
        unsigned long long cxl_region_get_size(cxl_region *region);
        int cxl_region_is_enabled(cxl_region *region);
        unsigned int cxl_region_get_interleave_ways(cxl_region *region);
    """,
}

_NAMESPACE_MODES: Final = ("fsdax", "sector", "raw", "devdax")
_LOCATIONS: Final = {1: Map.MEM, 2: Map.DEV}

Said = dict[str, dict[str, Any]]
"""Values by attribute, by name of the device."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the libraries say to a tree."""

    present: tuple[str, ...]
    """Those that could be loaded: daxctl, ndctl, cxl."""
    disagreements: tuple[str, ...]
    """One line each: device, attribute, and what either says."""


def cross_check(tree: Tree) -> Comparison:
    """Compare a tree of this host's /sys with what the libraries say that are here; absent ones cost a failed dlopen.

    A device that comes or goes between the reading of the tree and this is a disagreement, too.
    """
    present: list[str] = []
    found: list[str] = []
    for name, (say, know) in _SIDES.items():
        opened = _open(name)
        if opened is None:
            continue
        present.append(name)
        said = say(*opened)
        found += _compare(f"lib{name}", said, know(tree)) if said is not None else [f"lib{name} cannot be used"]
    return Comparison(tuple(present), tuple(found))


def _compare(library: str, said: Said, known: Said) -> Iterator[str]:
    for name in sorted(said.keys() | known.keys()):
        if name not in said:
            yield f"{name}: {library} does not see it"
        elif name not in known:
            yield f"{name}: {library} sees it, sysfs does not"
        else:
            for attribute, value in said[name].items():
                if value != known[name][attribute]:
                    yield f"{name}: {library} says {attribute} {value}, sysfs {known[name][attribute]}"


@cache
def _open(name: str) -> tuple[cffi.FFI, Any] | None:
    ffi = cffi.FFI()
    try:
        library = ffi.dlopen(SONAMES[name])
    except OSError:
        return None
    ffi.cdef(_DECLARATIONS[name])
    return ffi, library


def _number(value: int) -> int | None:
    return None if value == UNKNOWN else int(value)


def _each(ffi: cffi.FFI, first: Any, following: Callable[[Any], Any]) -> Iterator[Any]:
    while first != ffi.NULL:
        yield first
        first = following(first)


def _name(ffi: cffi.FFI, text: Any) -> str:
    raw = ffi.string(text)
    return raw.decode(errors="backslashreplace") if isinstance(raw, bytes) else raw


def _dax_said(ffi: cffi.FFI, lib: Any) -> Said | None:
    context: Any = ffi.new("daxctl_ctx **")
    if lib.daxctl_new(context):
        return None
    try:
        return dict(_dax_devices(ffi, lib, context[0]))
    finally:
        lib.daxctl_unref(context[0])


def _dax_devices(ffi: cffi.FFI, lib: Any, context: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for region in _each(ffi, lib.daxctl_region_get_first(context), lib.daxctl_region_get_next):
        for dev in _each(ffi, lib.daxctl_dev_get_first(region), lib.daxctl_dev_get_next):
            enabled = bool(lib.daxctl_dev_is_enabled(dev))
            mode = Mode.SYSTEM_RAM if enabled and lib.daxctl_dev_get_memory(dev) != ffi.NULL else Mode.DEVDAX
            node = lib.daxctl_dev_get_target_node(dev)
            yield (
                _name(ffi, lib.daxctl_dev_get_devname(dev)),
                {
                    "size": _number(lib.daxctl_dev_get_size(dev)),
                    "align": lib.daxctl_dev_get_align(dev) or None,
                    "target node": None if node < 0 else node,
                    "mode": str(mode if enabled else Mode.DISABLED),
                },
            )


def _dax_known(tree: Tree) -> Said:
    return {d.name: _dax_device(d) for d in tree.dax_devices if d.node_exists}


def _dax_device(device: DaxDevice) -> dict[str, Any]:
    # The library knows of two drivers, and calls each other one devdax.
    mode = Mode.DEVDAX if device.mode is Mode.OTHER else device.mode
    return {"size": device.size, "align": device.align, "target node": device.target_node, "mode": str(mode)}


def _nd_said(ffi: cffi.FFI, lib: Any) -> Said | None:
    context: Any = ffi.new("ndctl_ctx **")
    if lib.ndctl_new(context):
        return None
    try:
        return dict(_namespaces(ffi, lib, context[0]))
    finally:
        lib.ndctl_unref(context[0])


def _namespaces(ffi: cffi.FFI, lib: Any, context: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for bus in _each(ffi, lib.ndctl_bus_get_first(context), lib.ndctl_bus_get_next):
        for region in _each(ffi, lib.ndctl_region_get_first(bus), lib.ndctl_region_get_next):
            for one in _each(ffi, lib.ndctl_namespace_get_first(region), lib.ndctl_namespace_get_next):
                size = _number(lib.ndctl_namespace_get_size(one))
                if not size:  # a seed
                    continue
                dax, pfn = lib.ndctl_namespace_get_dax(one), lib.ndctl_namespace_get_pfn(one)
                said: dict[str, Any] = {"raw size": size, "enabled": _is_enabled(ffi, lib, one)}
                if said["enabled"]:
                    mode = lib.ndctl_namespace_get_mode(one)
                    said["mode"] = _NAMESPACE_MODES[mode] if 0 <= mode < len(_NAMESPACE_MODES) else "unknown"
                if dax != ffi.NULL:
                    said["map"] = _LOCATIONS.get(lib.ndctl_dax_get_location(dax))
                    said["align"] = lib.ndctl_dax_get_align(dax)
                elif pfn != ffi.NULL:
                    said["map"] = _LOCATIONS.get(lib.ndctl_pfn_get_location(pfn))
                yield _name(ffi, lib.ndctl_namespace_get_devname(one)), said


def _is_enabled(ffi: cffi.FFI, lib: Any, namespace: Any) -> bool:
    """Ask the personality where there is one: what it claims has no driver of its own."""
    for kind in ("dax", "pfn", "btt"):
        personality = getattr(lib, f"ndctl_namespace_get_{kind}")(namespace)
        if personality != ffi.NULL:
            return bool(getattr(lib, f"ndctl_{kind}_is_enabled")(personality))
    return bool(lib.ndctl_namespace_is_enabled(namespace))


def _nd_known(tree: Tree) -> Said:
    return {
        n.name: {"raw size": n.raw_size, "enabled": n.enabled, "mode": n.mode, "map": n.map, "align": n.align}
        for n in tree.namespaces
        if not n.seed
    }


def _cxl_said(ffi: cffi.FFI, lib: Any) -> Said | None:
    context: Any = ffi.new("cxl_ctx **")
    if lib.cxl_new(context):
        return None
    try:
        return dict([*_memdevs(ffi, lib, context[0]), *_cxl_regions(ffi, lib, context[0])])
    finally:
        lib.cxl_unref(context[0])


def _memdevs(ffi: cffi.FFI, lib: Any, context: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    for one in _each(ffi, lib.cxl_memdev_get_first(context), lib.cxl_memdev_get_next):
        yield (
            _name(ffi, lib.cxl_memdev_get_devname(one)),
            {
                "serial": int(lib.cxl_memdev_get_serial(one)),
                "ram size": _number(lib.cxl_memdev_get_ram_size(one)),
                "pmem size": _number(lib.cxl_memdev_get_pmem_size(one)),
            },
        )


def _cxl_regions(ffi: cffi.FFI, lib: Any, context: Any) -> Iterable[tuple[str, dict[str, Any]]]:
    for bus in _each(ffi, lib.cxl_bus_get_first(context), lib.cxl_bus_get_next):
        root = lib.cxl_bus_get_port(bus)
        for decoder in _each(ffi, lib.cxl_decoder_get_first(root), lib.cxl_decoder_get_next):
            for one in _each(ffi, lib.cxl_region_get_first(decoder), lib.cxl_region_get_next):
                yield (
                    _name(ffi, lib.cxl_region_get_devname(one)),
                    {
                        "size": _number(lib.cxl_region_get_size(one)),
                        "enabled": bool(lib.cxl_region_is_enabled(one)),
                        "interleave ways": int(lib.cxl_region_get_interleave_ways(one)),
                    },
                )


def _cxl_known(tree: Tree) -> Said:
    memdevs = {m.name: {"serial": m.serial, "ram size": m.ram_size, "pmem size": m.pmem_size} for m in tree.memdevs}
    regions = {
        r.name: {"size": r.size, "enabled": r.driver is not None, "interleave ways": r.ways} for r in tree.cxl_regions
    }
    return memdevs | regions


_SIDES: Final[dict[str, tuple[Callable[[cffi.FFI, Any], Said | None], Callable[[Tree], Said]]]] = {
    "daxctl": (_dax_said, _dax_known),
    "ndctl": (_nd_said, _nd_known),
    "cxl": (_cxl_said, _cxl_known),
}
