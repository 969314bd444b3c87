# SPDX-License-Identifier: Apache-2.0
"""Can a pool live on what a host has, is there one, and if not, why not and what helps.

Looking changes nothing: devices are opened O_RDONLY and mapped PROT_READ.
"""

from __future__ import annotations

import errno
import re
import shlex
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax.devices import blocks
from engramdax.devices.decoders import find_decoder
from engramdax.devices.holders import holders
from engramdax.devices.labels import read_labels
from engramdax.devices.system import System
from engramdax.devices.target import lasting_name
from engramdax.devices.tree import (
    CxlRegion,
    DaxDevice,
    DaxRegion,
    Map,
    Memdev,
    Mode,
    Namespace,
    NdRegion,
    Tree,
)
from engramdax.errors import BackingError, EngramdaxError, FormatError, RefusedError, UnreadableError
from engramdax.format.geometry import SMALLEST_POOL
from engramdax.pool.access import LocalAccess
from engramdax.pool.contents import State, contents, signature
from engramdax.pool.volume import read_superblock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from engramdax.format.superblock import Superblock

PROC: Final = Path("/proc")

MAP_DEV: Final = "the kernel keeps its page structures on the device (map=dev), where each host writes its own"
UNNEEDED: Final = "if nobody needs that"

Part = DaxDevice | DaxRegion | Namespace | NdRegion | CxlRegion | Memdev


class Verdict(StrEnum):
    """Whether a pool can live somewhere, or the first thing in its way."""

    FIT = "fit"
    POOL = "pool"
    """There is one, and it can be used."""

    SYSTEM_RAM = "system-ram"
    """The kernel's own memory."""
    SYSTEM_RAM_OFFLINE = "system-ram-offline"
    """The kernel has it and does not use it."""
    DISABLED = "disabled"
    """No driver is bound, though one is there; or firmware or an operator has switched it off."""
    NO_DRIVER = "no-driver"
    """The driver is not loaded, or it is an unknown one."""
    NO_NODE = "no-node"
    """There is nothing to open, as in a container."""
    NO_PERMISSION = "no-permission"
    IN_USE = "in-use"
    """By a process, a mount or another block device."""
    TOO_SMALL = "too-small"
    ALIGN = "align"
    """The device is smaller than the pages that it is to be mapped with."""
    MAP_DEV = "map-dev"
    """The kernel of each host keeps page structures on it."""
    FOREIGN = "foreign"
    """Something that is recognised: a file system, another mode of a namespace."""
    UNKNOWN = "unknown-content"
    DAMAGED = "damaged-pool"
    UNREADABLE = "unreadable"
    UNUSED = "unused"
    """It is no dax device yet; the command makes one of it."""
    INCOMPLETE = "incomplete"
    """A part of it is missing."""


OCCUPIED: Final = {
    State.POOL: (Verdict.DAMAGED, "--force"),
    State.RECOGNISED: (Verdict.FOREIGN, "--force"),
    State.UNKNOWN: (Verdict.UNKNOWN, "--overwrite-unknown"),
}
"""What to say of contents, and the option by which provisioning destroys them."""


@dataclass(frozen=True, slots=True)
class FoundPool:
    """A pool that is on a device."""

    name: str
    uuid: str
    size: int
    shared: bool


@dataclass(frozen=True, slots=True)
class Fitness:
    """What was found out of one part of a tree."""

    part: Part
    verdict: Verdict
    why: str
    """One line without a full stop; "" for what is fit or holds a pool."""
    command: str = ""
    """What to run as root; "" where nothing helps, or nothing has to."""
    pool: FoundPool | None = None

    @property
    def needs_root(self) -> bool:
        """Tell whether root would see more."""
        return self.verdict is Verdict.NO_PERMISSION


