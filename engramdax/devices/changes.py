# SPDX-License-Identifier: Apache-2.0
"""Steps that change a host's devices: each runs one of the field's programs, looks at sysfs, and can be undone.

A step that fails, however it does, leaves what was there before it: what the program did in part is taken back by the
step itself, what earlier steps did by `carry_out`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final, TypeVar

from engramdax.devices import blocks, tools
from engramdax.devices.tree import CxlRegion, DaxDevice, Map, Memdev, Mode, Namespace, Tree
from engramdax.errors import BackingError, RefusedError, ToolError
from engramdax.pool.provision import log
from engramdax.pool.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from engramdax.devices.system import System

T = TypeVar("T")

FAILED_SECONDS: Final = 0.5
"""How long to look for what a program that failed by its own account was to do."""


class Ground:
    """The device under a pool, and on the way there what it is made of. Each step looks it up in sysfs anew."""

    def __init__(self, system: System, device: str | None = None) -> None:
        self.system = system
        self.device = device
        """Name of the dax device, once it is there."""
        self.region: str | None = None
        """Of a CXL region that a step made."""
        self.namespace: str | None = None
        """Of a raw namespace that a step made."""
        self.made: list[str] = []
        self.before = ""
        """As in an Assembly."""

    def find_device(self, tree: Tree) -> DaxDevice:
        """Give the dax device, or the one of the region that was made."""
        if self.device is not None:
            found = [d for d in (tree.dax(self.device),) if d is not None]
        else:
            region = tree.cxl_region(self.region) if self.region else None
            found = [d for d in tree.dax_devices_of(region) if d.size] if region else []
        if len(found) != 1:
            where = self.device or self.region or "the region"
            raise BackingError(f"{where} has {len(found)} dax devices now", remedy="look at it with `daxctl list`")
        return found[0]


def run(system: System, arguments: Sequence[str], look: Callable[[Tree], T | None], clean_up: Callable[[], None]) -> T:
    """Run a program, and give what `look` then finds in sysfs; where it finds nothing, clean up and raise.

    ToolError, or RefusedError where the kernel said that something is busy.
    """
    try:
        done = tools.run(arguments)
        found = system.wait_for(look) if done.code == 0 else system.wait_for(look, seconds=FAILED_SECONDS)
        log(f"ran `{done.command}`: {'done' if found is not None else done.problem}")
        if found is None:
            kind = RefusedError if done.code == 256 - errno.EBUSY else ToolError
            raise kind(f"`{done.command}`: {done.problem}", remedy="the kernel's log (dmesg) may say more")
    except BaseException as e:
        try:
            clean_up()
        except Exception as cleaning:  # noqa: BLE001 - the first error is the one to report
            e.add_note(f"cleaning up after `{tools.command_text(arguments)}` failed too: {cleaning}")
        raise
    return found


def _nothing() -> None:
    """Clean up after what leaves nothing behind when it fails."""


def _true(*, is_so: bool) -> bool | None:
    return True if is_so else None


def memory_kept_offline(system: System) -> tuple[Step, Step] | None:
    """Give the steps around the making of a region, while which no driver may make it system RAM; None if none may.

    With kmem, a new region's memory is online, and overwritten, before anybody can say that it is a pool.
    """
    policy = system.read_online_policy()
    if policy in (None, "offline"):
        return None
    return (
        Step(
            f"write offline to {system.online_policy}",
            lambda: system.write_online_policy("offline"),
            lambda: system.write_online_policy(policy),
        ),
        Step(
            f"write {policy} to {system.online_policy} again",
            lambda: system.write_online_policy(policy),
            lambda: system.write_online_policy("offline"),
        ),
    )


def make_region(
    ground: Ground,
    memdevs: Sequence[Memdev],
    mode: str,
    *,
    decoder: str,
    granularity: int | None,
    uuid: str | None,
    in_order: bool,
) -> Step:
    """Give the step that makes a CXL region of these memdevs; `in_order` where another host has one already."""
    system = ground.system
    names = [m.name for m in memdevs]
    arguments = ["cxl", "create-region", "-t", mode, "-d", decoder, "-w", str(len(names))]
    arguments += ["-g", str(granularity)] if granularity else []
    arguments += ["-U", uuid] if uuid else []
    arguments += ["-m", *names]
    before: set[str] = set()

    def look(tree: Tree) -> CxlRegion | None:
        for region in tree.cxl_regions:
            found = [m.name for m in region.memdevs]
            fits = found == names or (not in_order and sorted(found) == sorted(names))
            if region.name not in before and region.enabled and region.mode in (mode, None) and fits:
                return region
        return None

    def clean_up() -> None:
        for region in system.tree().cxl_regions:
            ours = {m.name for m in region.memdevs} <= set(names)
            if region.name not in before and region.decoder == decoder and ours:
                destroy_region(system, region.name)

    def do() -> None:
        if mode == "ram":
            tools.require_ram_regions()
        before.update(r.name for r in system.tree().cxl_regions)
        ground.region = run(system, arguments, look, clean_up).name
        ground.made.append("region")

    def undo() -> None:
        if ground.region is not None:
            destroy_region(system, ground.region)

    return Step(f"run `{tools.command_text(arguments)}`", do, undo)


def destroy_region(system: System, name: str) -> None:
    """Take a CXL region away."""
    command = ["cxl", "destroy-region", "-f", name]
    run(system, command, lambda tree: _true(is_so=tree.cxl_region(name) is None), _nothing)


def reread_memdev(ground: Ground, memdev: Memdev) -> Step:
    """Give the step that lets the kernel read a memdev's labels again: it keeps what it read at boot."""
    system, name = ground.system, memdev.name
    off, on = ["cxl", "disable-memdev", "-f", name], ["cxl", "enable-memdev", name]

    def enabled(tree: Tree) -> bool | None:
        found = tree.memdev_named(name)
        ports = [p for p in tree.ports if p.uport == name]
        return _true(is_so=found is not None and found.driver is not None and bool(ports))

    def enable() -> None:
        run(system, on, enabled, _nothing)

    def do() -> None:
        def disabled(tree: Tree) -> bool | None:
            found = tree.memdev_named(name)
            return _true(is_so=found is None or found.driver is None)

        run(system, off, disabled, enable)
        enable()

    return Step(f"run `{tools.command_text(off)}` and `{tools.command_text(on)}`", do)


