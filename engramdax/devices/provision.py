# SPDX-License-Identifier: Apache-2.0
"""Making a pool on what a host has: a dax device, or what one can be made of."""

from __future__ import annotations

import os
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from engramdax.devices import blocks, changes
from engramdax.devices.assembly import describe
from engramdax.devices.changes import Ground
from engramdax.devices.decoders import find_decoder
from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.holders import check_unheld
from engramdax.devices.labels import read_labels
from engramdax.devices.target import Place, find_place, lasting_name, place_name
from engramdax.devices.tree import CxlRegion, DaxDevice, DaxRegion, Map, Memdev, Mode, Namespace, NdRegion, Tree
from engramdax.errors import BackingError, EngramdaxError, ParameterError, RefusedError
from engramdax.format.superblock import MAX_POOL_NAME, check_pool_name
from engramdax.pool.contents import Contents, State
from engramdax.pool.provision import Consent, Plan, check_consent, plan_device
from engramdax.pool.steps import Step, carry_out, undo
from engramdax.warning import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.devices.system import System

ALIGNS: Final = {"2M": 2 << 20, "1G": 1 << 30}
REGIONS: Final = uuid.UUID("8d0a4c56-3b5e-4b5b-9b0e-6f7f0e2a9c41")
"""The namespace of uuids of pmem regions, each made of the memdevs' serials: so all hosts give a region the same."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What the pool is to be like; None leaves it to what is there."""

    name: str | None = None
    shared: bool = True
    consent: Consent = Consent()  # noqa: RUF009 - frozen
    size: int | None = None
    """Bytes of a slice or namespace; None takes all there is."""
    align: int | None = None
    mode: str | None = None
    """ram or pmem, for memdevs that have both."""
    granularity: int | None = None
    decoder: str | None = None
    offline_memory: bool = False
    """Memory that is online as system RAM may be taken from the system."""


def plan_provision(system: System, text: str | None, wish: Wish) -> Plan:
    """Plan a pool on what `text` names, or on the one place where one can go."""
    tree = system.tree()
    place = find_place(text, tree) if text is not None else _only_place(system, tree)
    if place is None:
        raise BackingError(f"{text} is no dax device", remedy="`engramdax discover` shows what there is")
    if wish.name is not None:
        check_pool_name(wish.name)
    return _Planner(system, tree, wish).plan(place)


def _only_place(system: System, tree: Tree) -> Place:
    places = [place for found in assess(tree, system.proc) if (place := _usable(system, found)) is not None]
    if len(places) == 1:
        return places[0]
    if not places:
        raise BackingError(
            "there is no memory on this host that a pool can go on",
            remedy="`engramdax discover` says why; --file and --hugepages make a pool in other memory",
        )
    names = ", ".join(place_name(p) for p in places)
    raise ParameterError(f"a pool can go on {len(places)} places: {names}", remedy="name one")


def _usable(system: System, found: Fitness) -> Place | None:
    """Give the place, where a pool can be made without anything being taken from anybody."""
    part = found.part
    if isinstance(part, DaxDevice):
        return part if found.verdict in (Verdict.FIT, Verdict.DISABLED, Verdict.SYSTEM_RAM_OFFLINE) else None
    if found.verdict is not Verdict.UNUSED:
        return None
    if isinstance(part, DaxRegion):
        return part.cxl_region
    if isinstance(part, Memdev):
        return (part,)
    if isinstance(part, Namespace):
        with suppress(BackingError, RefusedError):
            return part if blocks.namespace_contents(system, part).state is State.EMPTY else None
        return None
    return part