def assess(tree: Tree, proc: Path = PROC, *, known: Iterable[Fitness] = ()) -> tuple[Fitness, ...]:
    """Assess all dax devices, and what is no dax device yet but could become one.

    A namespace, region or memdev that has dax devices is assessed by those. Opens devices, and reads up to 1 GiB of
    one that holds no pool. A device in `known` that is still the same is not looked at again. `proc` is where
    processes are seen. Thread-safe.
    """
    return tuple(_assessments(tree, proc, {f.part: f for f in known}))


def assess_dax(tree: Tree, device: DaxDevice, proc: Path = PROC) -> Fitness:
    """Assess one dax device."""
    return obstacle(tree, device) or _look(device, proc)


def _assessments(tree: Tree, proc: Path, known: Mapping[Part, Fitness]) -> Iterator[Fitness]:
    for device in tree.dax_devices:
        if device.size != 0:
            yield replace(known[device], part=device) if device in known else assess_dax(tree, device, proc)
    for region in tree.dax_regions:
        if region.available:
            yield _of_dax_region(tree, region)
    for namespace in tree.namespaces:
        if not namespace.seed and not tree.dax_devices_of(namespace):
            yield _of_namespace(tree, namespace, proc)
    for nd_region in tree.nd_regions:
        if found := _of_nd_region(tree, nd_region):
            yield found
    for cxl_region in tree.cxl_regions:
        if found := _of_cxl_region(tree, cxl_region):
            yield found
    for memdev in tree.memdevs:
        if not tree.cxl_regions_of(memdev):
            yield _of_memdev(tree, memdev)


# dax devices: first what sysfs says, then the memory itself.


def obstacle(tree: Tree, device: DaxDevice) -> Fitness | None:
    """Give what stands in the way by what sysfs says alone; nothing is opened."""
    name = device.name
    if device.mode is Mode.SYSTEM_RAM:
        return _system_ram(device)
    if device.mode is Mode.DISABLED:
        return _disabled(tree, device)
    if device.mode is Mode.OTHER:
        why = f"bound to the driver {device.driver}, which is not device_dax"
        return Fitness(device, Verdict.NO_DRIVER, why, f"daxctl disable-device {name} && {_provision(name)}")
    if device.size is None:
        return Fitness(device, Verdict.UNREADABLE, "the kernel does not tell its size")
    if device.align is not None and device.align > device.size:
        why = f"its pages of {device.align} bytes are larger than its {device.size} bytes"
        return Fitness(device, Verdict.ALIGN, why, _realign(device))
    usable = device.size - (device.size % device.align if device.align else 0)
    if usable < SMALLEST_POOL:
        why = f"a pool needs {SMALLEST_POOL >> 20} MiB, usable here are {usable} bytes"
        return Fitness(device, Verdict.TOO_SMALL, why)
    if not device.node_exists:
        numbers = "c {} {}".format(*device.device) if device.device else ""
        why = f"there is no device node {device.node}; a container has to be given it"
        return Fitness(device, Verdict.NO_NODE, why, f"mknod -m 0640 {device.node} {numbers}" if numbers else "")
    return None


def _system_ram(device: DaxDevice) -> Fitness:
    name = device.name
    if device.online_blocks == 0:
        why = "the kernel has it as system RAM, all offline"
        return Fitness(device, Verdict.SYSTEM_RAM_OFFLINE, why, _provision(name))
    blocks = f"{device.online_blocks} of {device.memory_blocks} blocks" if device.online_blocks is not None else ""
    why = f"online as system RAM ({blocks or 'how much, root can see'}): processes have their memory there"
    # What processes leave behind there is nobody's.
    return Fitness(device, Verdict.SYSTEM_RAM, why, _provision(name, "--offline-memory", "--overwrite-unknown"))


def _disabled(tree: Tree, device: DaxDevice) -> Fitness:
    if "device_dax" not in tree.dax_drivers:
        why = "no driver is bound, and device_dax is not loaded"
        return Fitness(device, Verdict.NO_DRIVER, why, f"modprobe device_dax && {_provision(device.name)}")
    return Fitness(device, Verdict.DISABLED, "no driver is bound: open() would give ENXIO", _provision(device.name))