def make_raw_namespace(
    ground: Ground, region: str | None, check: Callable[[Namespace], None], *, size: int | None = None
) -> Step:
    """Give the step that takes free space of a region, None being the one made, and lets `check` look at it.

    That writes a label and not the media. Only a raw namespace shows what stood there before a devdax one writes its
    info block over it.
    """
    system = ground.system
    before: set[str | None] = set()

    def name() -> str:
        return region or ground.region or ""

    def ours(tree: Tree) -> list[Namespace]:
        here = [n for n in tree.namespaces if n.region and n.region.name == name() and not n.seed]
        return [n for n in here if n.uuid not in before]

    def look(tree: Tree) -> Namespace | None:
        return next((n for n in ours(tree) if n.enabled and n.blocks), None)

    def clean_up() -> None:
        for namespace in ours(system.tree()):
            destroy_namespace(system, namespace.name)

    def do() -> None:
        if system.wait_for(lambda tree: _true(is_so=bool((r := tree.nd_region(name())) and r.driver))) is None:
            raise BackingError(
                f"{name()} is not on the nvdimm bus", remedy="load the modules cxl_pmem and nd_pmem (modprobe)"
            )
        before.update(n.uuid for n in system.tree().namespaces if n.region and n.region.name == name())
        command = ["ndctl", "create-namespace", "-r", name(), "-m", "raw", *(["-s", str(size)] if size else [])]
        found = run(system, command, look, clean_up)
        try:
            check(found)
        except BaseException:
            clean_up()
            raise
        ground.namespace = found.name

    how = f" -s {size}" if size else ""
    return Step(
        f"run `ndctl create-namespace -m raw{how}` in {region or 'the region'}, and look at what is there", do, clean_up
    )