class _Planner:
    """Steps from a place to a pool."""

    def __init__(self, system: System, tree: Tree, wish: Wish) -> None:
        self._system = system
        self._tree = tree
        self._wish = wish
        self._ground = Ground(system)
        self._steps: list[Step] = []

    def plan(self, place: Place) -> Plan:
        if isinstance(place, DaxDevice):
            return self._on_device(place)
        if isinstance(place, Namespace):
            return self._on_namespace(place)
        if isinstance(place, NdRegion):
            return self._on_nd_region(place)
        if isinstance(place, CxlRegion):
            return self._on_cxl_region(place)
        return self._on_memdevs(place)

    def _on_device(self, device: DaxDevice) -> Plan:
        wish = self._wish
        if not device.size:
            raise BackingError(
                f"{device.name} has no memory", remedy=f"`daxctl create-device -r {_id(device)}` makes one"
            )
        if wish.size is not None:
            raise ParameterError(f"--size does not go with {device.name}", remedy="a device has its own size")
        if wish.align not in (None, device.align):
            raise ParameterError(
                f"{device.name} has pages of {device.align} bytes, not {wish.align}",
                remedy="they are chosen when a device is made: name its region or namespace",
            )
        if device.namespace and device.namespace.map is Map.DEV:
            self._check_map(device.namespace)
        if device.mode is Mode.OTHER:
            raise RefusedError(
                f"{device.name} is bound to the driver {device.driver}",
                remedy="unbind it, if nobody needs what it holds",
            )
        if device.device is not None:
            check_unheld(device.name, os.makedev(*device.device), self._system.proc)
        self._ground.device = device.name
        if device.mode is Mode.DEVDAX:
            if not self._steps:
                # As it is: what stands on it is looked at now.
                assembly = describe(device, self._tree)
                name = device.name if wish.name is None else wish.name
                return plan_device(device.node, name=name, shared=wish.shared, consent=wish.consent, assembly=assembly)
        elif device.mode is Mode.SYSTEM_RAM and device.online_blocks != 0:
            self._steps.append(self._offline(device))
        if device.mode is not Mode.DEVDAX:
            self._steps.append(changes.enable_device(self._ground))
        return self._finish(device.name, device.size)

    def _offline(self, device: DaxDevice) -> Step:
        if not self._wish.offline_memory:
            blocks_ = (
                f"{device.online_blocks} of {device.memory_blocks} blocks" if device.memory_blocks else "its memory"
            )
            raise RefusedError(
                f"{device.name} is online as system RAM ({blocks_})",
                remedy="--offline-memory takes it from the system: the kernel must have room to move all that is on it "
                "elsewhere, and cannot move what is pinned or the kernel's own (EBUSY)",
            )
        return changes.offline_memory(self._ground, device)

    def _on_namespace(self, namespace: Namespace) -> Plan:
        if namespace.seed:
            raise BackingError(f"{namespace.name} has no memory", remedy="name its region to make a namespace there")
        if namespace.mode == "devdax":
            if namespace.map is Map.DEV:
                self._check_map(namespace)
            devices = self._tree.dax_devices_of(namespace)
            if not devices:
                raise BackingError(
                    f"{namespace.name} is disabled",
                    remedy=f"`ndctl enable-namespace {namespace.name}` makes its dax device",
                )
            return self._on_device(devices[0])
        found = blocks.namespace_contents(self._system, namespace)
        if namespace.mode == "sector":
            raise RefusedError(
                f"{namespace.name} is in sector mode ({found.what})",
                remedy=f"if nobody needs it, `ndctl create-namespace -f -e {namespace.name} -m raw` makes it raw",
            )
        if namespace.mode == "fsdax":
            found = Contents(State.RECOGNISED, f"{found.what}, in fsdax mode")
        check_consent(namespace.name, found, self._wish.consent)
        self._check_align(namespace.region)
        if self._wish.size is not None:
            raise ParameterError(f"--size does not go with {namespace.name}", remedy="a namespace has its own size")
        self._steps.append(changes.make_namespace(self._ground, namespace, align=self._wish.align))
        return self._finish(namespace.name, namespace.raw_size or 0)

    def _on_nd_region(self, region: NdRegion) -> Plan:
        namespaces = [n for n in self._tree.namespaces if n.region == region and not n.seed]
        if region.driver is None:
            raise BackingError(f"{region.name} is disabled", remedy=f"`ndctl enable-region {region.name}` enables it")
        if len(namespaces) == 1 and not (self._wish.size and region.available):
            return self._on_namespace(namespaces[0])
        if not region.available:
            raise BackingError(
                f"{region.name} has no free space, but {len(namespaces)} namespaces",
                remedy=f"name one of {', '.join(n.name for n in namespaces)}"
                if namespaces
                else "look with `ndctl list -R`",
            )
        if region.read_only:
            raise RefusedError(f"{region.name} is read-only", remedy="see `ndctl list -R`")
        self._check_align(region)
        size = self._wish.size
        if size is not None and size > region.available:
            raise BackingError(
                f"{region.name} has {region.available} bytes free, the pool is to have {size}",
                remedy="give a smaller --size",
            )
        self._steps += self._namespace_steps(region.name)
        return self._finish(region.name, size or region.available)

    def _namespace_steps(self, region: str | None) -> list[Step]:
        """Give the steps that make a namespace in free space of a region, None being the one that is made before."""

        def check(namespace: Namespace) -> None:
            check_consent(namespace.name, blocks.namespace_contents(self._system, namespace), self._wish.consent)

        return [
            changes.make_raw_namespace(self._ground, region, check, size=self._wish.size),
            changes.make_namespace(self._ground, None, align=self._wish.align),
        ]

    def _on_cxl_region(self, region: CxlRegion) -> Plan:
        if not region.enabled:
            raise BackingError(f"{region.name} is disabled", remedy=f"`cxl enable-region {region.name}` enables it")
        if region.mode == "pmem":
            raise BackingError(
                f"{region.name} is not on the nvdimm bus", remedy="load the modules cxl_pmem and nd_pmem (modprobe)"
            )
        devices = [d for d in self._tree.dax_devices_of(region) if d.size]
        dax = next((r for r in self._tree.dax_regions if r.cxl_region == region), None)
        size = self._wish.size
        if dax is not None and dax.available and (size is not None or not devices):
            size = size or dax.available
            self._check_slice(size, dax.available, region.name)
            self._steps.append(changes.make_slice(self._ground, dax.id, size, self._wish.align))
            self._steps.append(changes.enable_device(self._ground))
            return self._finish(region.name, size)
        if len(devices) == 1 and size in (None, devices[0].size):
            self._wish = replace(self._wish, size=None)
            return self._on_device(devices[0])
        if not devices:
            raise BackingError(
                f"{region.name} has no dax device", remedy="load the modules dax_cxl and device_dax (modprobe)"
            )
        raise BackingError(
            f"{region.name} has no free space, but {len(devices)} dax device{'s' * (len(devices) > 1)}",
            remedy=f"name one of {', '.join(d.name for d in devices)}",
        )

    def _on_memdevs(self, memdevs: tuple[Memdev, ...]) -> Plan:
        names = ",".join(m.name for m in memdevs)
        if regions := [r for m in memdevs for r in self._tree.cxl_regions_of(m)]:
            if len(set(regions)) == 1 and set(regions[0].memdevs) == set(memdevs):
                name = regions[0].name
                return self.plan(self._tree.nd_region(name) or regions[0])
            raise BackingError(
                f"{names} is in {', '.join(sorted({r.name for r in regions}))}", remedy="name the region or its device"
            )
        mode, size = self._mode_of(memdevs)
        if mode == "pmem":
            for memdev in memdevs:
                if labels := read_labels(memdev):
                    raise RefusedError(
                        f"{memdev.name} holds {len(labels)} namespaces by its labels, of a region that is not there",
                        remedy="`engramdax provision --join` makes them visible; then name the namespace",
                    )
        decoder = find_decoder(self._tree, memdevs, mode, size, self._wish.decoder)
        self._steps += region_steps(
            self._ground,
            changes.make_region(
                self._ground,
                memdevs,
                mode,
                decoder=decoder,
                granularity=self._wish.granularity,
                uuid=region_uuid(self._tree, memdevs) if mode == "pmem" else None,
                in_order=False,
            ),
            mode,
        )
        if mode == "pmem":
            self._steps += self._namespace_steps(None)
        else:
            ask = self._wish.size
            if ask is not None or self._wish.align is not None:
                ask = ask or size
                self._check_slice(ask, size, names)
                self._steps.append(changes.clear_region(self._ground))
                self._steps.append(changes.make_slice(self._ground, None, ask, self._wish.align))
            self._steps.append(changes.enable_device(self._ground))
        lasting = ",".join(lasting_name(m, self._tree) for m in memdevs)
        return self._finish(names, self._wish.size or size, name=re.sub(r"[,:]", "-", lasting)[:MAX_POOL_NAME])

    def _mode_of(self, memdevs: tuple[Memdev, ...]) -> tuple[str, int]:
        """Give ram or pmem, and how many bytes all of the memdevs have of it."""
        names = ",".join(m.name for m in memdevs)
        if without := [m.name for m in memdevs if m.driver is None]:
            raise BackingError(
                f"{', '.join(without)} is disabled", remedy=f"`cxl enable-memdev {without[0]}` enables it"
            )
        sizes = {
            "ram": [m.ram_size or 0 for m in memdevs],
            "pmem": [m.pmem_size or 0 for m in memdevs],
        }
        modes = [mode for mode, each in sizes.items() if all(each) and self._wish.mode in (None, mode)]
        if not modes:
            want = f" {self._wish.mode}" if self._wish.mode else ""
            raise BackingError(f"{names} has no{want} memory", remedy="look at it with `cxl list -M`")
        if len(modes) > 1:
            raise ParameterError(f"{names} has volatile and persistent memory", remedy="say --type ram or --type pmem")
        each = sizes[modes[0]]
        return modes[0], min(each) * len(each)

    def _check_map(self, namespace: Namespace) -> None:
        if self._wish.shared:
            raise blocks.unfit(namespace.name)
        warn(
            f"{namespace.name} keeps page structures on the device (map=dev): no other host must ever see it",
            UserWarning,
        )

    def _check_align(self, region: NdRegion | None) -> None:
        if self._wish.align and region and region.resource and region.resource % (2 << 20):
            raise BackingError(f"{region.name} begins at {region.resource:#x}", remedy="it cannot have large pages")

    def _check_slice(self, size: int, available: int, name: str) -> None:
        align = self._wish.align or ALIGNS["2M"]
        if size > available:
            raise BackingError(
                f"{name} has {available} bytes free, the pool is to have {size}", remedy="give a smaller --size"
            )
        if size % align:
            raise ParameterError(f"--size {size} is no multiple of the pages' {align} bytes", remedy="round it")

    def _finish(self, where: str, size: int, name: str | None = None) -> Plan:
        name = (name or where) if self._wish.name is None else self._wish.name
        check_pool_name(name)
        pool = _Pool(self._ground, name, self._wish)
        steps = [*self._steps, pool.step(where)]
        device = self._ground.device
        return LatePlan(self._system.dev / (device or where), name, str(pool.uuid), size, steps, pool)


