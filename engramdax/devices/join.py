# SPDX-License-Identifier: Apache-2.0
"""Making a pool visible that another host provisioned, or this one before its last boot. Nothing is initialised."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engramdax.devices import blocks, changes
from engramdax.devices.assembly import describe, find_device
from engramdax.devices.changes import Ground
from engramdax.devices.decoders import find_decoder
from engramdax.devices.labels import Label, read_labels
from engramdax.devices.provision import region_steps, region_uuid
from engramdax.devices.target import Place, find_memdev, find_place, place_name
from engramdax.devices.tree import CxlRegion, DaxDevice, Map, Memdev, Mode, Namespace, NdRegion, Origin, Tree
from engramdax.errors import BackingError, EngramdaxError, ParameterError, RefusedError
from engramdax.host import host_id
from engramdax.pool.access import LocalAccess
from engramdax.pool.reader import admission
from engramdax.pool.records import Assembly, Record, read_records, write_record
from engramdax.pool.steps import Step, carry_out
from engramdax.pool.volume import read_directory, read_superblock

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from engramdax.devices.system import System
    from engramdax.format.directory import Directory
    from engramdax.format.superblock import Superblock

ORDER: Final = ("region", "namespace", "slice", "mode")
"""In which the parts of an assembly are made."""


@dataclass(frozen=True, slots=True)
class Found:
    """A pool on a device of this host, and what its owner says of this host."""

    path: Path
    superblock: Superblock
    directory: Directory

    @property
    def admitted(self) -> bool:
        """Tell whether this host may read it."""
        return not self.superblock.shared or host_id() in {host.id for host in self.directory.hosts}

    @property
    def ours(self) -> bool:
        """Tell whether this host owns it."""
        return self.directory.owner == host_id()

    @property
    def owner(self) -> str:
        """The owner's name."""
        return next((h.name for h in self.directory.hosts if h.id == self.directory.owner), str(self.directory.owner))

    @property
    def admission(self) -> str:
        """The command by which the owner admits this host."""
        return admission(self.superblock, host_id())