def make_namespace(ground: Ground, place: Namespace | None, *, align: int | None = None) -> Step:
    """Give the step that makes a raw or fsdax namespace a devdax one, None being the raw one that was made.

    Its page structures are in the host's own memory: on the device, each host would write them over the others'.
    """
    system = ground.system
    options = ["-m", "devdax", "-M", "mem", *(["-a", str(align)] if align else [])]
    old = place
    before: set[tuple[str, str | None, str]] = set()
    head = b""
    made = ""

    def look(tree: Tree) -> tuple[Namespace, DaxDevice] | None:
        for found in tree.namespaces:
            here = found.region and old and old.region and found.region.name == old.region.name and not found.seed
            if not here or (found.name, found.uuid, found.mode) in before:
                continue
            if found.mode == "devdax" and found.map is Map.MEM and found.enabled:
                for device in tree.dax_devices_of(found):
                    if device.mode is Mode.DEVDAX and device.node_exists and align in (None, device.align):
                        return found, device
        return None

    def put_back() -> None:
        if old is not None and old.region is not None:
            blocks.write_head(system, restore_namespace(system, made or old.name, old, old.mode), head)

    def do() -> None:
        nonlocal old, head, made
        tree = system.tree()
        old = place or tree.namespace(ground.namespace or "")
        if old is None:
            raise BackingError(f"{ground.namespace} is gone", remedy="somebody else works on this host's devices")
        before.update((n.name, n.uuid, n.mode) for n in tree.namespaces)
        head = blocks.read_head(system, old)
        namespace, device = run(system, ["ndctl", "create-namespace", "-f", "-e", old.name, *options], look, put_back)
        made, ground.device = namespace.name, device.name
        ground.made.append("namespace")
        ground.before = place.mode if place else ""

    command = ["ndctl", "create-namespace", "-f", *(["-e", place.name] if place else []), *options]
    return Step(f"run `{tools.command_text(command)}`{'' if place else ' on that namespace'}", do, put_back)


def destroy_namespace(system: System, name: str) -> None:
    """Take a namespace away; its space is free."""

    def gone(tree: Tree) -> bool | None:
        found = tree.namespace(name)
        return _true(is_so=found is None or found.seed or not found.enabled)

    run(system, ["ndctl", "destroy-namespace", "-f", name], gone, _nothing)


def restore_namespace(system: System, name: str, old: Namespace, mode: str) -> Namespace:
    """Give the namespace at the place of `old`, called `name` now, a mode again, or make it anew where it is gone."""
    region = old.region.name if old.region else ""

    def there(tree: Tree) -> Namespace | None:
        here = [n for n in tree.namespaces if n.region and n.region.name == region and not n.seed]
        return next((n for n in here if n.resource == old.resource and n.mode == mode and n.enabled), None)

    tree = system.tree()
    if found := there(tree):
        return found
    now = tree.namespace(name)
    options = ["-m", mode, *(["-M", old.map.value] if old.map and mode == "fsdax" else [])]
    if now is None or now.seed:
        size = ["-s", str(old.raw_size)] if old.raw_size else []
        command = ["ndctl", "create-namespace", "-r", region, *options, *size]
    elif now.mode == mode:
        command = ["ndctl", "enable-namespace", name]
    else:
        command = ["ndctl", "create-namespace", "-f", "-e", name, *options]
    return run(system, command, there, _nothing)


def reread_namespace(ground: Ground, namespace: Namespace) -> Step:
    """Give the step that lets the kernel look again at what stands on the media, where another host made devdax."""
    system, name = ground.system, namespace.name
    off, on = ["ndctl", "disable-namespace", name], ["ndctl", "enable-namespace", name]

    def there(tree: Tree) -> DaxDevice | None:
        found = tree.namespace(name)
        if found is None or found.mode != "devdax":
            return None
        devices = [d for d in tree.dax_devices_of(found) if d.mode is Mode.DEVDAX and d.node_exists]
        return devices[0] if devices else None

    def enabled(tree: Tree) -> bool | None:
        found = tree.namespace(name)
        return _true(is_so=found is not None and found.enabled)

    def enable() -> None:
        if not enabled(system.tree()):
            run(system, on, enabled, _nothing)

    def do() -> None:
        def disabled(tree: Tree) -> bool | None:
            found = tree.namespace(name)
            return _true(is_so=found is not None and not found.enabled)

        if namespace.enabled:
            run(system, off, disabled, enable)
        ground.device = run(system, on, there, enable).name

    commands = [on] if not namespace.enabled else [off, on]
    return Step("run " + " and ".join(f"`{tools.command_text(c)}`" for c in commands), do)


def offline_memory(ground: Ground, device: DaxDevice) -> Step:
    """Give the step that takes a device's memory out of the system's RAM."""
    system, name = ground.system, device.name
    off, on = ["daxctl", "offline-memory", name], ["daxctl", "online-memory", name]

    def is_off(tree: Tree) -> bool | None:
        found = tree.dax(name)
        return _true(is_so=found is not None and found.online_blocks == 0)

    def is_on(tree: Tree) -> bool | None:
        found = tree.dax(name)
        return _true(is_so=found is not None and found.online_blocks == device.online_blocks)

    def put_back() -> None:
        if not is_on(system.tree()):
            run(system, on, is_on, _nothing)

    return Step(f"run `{tools.command_text(off)}`", lambda: run(system, off, is_off, put_back), put_back)