def _provision(place: str | Path, *options: str) -> str:
    return shlex.join(["engramdax", "provision", *options, str(place)])


def _realign(device: DaxDevice) -> str:
    if device.namespace:
        return f"{_recreate(device.namespace)} -a 2M"
    return f"daxctl disable-device {device.name} && daxctl reconfigure-device -m devdax -a 2M {device.name}"


def _recreate(namespace: Namespace) -> str:
    return f"ndctl create-namespace -f -e {namespace.name} -m devdax -M mem"


def _look(device: DaxDevice, proc: Path) -> Fitness:
    """Open the device and see what is on it."""
    unfit = device.namespace if device.namespace and device.namespace.map is Map.DEV else None
    try:
        opened = LocalAccess(device.node, writable=False)
    except EngramdaxError as e:
        return _closed(device, e)
    try:
        found: FormatError | Superblock
        try:
            found = read_superblock(opened.media).value
        except FormatError as e:
            # Its traceback would keep the mapping.
            found = e.with_traceback(None)
        pool = (
            None if isinstance(found, FormatError) else FoundPool(found.name, str(found.pool), found.size, found.shared)
        )
        if pool:
            return Fitness(device, Verdict.MAP_DEV if unfit else Verdict.POOL, MAP_DEV if unfit else "", pool=pool)
        there = contents(opened.media, opened.fd)
        if isinstance(found, UnreadableError):
            return Fitness(device, Verdict.UNREADABLE, found.problem)
    except FormatError as e:
        return Fitness(device, Verdict.UNREADABLE, e.problem)
    finally:
        opened.close()
    if users := holders(opened.backing.device, proc):
        why = f"in use by process {', '.join(map(str, users[:8]))}"
        return Fitness(device, Verdict.IN_USE, why)
    if unfit:
        lost = "" if there.state is State.EMPTY else f"; holds {there.what}, {UNNEEDED}"
        return Fitness(device, Verdict.MAP_DEV, MAP_DEV + lost, _recreate(unfit))
    if there.state is State.EMPTY:
        return Fitness(device, Verdict.FIT, "", _provision(device.node))
    verdict, option = OCCUPIED[there.state]
    return Fitness(device, verdict, f"holds {there.what}; {UNNEEDED}", _provision(device.node, option))


def _closed(device: DaxDevice, error: EngramdaxError) -> Fitness:
    cause = error.__context__
    number = cause.errno if isinstance(cause, OSError) else None
    if number in (errno.EACCES, errno.EPERM):
        why = f"this user may not read {device.node}"
        return Fitness(device, Verdict.NO_PERMISSION, why, "sudo engramdax discover")
    if number in (errno.ENXIO, errno.ENODEV):
        return Fitness(device, Verdict.DISABLED, f"open() gives {errno.errorcode[number]}", _provision(device.name))
    if number == errno.EBUSY:
        return Fitness(device, Verdict.IN_USE, f"open() gives EBUSY: {error.problem}")
    return Fitness(device, Verdict.UNREADABLE, error.problem)


# What is no dax device yet.


def _of_dax_region(tree: Tree, region: DaxRegion) -> Fitness:
    size = region.available or 0
    if size < SMALLEST_POOL:
        why = f"{size} bytes of it are free, a pool needs {SMALLEST_POOL >> 20} MiB"
        return Fitness(region, Verdict.TOO_SMALL, why)
    why = f"{size} bytes of it belong to no dax device"
    if region.cxl_region is None:
        # Provisioning cuts the regions that it can make again after a boot.
        command = f"daxctl create-device -r {region.id}" if region.id is not None else ""
        return Fitness(region, Verdict.UNUSED, f"{why}; it can be made one, to be provisioned then", command)
    others = [d for d in tree.dax_devices_of(region) if d.size]
    options = ("--size", str(size)) if others else ()
    return Fitness(region, Verdict.UNUSED, why, _provision(region.cxl_region.name, *options))


