# SPDX-License-Identifier: Apache-2.0
"""Steps that change devices: whatever fails, what was there before is there again, and the step is named."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from programs import FAILURES, Programs, change, picture
from trees import MIB, Sysfs, make_node

from engramdax.devices import changes, tools
from engramdax.devices.decoders import find_decoder
from engramdax.devices.provision import Wish, plan_provision, region_uuid
from engramdax.devices.system import System
from engramdax.errors import BackingError, EngramdaxError, ParameterError, RefusedError, ToolError
from engramdax.pool.steps import carry_out

pytestmark = pytest.mark.unsanitized  # next to nothing of it is in C


@dataclass
class Host:
    """A host to provision on: its devices and its programs."""

    sysfs: Sysfs
    programs: Programs
    root: Path

    @property
    def system(self) -> System:
        return System(self.sysfs.root, self.sysfs.dev, self.root / "proc")

    def node(self, name: str, numbers: str) -> None:
        if not make_node(self.sysfs.dev / name, numbers):
            pytest.skip("only root may make device nodes")

    def changed(self, name: str, build: Callable[[Sysfs], object]) -> tuple[str, str]:
        """Give scripts that make the host what `build` says, and what it is now."""
        after = object.__new__(Sysfs)
        after.root, after.dev = self.root / name, self.sysfs.dev
        shutil.copytree(self.sysfs.root, after.root, symlinks=True)
        build(after)
        return change(self.sysfs.root, after.root)

    def picture(self) -> dict[str, str]:
        return picture(self.sysfs.root)


@pytest.fixture
def host(sysfs: Sysfs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    programs = Programs(tmp_path)
    monkeypatch.setenv("PATH", str(programs.folder))
    monkeypatch.setattr(tools, "SBIN", "")
    monkeypatch.setattr("engramdax.devices.system.SETTLE_SECONDS", 0.3)
    (tmp_path / "proc").mkdir()
    policy = sysfs.root / "devices/system/memory"
    policy.mkdir(parents=True)
    (policy / "auto_online_blocks").write_text("online\n")
    return Host(sysfs, programs, tmp_path)


@pytest.fixture
def volatile(host: Host) -> Host:
    """Give a host with one memdev whose volatile memory is in no region, and programs that put it there."""
    host.sysfs.root_decoder()
    decoder = host.sysfs.memdev(1, "0xfedcba9876543210")

    def region(sysfs: Sysfs) -> None:
        parent = sysfs.cxl_region("region2", [decoder])
        sysfs.dax("dax2.0", parent, driver=None)
        sysfs.dax_region(parent, id=2, size=256 * MIB, align=2 * MIB, available_size=0)

    host.node("dax2.0", "252:20")
    make, destroy = host.changed("region", region)
    host.programs.says("cxl", "create-region", f'{make}; echo \'{{"region":"region2"}}\'')
    host.programs.says("cxl", "destroy-region", destroy)
    place = host.sysfs.root / "devices/platform/ACPI0017:00/root0/decoder0.0/region2/dax_region2/dax2.0"
    driver = os.path.relpath(
        host.sysfs.root / "bus/dax/drivers/device_dax", host.sysfs.root / place.relative_to(host.sysfs.root)
    )
    host.programs.says("daxctl", "reconfigure-device", f"ln -s '{driver}' '{place}/driver'")
    host.programs.says("daxctl", "disable-device", f"rm '{place}/driver'")
    return host


def test_memdev_becomes_a_region_while_new_memory_stays_offline(volatile: Host) -> None:
    policy = volatile.system.online_policy
    volatile.programs.says(
        "daxctl",
        "reconfigure-device",
        volatile.programs._verbs["daxctl"]["reconfigure-device"] + f"; cat {policy} >>{volatile.programs.log}",
    )
    plan = plan_provision(volatile.system, "0xfedcba9876543210", Wish(name="p"))
    what = [step.what for step in plan.steps]
    assert what[0] == f"write offline to {policy}"
    assert what[1] == "run `cxl create-region -t ram -d decoder0.0 -w 1 -m mem1`"
    assert what[2].startswith("run `daxctl reconfigure-device -m devdax`")
    assert what[3] == f"write online to {policy} again"
    carry_out(plan.steps[:5])
    assert volatile.programs.commands() == [
        "cxl create-region -t ram -d decoder0.0 -w 1 -m mem1",
        "daxctl reconfigure-device -m devdax dax2.0",
        "offline",
    ]
    assert policy.read_text() == "online"


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("verb", ["cxl create-region", "daxctl reconfigure-device"])
def test_step_that_fails_is_named_and_undone_with_those_before(volatile: Host, *, verb: str, failure: str) -> None:
    before = volatile.picture()
    program, name = verb.split()
    volatile.programs.says(program, name, FAILURES[failure])
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    kind = RefusedError if failure == "busy" else ToolError
    with pytest.raises(kind, match=f"`{verb} ") as raised:
        carry_out(plan.steps)
    assert not getattr(raised.value, "__notes__", [])
    said = {"busy": "EBUSY", "no such device": "ENXIO", "nothing done": "exit code 0, but nothing was done"}
    assert said.get(failure, "killed by SIGKILL") in str(raised.value)
    assert without_newlines(volatile.picture()) == without_newlines(before)


def without_newlines(found: dict[str, str]) -> dict[str, str]:
    return {name: text.strip() for name, text in found.items()}


@pytest.mark.parametrize("program", ["cxl", "daxctl"])
def test_program_that_is_missing_is_named_and_what_was_done_is_undone(volatile: Host, program: str) -> None:
    before = volatile.picture()
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    volatile.programs.uninstall(program)
    with pytest.raises(ToolError, match=f"{program} is not installed"):
        carry_out(plan.steps)
    assert without_newlines(volatile.picture()) == without_newlines(before)


def test_program_that_is_killed_when_half_done_leaves_nothing_behind(volatile: Host) -> None:
    before = volatile.picture()
    make = volatile.programs._verbs["cxl"]["create-region"]
    place = volatile.sysfs.root / "bus/cxl/devices/region2/commit"
    volatile.programs.says("cxl", "create-region", f"{make}; echo 0 >{place}; kill -9 $$")
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    with pytest.raises(ToolError, match=r"`cxl create-region .*`: killed by SIGKILL"):
        carry_out(plan.steps)
    assert "cxl destroy-region -f region2" in volatile.programs.commands()
    assert without_newlines(volatile.picture()) == without_newlines(before)


def test_program_that_did_its_work_and_failed_afterwards_is_believed_by_its_work(volatile: Host) -> None:
    make = volatile.programs._verbs["cxl"]["create-region"]
    volatile.programs.says("cxl", "create-region", f"{make}; echo 'no such thing' >&2; exit 1")
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    carry_out(plan.steps[:4])
    assert volatile.system.tree().dax("dax2.0") is not None


def test_last_step_that_fails_undoes_all(volatile: Host) -> None:
    before = volatile.picture()
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    with pytest.raises(BackingError, match=r"dax2\.0"):  # there is no such device to open
        carry_out(plan.steps)
    assert volatile.programs.commands()[-1] == "cxl destroy-region -f region2"
    assert without_newlines(volatile.picture()) == without_newlines(before)


def test_undo_that_fails_is_said_too(volatile: Host) -> None:
    volatile.programs.says("daxctl", "reconfigure-device", "exit 250")
    volatile.programs.says("cxl", "destroy-region", "exit 240")
    plan = plan_provision(volatile.system, "mem1", Wish(name="p"))
    with pytest.raises(ToolError) as raised:
        carry_out(plan.steps)
    (note,) = raised.value.__notes__
    assert note.startswith("undoing «run `cxl create-region")
    assert "EBUSY" in note


def test_step_says_in_the_system_log_what_was_run(volatile: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(changes, "log", lines.append)
    carry_out(plan_provision(volatile.system, "mem1", Wish(name="p")).steps[:4])
    assert lines == [
        "ran `cxl create-region -t ram -d decoder0.0 -w 1 -m mem1`: done",
        "ran `daxctl reconfigure-device -m devdax dax2.0`: done",
    ]


def test_kmem_that_writes_to_new_memory_is_a_reason_to_refuse(volatile: Host) -> None:
    place = volatile.sysfs.root / "module/memory_hotplug/parameters"
    place.mkdir(parents=True)
    (place / "memmap_on_memory").write_text("Y\n")
    with pytest.raises(RefusedError, match="kmem would write its page structures"):
        plan_provision(volatile.system, "mem1", Wish())


def test_old_cxl_is_refused_before_anything_is_done(volatile: Host) -> None:
    volatile.programs.says("cxl", "--version", "echo 76.1")
    before = volatile.picture()
    with pytest.raises(ToolError, match=r"cxl 76\.1 cannot create volatile"):
        carry_out(plan_provision(volatile.system, "mem1", Wish()).steps)
    assert volatile.programs.commands() == []
    assert without_newlines(volatile.picture()) == without_newlines(before)


# What a target means.


def test_memory_online_as_system_ram_is_not_touched_unasked(host: Host) -> None:
    host.sysfs.dax("dax1.0", driver="kmem", dev="252:1")
    memory = host.sysfs.root / "devices/system/memory"
    (memory / "block_size_bytes").write_text("8000000\n")
    for number in (32, 33):
        block = host.sysfs.device("memory", f"system/memory/memory{number}")
        (block / "state").write_text("online\n")
        (block / "phys_index").write_text(f"{number:08x}\n")
    with pytest.raises(RefusedError, match=r"dax1\.0 is online as system RAM.*--offline-memory.*EBUSY"):
        plan_provision(host.system, "dax1.0", Wish())
    plan = plan_provision(host.system, "dax1.0", Wish(offline_memory=True))
    host.programs.says("daxctl", "offline-memory", FAILURES["busy"])
    host.programs.says("daxctl", "online-memory", "exit 0")
    assert [step.what for step in plan.steps][:2] == [
        "run `daxctl offline-memory dax1.0`",
        "run `daxctl reconfigure-device -m devdax` on dax1.0",
    ]
    with pytest.raises(RefusedError, match=r"`daxctl offline-memory dax1\.0`.*EBUSY"):
        carry_out(plan.steps)


def test_device_that_is_held_by_a_process_is_refused(host: Host) -> None:
    host.sysfs.dax("dax1.0", dev="252:1")
    host.node("dax1.0", "252:1")
    process = host.root / "proc" / "4321"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "7").symlink_to(host.sysfs.dev / "dax1.0")
    (process / "comm").write_text("reader\n")
    with pytest.raises(RefusedError, match=r"dax1\.0 is in use by process 4321 \(reader\)"):
        plan_provision(host.system, "dax1.0", Wish())


@pytest.mark.parametrize(
    ("target", "kind", "said"),
    [
        ("dax7.7", BackingError, "there is no dax7.7 on this host; there is dax1.0"),
        ("namespace7.7", BackingError, "there is no namespace7.7 on this host; there is none of that kind"),
        ("region7", BackingError, "there is no region7 on this host"),
        ("mem7", BackingError, r"there is no memdev mem7 on this host; there is mem1 \(0x11\), mem2 \(0x22\)"),
        ("0x33", BackingError, "there is no memdev 0x33 on this host"),
        ("mem1,mem1", ParameterError, "names a memdev twice"),
        ("mem1,banana", ParameterError, "'mem1,banana' is no device, namespace, region or memdev"),
        ("banana", ParameterError, "'banana' is no device, namespace, region or memdev"),
    ],
)
def test_target_that_is_not_there_is_answered_by_what_is(
    host: Host, *, target: str, kind: type[EngramdaxError], said: str
) -> None:
    host.sysfs.dax("dax1.0", dev="252:1")
    host.sysfs.memdev(1, "0x11")
    host.sysfs.memdev(2, "0x22")
    with pytest.raises(kind, match=said):
        plan_provision(host.system, target, Wish())


def test_serial_that_two_memdevs_share_is_ambiguous(host: Host) -> None:
    host.sysfs.root_decoder()
    for number in (1, 2):
        host.sysfs.memdev(number, "0x0")
    with pytest.raises(ParameterError, match="2 memdevs have the serial 0x0: mem1, mem2; name one by its PCI address"):
        plan_provision(host.system, "0x0", Wish())
    plan = plan_provision(host.system, "0000:02:00.0", Wish())
    assert any("-m mem2`" in step.what for step in plan.steps)


def test_without_a_target_the_one_place_is_taken_and_several_are_listed(host: Host) -> None:
    with pytest.raises(BackingError, match="there is no memory on this host that a pool can go on"):
        plan_provision(host.system, None, Wish())
    host.sysfs.root_decoder()
    host.sysfs.memdev(1, "0x11")
    plan = plan_provision(host.system, None, Wish())
    assert (plan.name, plan.size) == ("0x11", 256 * MIB)
    host.sysfs.memdev(2, "0x22")
    with pytest.raises(ParameterError, match="a pool can go on 2 places: mem1, mem2; name one"):
        plan_provision(host.system, None, Wish())


def test_memdevs_of_several_are_interleaved_in_the_order_that_was_said(host: Host) -> None:
    host.sysfs.root_decoder()
    for number in (1, 2, 3):
        host.sysfs.memdev(number, f"0x{number}{number}")
    plan = plan_provision(host.system, "mem3,0x11,mem2", Wish(granularity=4096))
    assert plan.size == 768 * MIB
    assert "run `cxl create-region -t ram -d decoder0.0 -w 3 -g 4096 -m mem3 mem1 mem2`" in [s.what for s in plan.steps]


def test_memdev_with_both_kinds_of_memory_needs_a_choice(host: Host) -> None:
    host.sysfs.root_decoder()
    host.sysfs.memdev(1, "0x11", pmem__size=hex(256 * MIB))
    with pytest.raises(ParameterError, match="mem1 has volatile and persistent memory; say --type ram or --type pmem"):
        plan_provision(host.system, "mem1", Wish())
    assert plan_provision(host.system, "mem1", Wish(mode="ram")).size == 256 * MIB


def test_window_without_room_is_said_with_its_room(host: Host) -> None:
    host.sysfs.root_decoder()
    host.sysfs.memdev(1, "0x11", ram__size=hex(8 << 30))
    with pytest.raises(
        BackingError, match=f"no root decoder has {8 << 30} bytes free for ram memory of mem1: decoder0.0"
    ):
        plan_provision(host.system, "mem1", Wish())
    (memdev,) = host.system.tree().memdevs
    with pytest.raises(ParameterError, match=r"decoder9\.9 is no root decoder"):
        find_decoder(host.system.tree(), [memdev], "ram", 1, "decoder9.9")


def test_pmem_regions_uuid_comes_from_the_serials_and_their_order(host: Host) -> None:
    for number in (1, 2):
        host.sysfs.memdev(number, f"0x{number}{number}")
    tree = host.system.tree()
    first, second = tree.memdevs
    assert region_uuid(tree, [first, second]) == region_uuid(tree, [first, second])
    assert len({region_uuid(tree, these) for these in ([first], [second], [first, second], [second, first])}) == 4


@pytest.mark.parametrize("size", [1 * MIB, 3 * MIB + 1])
def test_slice_that_is_no_multiple_of_the_pages_is_refused(host: Host, size: int) -> None:
    host.sysfs.root_decoder()
    host.sysfs.memdev(1, "0x11")
    with pytest.raises(ParameterError, match="is no multiple of the pages' 2097152 bytes"):
        plan_provision(host.system, "mem1", Wish(size=size))
    with pytest.raises(BackingError, match="give a smaller --size"):
        plan_provision(host.system, "mem1", Wish(size=512 * MIB))


def test_align_of_a_device_that_is_there_cannot_be_chosen(host: Host) -> None:
    host.sysfs.dax("dax1.0", dev="252:1")
    with pytest.raises(ParameterError, match=r"dax1\.0 has pages of 2097152 bytes, not 1073741824"):
        plan_provision(host.system, "dax1.0", Wish(align=1 << 30))


def test_disabled_region_is_told_how_to_enable_it(host: Host) -> None:
    decoder = host.sysfs.memdev(1, "0x11")
    host.sysfs.cxl_region("region2", [decoder], driver=None)
    for target in ("region2", "mem1"):
        with pytest.raises(BackingError, match="region2 is disabled; `cxl enable-region region2` enables it"):
            plan_provision(host.system, target, Wish())