class Join:
    """One pool to be made visible: `steps`, and when they are done `found`."""

    def __init__(self, system: System, *, wanted: str | None, record: Record | None = None) -> None:
        self.steps: list[Step] = []
        self.found: Found | None = None
        self.problem: EngramdaxError | None = None
        """Why there is no way to it."""
        self._wanted = record.uuid if record else wanted
        """Name or uuid that the pool must have, None for any."""
        self._record = record
        self._ground = Ground(system)

    @property
    def what(self) -> str:
        """What is joined, for messages."""
        return f"pool {self._record.name}" if self._record else "the pool"

    def look_for(self, tree: Tree) -> bool:
        """Look whether it is visible already; `found` is set then, and nothing is left to do but to remember it."""
        for device in tree.dax_devices:
            found = pool_at(device.node) if device.mode is Mode.DEVDAX and device.size else None
            if found is not None and self._fits(found):
                self._ground.device = device.name
                self._remember()
                return True
        return False

    def plan(self, place: Place, tree: Tree, *, granularity: int | None, decoder: str | None, mode: str | None) -> None:
        """Plan the way to a pool on a place that somebody named."""
        if isinstance(place, DaxDevice):
            self._enable(place)
        elif isinstance(place, Namespace):
            self._show_namespace(place, tree)
        elif isinstance(place, NdRegion):
            namespaces = [n for n in tree.namespaces if n.region == place and not n.seed]
            if len(namespaces) != 1:
                raise BackingError(f"{place.name} has {len(namespaces)} namespaces", remedy="name a namespace")
            self._show_namespace(namespaces[0], tree)
        elif isinstance(place, CxlRegion):
            devices = [d for d in tree.dax_devices_of(place) if d.size]
            if len(devices) != 1:
                raise BackingError(f"{place.name} has {len(devices)} dax devices", remedy="name a device")
            self._enable(devices[0])
        else:
            self._show_memdevs(place, tree, Assembly("", granularity=granularity or 0), decoder=decoder, mode=mode)
        self._end()

    def plan_again(self, tree: Tree) -> None:
        """Plan the way to a pool that this host remembers."""
        if self._record is None or self._record.assembly is None:
            raise BackingError(
                f"{self.what} is not on this host now, and how it came to be is not known",
                remedy="name its device, region or memdevs",
            )
        assembly = self._record.assembly
        devices = [d for d in find_device(assembly, tree) if d.mode is not Mode.DEVDAX]
        if len(devices) == 1:
            self._enable(devices[0])
        elif assembly.origin in (Origin.CXL_RAM, Origin.CXL_PMEM) and assembly.memdevs:
            memdevs = tuple(find_memdev(name, tree) for name in assembly.memdevs)
            mode = "ram" if assembly.origin == Origin.CXL_RAM else "pmem"
            self._show_memdevs(memdevs, tree, assembly, decoder=None, mode=mode)
        elif assembly.origin == Origin.NVDIMM:
            self._show_namespace(self._namespace_on_media(tree, assembly), tree)
        else:
            raise BackingError(
                f"{self.what} is not on this host now: {len(devices)} devices could be it",
                remedy=f"name one of {', '.join(d.name for d in devices)}"
                if devices
                else "look with `engramdax discover`",
            )
        self._end()

    def _namespace_on_media(self, tree: Tree, assembly: Assembly) -> Namespace:
        nd = [n for n in tree.namespaces if not n.seed and not (n.region and n.region.memdevs)]
        for namespace in nd:
            if namespace.mode == "devdax" and namespace.uuid == assembly.namespace:
                return namespace
        raw = [n for n in nd if n.mode == "raw" and n.blocks and blocks.devdax_on_media(self._ground.system, n)]
        if len(raw) != 1:
            raise BackingError(
                f"{self.what} is in no namespace of this host", remedy="look with `engramdax discover`, and name one"
            )
        return raw[0]

    def _enable(self, device: DaxDevice) -> None:
        if device.mode is Mode.SYSTEM_RAM and device.online_blocks != 0:
            raise RefusedError(
                f"{device.name} is online as system RAM: this host has overwritten what was there",
                remedy="keep kmem off it (memhp_default_state=offline); the pool is to be provisioned and loaded anew",
            )
        if device.namespace and device.namespace.map is Map.DEV:
            raise blocks.unfit(device.namespace.name)
        self._ground.device = device.name
        if device.mode is not Mode.DEVDAX:
            self.steps.append(changes.enable_device(self._ground))

    def _show_namespace(self, namespace: Namespace, tree: Tree) -> None:
        if namespace.map is Map.DEV:
            raise blocks.unfit(namespace.name)
        if namespace.mode == "devdax" and namespace.enabled:
            self._ground.device = next((d.name for d in tree.dax_devices_of(namespace)), None)
            return
        if namespace.enabled and not blocks.devdax_on_media(self._ground.system, namespace):
            raise BackingError(
                f"{namespace.name} is {namespace.mode}, and no devdax namespace on its media either",
                remedy="`engramdax provision` on the pool's owner makes one",
            )
        self.steps.append(changes.reread_namespace(self._ground, namespace))

    def _show_memdevs(
        self, memdevs: tuple[Memdev, ...], tree: Tree, assembly: Assembly, *, decoder: str | None, mode: str | None
    ) -> None:
        regions = {r.name: r for m in memdevs for r in tree.cxl_regions_of(m)}
        for region in regions.values():
            if region.memdevs == memdevs:
                self._show_region(region, tree, assembly)
                return
        if regions:
            raise BackingError(
                f"{place_name(memdevs)} is in {', '.join(regions)}, of other memdevs or in another order",
                remedy="name the memdevs in the order of the owner's region",
            )
        if mode is None:
            mode = "pmem" if all(m.pmem_size for m in memdevs) else "ram"
        if mode == "pmem":
            memdevs = self._by_labels(memdevs, tree)
        size = sum((m.ram_size if mode == "ram" else m.pmem_size) or 0 for m in memdevs)
        self.steps += [changes.reread_memdev(self._ground, m) for m in memdevs if mode == "pmem"]
        make = changes.make_region(
            self._ground,
            memdevs,
            mode,
            decoder=find_decoder(tree, memdevs, mode, size, decoder),
            granularity=assembly.granularity if len(memdevs) > 1 else None,
            uuid=(assembly.region_uuid or region_uuid(tree, memdevs)) if mode == "pmem" else None,
            in_order=True,
        )
        self.steps += region_steps(self._ground, make, mode)
        if mode == "ram":
            if assembly.size:
                self.steps.append(changes.clear_region(self._ground))
                self.steps.append(changes.make_slice(self._ground, None, assembly.size, assembly.align))
            self.steps.append(changes.enable_device(self._ground))

    def _show_region(self, region: CxlRegion, tree: Tree, assembly: Assembly) -> None:
        devices = [d for d in tree.dax_devices_of(region) if d.size and assembly.size in (0, d.size)]
        if len(devices) == 1:
            self._enable(devices[0])
        elif (nd := tree.nd_region(region.name)) is not None:
            namespaces = [n for n in tree.namespaces if n.region == nd and not n.seed]
            if len(namespaces) != 1:
                raise BackingError(f"{nd.name} has {len(namespaces)} namespaces", remedy="name a namespace")
            self._show_namespace(namespaces[0], tree)
        elif assembly.size and (dax := next((r for r in tree.dax_regions if r.cxl_region == region), None)):
            self.steps.append(changes.make_slice(self._ground, dax.id, assembly.size, assembly.align))
            self.steps.append(changes.enable_device(self._ground))
        else:
            raise BackingError(f"{region.name} has {len(devices)} dax devices", remedy="name a device")

    def _by_labels(self, memdevs: tuple[Memdev, ...], tree: Tree) -> tuple[Memdev, ...]:
        """Give all memdevs of the set that the labels speak of, in the order that they say."""
        labels = [label for m in memdevs for label in read_labels(m)]
        if not labels:
            raise BackingError(
                f"{place_name(memdevs)} has no namespace by its labels",
                remedy="`engramdax provision` on the pool's owner makes one",
            )
        ways = {label.ways for label in labels}
        if ways == {len(memdevs)}:
            return memdevs
        uuid = labels[0].namespace
        free = [m for m in tree.memdevs if m.pmem_size and not tree.cxl_regions_of(m)]
        found = {label.position: m for m in free if (label := _label_of(m, uuid)) is not None}
        if len(found) != max(ways):
            raise BackingError(
                f"namespace {uuid} is interleaved over {max(ways)} memdevs, of which {len(found)} are here",
                remedy="look with `cxl list -M`",
            )
        return tuple(m for _, m in sorted(found.items()))

    def _end(self) -> None:
        self.steps.append(Step(f"look for {self.what} there, and remember it on this host", self._look))

    def _look(self) -> None:
        ground = self._ground

        def look(tree: Tree) -> list[DaxDevice] | None:
            region = tree.cxl_region(ground.region) if ground.region else None
            all_ = tree.dax_devices_of(region) if region else tree.dax_devices
            found = [d for d in all_ if d.mode is Mode.DEVDAX and d.node_exists and ground.device in (None, d.name)]
            return found or None

        devices = ground.system.wait_for(look)
        if devices is None:
            raise BackingError(
                f"no dax device of {ground.device or ground.region or 'what was named'} came up",
                remedy="is it provisioned on the pool's owner? `engramdax discover` shows what there is",
            )
        # A region may hold several namespaces.
        fitting = [d for d in devices if (found := pool_at(d.node)) is not None and self._fits(found)]
        ground.device = (fitting or devices)[0].name
        self._remember()

    def _remember(self) -> None:
        tree = self._ground.system.tree()
        device = self._ground.find_device(tree)
        found = pool_at(device.node)
        if found is None:
            raise BackingError(
                f"there is no pool on {device.name}",
                remedy="name the memdevs in the order of the owner's region; or provision it on its owner first",
            )
        if not self._fits(found):
            raise BackingError(
                f"{device.name} holds pool {found.superblock.name} ({found.superblock.pool}), not {self._wanted}",
                remedy="leave --pool out, or name another place",
            )
        if not found.superblock.shared and not found.ours:
            raise RefusedError(
                f"pool {found.superblock.name} on {device.name} is another host's alone ({found.owner})",
                remedy="only a pool that was provisioned without --single-host is shared",
            )
        known = next((r for r in read_records() if r.uuid == str(found.superblock.pool)), None)
        before = known.assembly if known else None
        made = {*self._ground.made, *(before.made if before else ())}
        assembly = describe(
            device,
            tree,
            made=[part for part in ORDER if part in made],
            before=(before.before if before else "") or self._ground.before,
        )
        record = Record(
            str(found.superblock.pool),
            found.superblock.name,
            str(device.node),
            joined=not found.ours,
            assembly=assembly,
        )
        if record != known:
            write_record(record)
        self.found = found

    def _fits(self, found: Found) -> bool:
        return self._wanted in (None, found.superblock.name, str(found.superblock.pool))