def _of_namespace(tree: Tree, namespace: Namespace, proc: Path) -> Fitness:
    name, mode = namespace.name, namespace.mode
    mounts, swaps = _mounts(proc), _swaps(proc)
    for block in namespace.blocks:
        if block.device in mounts:
            place = mounts[block.device]
            command = f"umount {shlex.quote(place)} && {_claim(tree, namespace, '--force')}"
            return Fitness(namespace, Verdict.IN_USE, f"{mode}, mounted at {place}; {UNNEEDED}", command)
        if f"/dev/{block.name}" in swaps:
            command = f"swapoff /dev/{block.name} && {_claim(tree, namespace, '--force')}"
            return Fitness(namespace, Verdict.IN_USE, f"{mode}, swapped on; {UNNEEDED}", command)
        if block.holders:
            return Fitness(namespace, Verdict.IN_USE, f"{mode}, a part of {', '.join(block.holders)}")
    if not namespace.enabled:
        return Fitness(namespace, Verdict.DISABLED, f"{mode}, disabled", f"ndctl enable-namespace {name}")
    if mode == "devdax":
        command = f"modprobe dax_pmem && ndctl disable-namespace {name} && ndctl enable-namespace {name}"
        return Fitness(namespace, Verdict.NO_DRIVER, "a devdax namespace without a dax device", command)
    if namespace.raw_size is not None and namespace.raw_size < SMALLEST_POOL:
        return Fitness(namespace, Verdict.TOO_SMALL, f"a pool needs {SMALLEST_POOL >> 20} MiB")
    if mode == "raw":
        return _look_at_raw(namespace)
    found = next((found for block in namespace.blocks if (found := signature(f"/dev/{block.name}"))), None)
    why = f"in mode {mode}{f', with {found}' if found else ', not devdax'}; {UNNEEDED}"
    return Fitness(namespace, Verdict.FOREIGN, why, _claim(tree, namespace, "--force"))


def _claim(tree: Tree, namespace: Namespace, option: str) -> str:
    """Give the command that makes a pool of a namespace whatever is on it."""
    if namespace.mode != "sector" or namespace.region is None:
        return _provision(namespace.name, option)
    make_raw = f"ndctl create-namespace -f -e {namespace.name} -m raw"
    if [n for n in tree.namespaces if n.region == namespace.region and not n.seed and n != namespace]:
        return make_raw
    # By its region, for it may have another name then. What the sector layer kept between the sectors is left.
    return f"{make_raw} && {_provision(namespace.region.name, '--overwrite-unknown')}"


def _look_at_raw(namespace: Namespace) -> Fitness:
    name, system = namespace.name, System()
    try:
        if blocks.has_pool_to_join(system, namespace):
            why = "raw on this host, devdax with a pool by what another host wrote"
            return Fitness(namespace, Verdict.UNUSED, why, f"engramdax provision --join {name}")
        there = blocks.namespace_contents(system, namespace, claim=False)
    except RefusedError as e:
        return Fitness(namespace, Verdict.MAP_DEV, e.problem, _recreate(namespace))
    except FormatError as e:
        return Fitness(namespace, Verdict.UNREADABLE, e.problem)
    except EngramdaxError:  # this user may not, or there is no node: provisioning looks itself
        return Fitness(namespace, Verdict.UNUSED, "in mode raw, not devdax", _provision(name))
    if there.state is State.EMPTY:
        return Fitness(namespace, Verdict.UNUSED, "in mode raw, not devdax", _provision(name))
    verdict, option = OCCUPIED[there.state]
    return Fitness(namespace, verdict, f"in mode raw, with {there.what}; {UNNEEDED}", _provision(name, option))