def enable_device(ground: Ground) -> Step:
    """Give the step that makes the dax device a devdax one."""
    system = ground.system
    before: DaxDevice | None = None

    def put_back() -> None:
        if before is not None:
            disable_device(system, before.name, before.mode)

    def do() -> None:
        nonlocal before
        found = ground.find_device(system.tree())
        ground.device = found.name
        if found.mode is Mode.DEVDAX and found.node_exists:
            return
        if found.online_blocks:
            raise RefusedError(
                f"{found.name} became system RAM as soon as it was there",
                remedy="boot with memhp_default_state=offline, and look for udev rules that online memory",
            )
        before = found

        def look(tree: Tree) -> bool | None:
            device = tree.dax(found.name)
            return _true(is_so=device is not None and device.mode is Mode.DEVDAX and device.node_exists)

        run(system, ["daxctl", "reconfigure-device", "-m", "devdax", found.name], look, put_back)
        ground.made.append("mode")
        ground.before = ground.before or found.mode.value

    name = ground.device or "the region's dax device"
    return Step(f"run `daxctl reconfigure-device -m devdax` on {name}", do, put_back)


def disable_device(system: System, name: str, mode: Mode) -> None:
    """Give a dax device the mode back that it had: no driver, or offline memory of the system."""
    device = system.tree().dax(name)
    if device is None or device.mode is mode:
        return

    def look(tree: Tree) -> bool | None:
        found = tree.dax(name)
        return _true(is_so=found is None or found.mode is mode)

    command = ["daxctl", "disable-device", name]
    if mode is Mode.SYSTEM_RAM:
        command = ["daxctl", "reconfigure-device", "-m", "system-ram", "--no-online", name]
    run(system, command, look, _nothing)


def clear_region(ground: Ground) -> Step:
    """Give the step that frees a region that was just made, to cut a part of it: its device takes all of it."""
    system = ground.system

    def do() -> None:
        device = ground.find_device(system.tree())
        region = device.region

        def look(tree: Tree) -> bool | None:
            # All of it: a slice has to begin where its region does, on every host.
            taken = [d for d in tree.dax_devices if d.size and region and d.region and d.region.path == region.path]
            return _true(is_so=not taken)

        if device.mode is not Mode.DISABLED:
            disable_device(system, device.name, Mode.DISABLED)
        run(system, ["daxctl", "destroy-device", device.name], look, _nothing)

    return Step("run `daxctl destroy-device` on the region's dax device", do)


def make_slice(ground: Ground, region_id: int | None, size: int, align: int | None) -> Step:
    """Give the step that cuts a device of `size` bytes from a dax region, None being that of the region made."""
    system = ground.system
    before: set[str] = set()
    made = ""

    def look(tree: Tree) -> DaxDevice | None:
        fresh = [d for d in tree.dax_devices if d.name not in before and d.size == size]
        return next((d for d in fresh if align in (None, d.align) and (d.mode is Mode.DISABLED or d.node_exists)), None)

    def clean_up() -> None:
        for device in system.tree().dax_devices:
            if device.name not in before and device.region and device.region.id == _region(ground, region_id):
                destroy_device(system, device.name)

    def do() -> None:
        nonlocal made
        before.update(d.name for d in system.tree().dax_devices if d.size)
        command = ["daxctl", "create-device", "-r", str(_region(ground, region_id)), "-s", str(size)]
        command += ["-a", str(align)] if align else []
        made = ground.device = run(system, command, look, clean_up).name
        ground.made.append("slice")

    where = "the region" if region_id is None else f"-r {region_id}"
    pages = f" -a {align}" if align else ""
    return Step(f"run `daxctl create-device -s {size}{pages}` with {where}", do, lambda: destroy_device(system, made))


def _region(ground: Ground, region_id: int | None) -> int:
    if region_id is not None:
        return region_id
    tree = ground.system.tree()
    made = tree.cxl_region(ground.region) if ground.region else None
    found = [r.id for r in tree.dax_regions if made and r.cxl_region and r.cxl_region.name == made.name]
    if len(found) != 1 or found[0] is None:
        raise BackingError(f"{ground.region} has no dax region", remedy="look at it with `daxctl list -R`")
    return found[0]


def destroy_device(system: System, name: str) -> None:
    """Take a slice away; its space is free."""
    disable_device(system, name, Mode.DISABLED)

    def look(tree: Tree) -> bool | None:
        found = tree.dax(name)
        return _true(is_so=found is None or not found.size)

    run(system, ["daxctl", "destroy-device", name], look, _nothing)