class Search(Join):
    """A pool to be looked for in several places, one after the other; where it is not, everything is as it was."""

    def plan_each(
        self, places: Sequence[Place], tree: Tree, *, granularity: int | None, decoder: str | None, mode: str | None
    ) -> None:
        """Plan to look in these places."""
        joins = []
        for place in places:
            join = Join(self._ground.system, wanted=self._wanted)
            with suppress(EngramdaxError):  # what cannot be joined at all holds nothing to be found
                join.plan(place, tree, granularity=granularity, decoder=decoder, mode=mode)
                joins.append((place_name(place), join))
        names = ", ".join(name for name, _ in joins)
        self.steps.append(
            Step(f"look for pool {self._wanted} in {names}, one after the other", lambda: self._try(joins))
        )

    def _try(self, joins: Sequence[tuple[str, Join]]) -> None:
        problems = []
        for name, join in joins:
            try:
                self.found = finish_join(join)
            except EngramdaxError as e:
                problems.append(f"{name}: {e.problem}")
            else:
                return
        raise BackingError(
            f"pool {self._wanted} was not found ({'; '.join(problems)})".replace(";", ","),
            remedy="name its device, region or memdevs, as `engramdax provision` printed on its owner",
        )


def pool_at(node: Path) -> Found | None:
    """Give the pool on a device, None where there is none that can be read."""
    try:
        opened = LocalAccess(node, writable=False)
        try:
            superblock = read_superblock(opened.media).value
            return Found(node, superblock, read_directory(opened.media, superblock).value)
        finally:
            opened.close()
    except EngramdaxError:
        return None