def _mounts(proc: Path) -> dict[tuple[int, int] | None, str]:
    """Give where each block device is mounted for this process."""
    found: dict[tuple[int, int] | None, str] = {}
    try:
        lines = (proc / "self" / "mountinfo").read_text(errors="backslashreplace").splitlines()
    except OSError:
        return found
    for line in lines:
        words = line.split()
        major, _, minor = words[2].partition(":")
        # Spaces and the like are in octal.
        place = re.sub(r"\\([0-7]{3})", lambda escaped: chr(int(escaped[1], 8)), words[4])
        found.setdefault((int(major), int(minor)), place)
    return found


def _swaps(proc: Path) -> list[str]:
    """Give what the kernel swaps on."""
    try:
        lines = (proc / "swaps").read_text(errors="backslashreplace").splitlines()
    except OSError:
        return []
    return [line.split()[0] for line in lines[1:] if line.strip()]


def _of_nd_region(tree: Tree, region: NdRegion) -> Fitness | None:
    if region.driver is None:
        return Fitness(region, Verdict.DISABLED, "disabled", f"ndctl enable-region {region.name}")
    if not region.available:
        return None
    if region.available < SMALLEST_POOL:
        return Fitness(region, Verdict.TOO_SMALL, f"{region.available} bytes of it are free")
    why = f"{region.available} bytes of it belong to no namespace"
    others = [n for n in tree.namespaces if n.region == region and not n.seed]
    options = ("--size", str(region.available)) if others else ()
    return Fitness(region, Verdict.UNUSED, why, _provision(region.name, *options))


def _of_cxl_region(tree: Tree, region: CxlRegion) -> Fitness | None:
    if tree.dax_devices_of(region) or any(r.cxl_region == region for r in tree.nd_regions):
        return None
    missing = [str(i) for i, target in enumerate(region.targets) if target.memdev is None]
    if missing or len(region.targets) != (region.ways or len(region.targets)):
        why = f"target {', '.join(missing) or len(region.targets)} of {region.ways} is missing"
        return Fitness(region, Verdict.INCOMPLETE, why, f"cxl destroy-region -f {region.name}")
    if not region.enabled:
        locked = f" with locked decoders ({', '.join(d.name for d in region.locked)})" if region.locked else ""
        return Fitness(region, Verdict.DISABLED, f"disabled{locked}", f"cxl enable-region {region.name}")
    if region.mode == "pmem":
        return Fitness(region, Verdict.NO_DRIVER, "not on the nvdimm bus", "modprobe cxl_pmem")
    return Fitness(region, Verdict.NO_DRIVER, "without a dax device", "modprobe dax_cxl")


def _of_memdev(tree: Tree, memdev: Memdev) -> Fitness:
    if memdev.driver is None:
        return Fitness(memdev, Verdict.DISABLED, "disabled", f"cxl enable-memdev {memdev.name}")
    sizes = {kind: size for kind, size in (("ram", memdev.ram_size), ("pmem", memdev.pmem_size)) if size}
    if not sizes:
        return Fitness(memdev, Verdict.TOO_SMALL, "the device tells of no memory")
    name = lasting_name(memdev, tree)
    if "pmem" in sizes and _has_labels(memdev):
        why = "in no region, but its labels say that a namespace is on it"
        return Fitness(memdev, Verdict.UNUSED, why, f"engramdax provision --join {name}")
    problems = []
    for kind, size in sizes.items():
        try:
            find_decoder(tree, [memdev], kind, size, None)
        except BackingError as e:
            problems.append(e.problem)
            continue
        options = ("--type", kind) if len(sizes) > 1 else ()
        return Fitness(memdev, Verdict.UNUSED, f"in no region: {size} bytes of {kind}", _provision(name, *options))
    return Fitness(memdev, Verdict.UNUSED, f"in no region, and {'; '.join(problems)}")


def _has_labels(memdev: Memdev) -> bool:
    """Tell whether namespaces stand on it; only root can, and with the program `cxl`."""
    try:
        return bool(read_labels(memdev))
    except (EngramdaxError, OSError):
        return False