@dataclass(frozen=True, slots=True)
class LatePlan(Plan):
    """A plan whose device is only known when its steps are done."""

    pool: _Pool

    def settled(self) -> Plan:
        """Give the plan as it was carried out."""
        return self.pool.plan or self


class _Pool:
    """The last step of a plan whose device is made by the steps before."""

    def __init__(self, ground: Ground, name: str, wish: Wish) -> None:
        self.uuid = uuid.uuid4()
        self.plan: Plan | None = None
        self._ground = ground
        self._name = name
        self._wish = wish

    def step(self, where: str) -> Step:
        what = f"look at what is there, write the superblock and an empty directory of pool {self._name} to it"
        return Step(
            f"{what}, and remember it ({self._ground.device or 'the device made of ' + where})", self._do, self._undo
        )

    def _do(self) -> None:
        tree = self._ground.system.tree()
        device = self._ground.find_device(tree)
        if self._wish.align not in (None, device.align):
            raise BackingError(
                f"{device.name} has pages of {device.align} bytes, not {self._wish.align}",
                remedy="its region can do no others: leave --align out",
            )
        assembly = describe(device, tree, made=self._ground.made, before=self._ground.before)
        plan = plan_device(
            device.node,
            name=self._name,
            shared=self._wish.shared,
            consent=self._wish.consent,
            assembly=assembly,
            pool=self.uuid,
            look=False,
        )
        carry_out(plan.steps)
        self.plan = plan

    def _undo(self) -> None:
        if self.plan is not None:
            _undone(self.plan.steps)


def region_steps(ground: Ground, step: Step, mode: str) -> list[Step]:
    """Give the step that makes a region, and what has to stand around it."""
    if mode != "ram":
        return [step]
    system = ground.system
    if "kmem" in system.tree().dax_drivers and system.keeps_page_structures_on_added_memory():
        raise RefusedError(
            "kmem would write its page structures to a new region's memory (memory_hotplug.memmap_on_memory)",
            remedy="boot without that parameter, or keep kmem from being loaded",
        )
    around = changes.memory_kept_offline(system)
    if around is None:
        return [step]
    before, after = around
    return [before, step, changes.enable_device(ground), after]


def region_uuid(tree: Tree, memdevs: Sequence[Memdev]) -> str:
    """Give the uuid of the pmem region of these memdevs."""
    return str(uuid.uuid5(REGIONS, ",".join(lasting_name(m, tree) for m in memdevs)))


def _id(device: DaxDevice) -> object:
    return device.region.id if device.region else "REGION"


def _undone(steps: Sequence[Step]) -> None:
    if problems := undo(steps):
        raise EngramdaxError("; ".join(problems))