def plan_join(
    system: System,
    text: str | None,
    *,
    pool: str | None,
    granularity: int | None = None,
    decoder: str | None = None,
    mode: str | None = None,
    known: bool = False,
) -> list[Join]:
    """Plan to make pools visible: the one on what `text` names, the one called `pool`, or all that this host remembers.

    A join without steps has found its pool already. `known`: those that this host remembers and no others, which may
    be none.
    """
    tree = system.tree()
    if text is not None:
        place = find_place(text, tree)
        if place is None:
            raise BackingError(f"{text} is no dax device", remedy="`engramdax discover` shows what there is")
        join = Join(system, wanted=pool)
        join.plan(place, tree, granularity=granularity, decoder=decoder, mode=mode)
        return [join]
    records = [r for r in read_records() if _on_device(r) and pool in (None, r.name, r.uuid)]
    if records or known:
        return [_again(system, tree, record) for record in records]
    join = Join(system, wanted=pool)
    if pool is not None and join.look_for(tree):
        return [join]
    places = unseen(system, tree)
    if pool is not None and len(places) > 1:
        search = Search(system, wanted=pool)
        search.plan_each(places, tree, granularity=granularity, decoder=decoder, mode=mode)
        return [search]
    if len(places) != 1:
        listed = ", ".join(place_name(p) for p in places)
        raise ParameterError(
            f"a pool can be on {len(places)} places: {listed}" if places else "there is no pool to join on this host",
            remedy="name one" if places else "look with `engramdax discover`",
        )
    join.plan(places[0], tree, granularity=granularity, decoder=decoder, mode=mode)
    return [join]


def _on_device(record: Record) -> bool:
    return record.assembly is not None


def _again(system: System, tree: Tree, record: Record) -> Join:
    join = Join(system, wanted=None, record=record)
    try:
        if not join.look_for(tree):
            join.plan_again(tree)
    except EngramdaxError as e:
        join.problem = e  # of this pool alone: the others are to be there after a boot all the same
    return join


def unseen(system: System, tree: Tree) -> list[Place]:
    """Give where a pool of another host may be: visible and not remembered here, or not visible yet."""
    known = {r.uuid for r in read_records()}
    places: list[Place] = []
    for device in tree.dax_devices:
        found = pool_at(device.node) if device.mode is Mode.DEVDAX and device.size else None
        unknown = found is not None and str(found.superblock.pool) not in known
        if unknown or (device.mode is Mode.DISABLED and device.size):
            places.append(device)
    for namespace in tree.namespaces:
        if namespace.mode == "raw" and namespace.blocks and not any(b.holders for b in namespace.blocks):
            try:
                if blocks.devdax_on_media(system, namespace):
                    places.append(namespace)
            except RefusedError:
                continue
    for memdev in tree.memdevs:
        if memdev.driver is None or tree.cxl_regions_of(memdev):
            continue
        if memdev.ram_size or (memdev.pmem_size and read_labels(memdev)):
            places.append((memdev,))
    return places


def join_command(record: Record) -> str:
    """Give the command that makes a pool of this host visible on another one."""
    assembly = record.assembly
    if assembly is None or not assembly.memdevs:
        return f"engramdax provision --join --pool {record.name}"
    ways = f" --granularity {assembly.granularity}" if len(assembly.memdevs) > 1 else ""
    return f"engramdax provision --join {','.join(assembly.memdevs)}{ways}"


def finish_join(join: Join) -> Found:
    """Carry a join out."""
    if join.problem is not None:
        raise join.problem
    carry_out(join.steps)
    if join.found is None:
        raise BackingError(f"{join.what} was not found", remedy="look with `engramdax discover`")
    return join.found


def _label_of(memdev: Memdev, namespace: object) -> Label | None:
    return next((label for label in read_labels(memdev) if label.namespace == namespace), None)
