# SPDX-License-Identifier: Apache-2.0
"""What a device is made of, in terms that outlive a boot, and the steps that take away what was made for a pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.devices import changes
from engramdax.devices.target import lasting_name
from engramdax.devices.tree import DaxDevice, Mode, Namespace, Origin, Tree
from engramdax.errors import RefusedError
from engramdax.pool.records import Assembly
from engramdax.pool.steps import Step

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.devices.system import System


def describe(device: DaxDevice, tree: Tree, *, made: Sequence[str] = (), before: str = "") -> Assembly:
    """Say what this device is made of."""
    region, cxl = device.region, device.cxl_region
    part = region is not None and bool(device.size and region.size and device.size < region.size)
    return Assembly(
        device.origin.value,
        memdevs=tuple(lasting_name(m, tree) for m in device.memdevs),
        granularity=(cxl.granularity or 0) if cxl else 0,
        region_uuid=(cxl.uuid or "") if cxl else "",
        namespace=(device.namespace.uuid or "") if device.namespace else "",
        resource=device.resource or 0,
        offset=_offset(device, tree) if part else 0,
        size=(device.size or 0) if part else 0,
        align=device.align or 0,
        made=tuple(made),
        before=before,
    )


def _offset(device: DaxDevice, tree: Tree) -> int:
    """Give where a slice begins: dax regions do not tell their own address, the CXL region behind them does."""
    cxl = device.cxl_region
    others = [d.resource or 0 for d in tree.dax_devices if d.region == device.region]
    start = cxl.resource if cxl else min(others, default=0)
    return device.resource - start if device.resource and start else 0


def find_device(assembly: Assembly, tree: Tree) -> list[DaxDevice]:
    """Give the dax devices that may be the one described, best first; whether one is, its contents tell."""
    found = []
    for device in tree.dax_devices:
        if not device.size or device.origin.value != assembly.origin:
            continue
        memdevs = tuple(lasting_name(m, tree) for m in device.memdevs)
        namespace = (device.namespace.uuid or "") if device.namespace else ""
        if memdevs != assembly.memdevs or (assembly.namespace and namespace != assembly.namespace):
            continue
        if assembly.size and device.size != assembly.size:
            continue
        elsewhere = device.resource and assembly.resource and device.resource != assembly.resource
        if device.origin in (Origin.HMEM, Origin.OTHER) and elsewhere:
            continue
        found.append(device)
    return found


def removal(system: System, device: DaxDevice, assembly: Assembly) -> list[Step]:
    """Give the steps that take away what was made on this host for a pool on `device`, which nobody uses any more."""
    region = device.cxl_region
    namespace = device.namespace
    parts = [part for part in assembly.made if part != "region" or not _others(device, system.tree())]
    steps = []
    for made in reversed(parts):
        if made == "mode" and not {"region", "slice"} & set(parts):
            steps.append(_mode_removal(system, device.name, assembly.before))
        elif made == "slice" and "region" not in parts:
            steps.append(
                Step(f"run `daxctl destroy-device {device.name}`", lambda: changes.destroy_device(system, device.name))
            )
        elif made == "namespace" and namespace is not None:
            steps.append(_namespace_removal(system, namespace, assembly.before))
        elif made == "region" and region is not None:
            if region.locked:
                raise RefusedError(
                    f"{region.name} has locked decoders ({', '.join(d.name for d in region.locked)})",
                    remedy="only a reset of the host frees them",
                )
            steps.append(_region_removal(system, region.name))
    return steps


def _others(device: DaxDevice, tree: Tree) -> bool:
    """Tell whether its region has other slices or namespaces, which would go with it."""
    region, namespace = device.cxl_region, device.namespace
    if region is None:
        return False
    slices = [d for d in tree.dax_devices_of(region) if d.size and d.name != device.name]
    namespaces = [
        n
        for n in tree.namespaces
        if namespace and n.region == namespace.region and not n.seed and n.name != namespace.name
    ]
    return bool(slices or namespaces)


def _region_removal(system: System, name: str) -> Step:
    return Step(f"run `cxl destroy-region -f {name}`", lambda: changes.destroy_region(system, name))


def _mode_removal(system: System, name: str, before: str) -> Step:
    mode = Mode.SYSTEM_RAM if before == Mode.SYSTEM_RAM else Mode.DISABLED
    return Step(f"make {name} {mode} again", lambda: changes.disable_device(system, name, mode))


def _namespace_removal(system: System, namespace: Namespace, before: str) -> Step:
    name = namespace.name
    if before in ("raw", "fsdax"):
        return Step(
            f"run `ndctl create-namespace -f -e {name} -m {before}`",
            lambda: changes.restore_namespace(system, name, namespace, before),
        )
    return Step(f"run `ndctl destroy-namespace -f {name}`", lambda: changes.destroy_namespace(system, name))
