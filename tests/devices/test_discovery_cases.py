# SPDX-License-Identifier: Apache-2.0
"""Hosts that are rare, odd or half broken: sysfs written by hand with what kernels have been seen to say."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import DATA, GIB, MIB, Host, Sysfs, make_node, unpack

from engramdax.devices import reading
from engramdax.devices.fitness import Fitness, Verdict, assess, assess_dax
from engramdax.devices.reading import read_tree
from engramdax.devices.tree import DaxDevice, Mode, Origin, Tree
from engramdax.errors import BackingError

UINT64_MAX = (1 << 64) - 1


def one(tree: Tree) -> DaxDevice:
    (device,) = tree.dax_devices
    return device


def verdict_of(tree: Tree, name: str) -> Fitness:
    (found,) = (f for f in assess(tree) if f.part.name == name)
    return found


# Numbers.


def test_two_memdevs_with_serial_0_are_two_and_0_identifies_neither(sysfs: Sysfs) -> None:
    for number in (1, 2):
        sysfs.memdev(number, "0x0")
    tree = sysfs.read()
    assert [(m.name, m.serial) for m in tree.memdevs] == [("mem1", 0), ("mem2", 0)]
    assert tree.memdev(0) is None


@pytest.mark.parametrize(("text", "serial"), [("0123", 123), ("00", 0), ("9" * 20, None), ("0x" + "f" * 17, None)])
def test_serial_is_decimal_or_hexadecimal_and_no_longer_than_64_bits(
    sysfs: Sysfs, text: str, serial: int | None
) -> None:
    sysfs.memdev(1, text)
    assert [m.serial for m in sysfs.read().memdevs] == [serial]


@pytest.mark.parametrize("serial", [1 << 63, UINT64_MAX])
def test_serial_with_all_64_bits_is_a_serial(sysfs: Sysfs, serial: int) -> None:
    sysfs.memdev(1, hex(serial))
    found = sysfs.read().memdev(serial)
    assert found is not None
    assert found.name == "mem1"


@pytest.mark.parametrize(
    "text", ["-1", "-268435456", str(UINT64_MAX), hex(UINT64_MAX), "", "many", "0x", "1" * 30, "1 2"]
)
def test_size_that_is_none_is_unknown_and_no_number(sysfs: Sysfs, text: str) -> None:
    sysfs.dax("dax0.0", size=text)
    sysfs.dax_region(available_size=text, size=text)
    device = one(sysfs.read())
    assert device.size is None
    assert device.region is not None
    assert (device.region.size, device.region.available) == (None, None)
    assert verdict_of(sysfs.read(), "dax0.0").verdict is Verdict.UNREADABLE


def test_address_that_nobody_knows_is_unknown(sysfs: Sysfs) -> None:
    decoder = sysfs.memdev(1, "0x1")
    sysfs.cxl_region("region0", [decoder], resource=hex(UINT64_MAX))
    assert sysfs.read().cxl_regions[0].resource is None


def test_dax_region_without_align_is_whole_without_it(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0")
    sysfs.dax_region(id=0, size=256 * MIB)
    region = one(sysfs.read()).region
    assert region is not None
    assert (region.id, region.size, region.align, region.available) == (0, 256 * MIB, None, None)


@pytest.mark.parametrize(("text", "node"), [(None, None), ("-1", None), ("0", 0), ("3", 3)])
def test_target_node_is_missing_unknown_or_a_node_of_which_0_is_one(
    sysfs: Sysfs, text: str | None, node: int | None
) -> None:
    sysfs.dax("dax0.0", target_node=text)
    assert one(sysfs.read()).target_node == node


def test_devices_are_sorted_by_number(sysfs: Sysfs) -> None:
    for name in ("dax10.0", "dax2.10", "dax2.9", "dax1.0"):
        sysfs.dax(name)
    assert [d.name for d in sysfs.read().dax_devices] == ["dax1.0", "dax2.9", "dax2.10", "dax10.0"]


def test_device_is_found_by_name_node_and_number(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", dev="252:7")
    tree = sysfs.read()
    assert tree.dax("dax0.0") == tree.dax(sysfs.dev / "dax0.0") == tree.dax_by_number(os.makedev(252, 7)) == one(tree)
    assert tree.dax("dax0.1") is None
    assert tree.dax_by_number(os.makedev(1, 3)) is None


# Drivers and modes.


def test_device_without_a_driver_is_disabled(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", driver=None)
    assert one(sysfs.read()).mode is Mode.DISABLED
    found = verdict_of(sysfs.read(), "dax0.0")
    assert (found.verdict, found.command) == (Verdict.DISABLED, "engramdax provision dax0.0")


def test_device_whose_driver_is_not_loaded_is_told_to_load_it(sysfs: Sysfs) -> None:
    shutil.rmtree(sysfs.root / "bus/dax/drivers")
    sysfs.dax("dax0.0", driver=None)
    found = verdict_of(sysfs.read(), "dax0.0")
    assert found.verdict is Verdict.NO_DRIVER
    assert found.command == "modprobe device_dax && engramdax provision dax0.0"


def test_device_with_an_unknown_driver_is_neither_devdax_nor_ram(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", driver="fsdev_dax")
    assert one(sysfs.read()).mode is Mode.OTHER
    assert "fsdev_dax" in verdict_of(sysfs.read(), "dax0.0").why


@pytest.mark.parametrize(("driver", "mode"), [("device_dax", Mode.DEVDAX), ("kmem", Mode.SYSTEM_RAM)])
def test_driver_that_is_built_in_has_no_module_and_gives_the_mode(sysfs: Sysfs, driver: str, mode: Mode) -> None:
    # libdaxctl tells the mode by the driver's /module link, which a built-in one has not.
    sysfs.dax("dax0.0", driver=driver)
    assert not (sysfs.root / "bus/dax/drivers" / driver / "module").exists()
    assert one(sysfs.read()).mode is mode


def test_kmem_device_whose_address_is_root_s_to_read_counts_as_online(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", driver="kmem", resource=None)
    device = one(sysfs.read())
    assert (device.memory_blocks, device.online_blocks) == (None, None)
    assert verdict_of(sysfs.read(), "dax0.0").verdict is Verdict.SYSTEM_RAM


@pytest.mark.parametrize("states", [("online", "offline"), ("going-offline", "offline"), ("online", "online")])
def test_memory_blocks_inside_the_device_are_counted(sysfs: Sysfs, states: tuple[str, str]) -> None:
    sysfs.dax("dax0.0", driver="kmem", resource=hex(4 * GIB + MIB), size=384 * MIB)
    memory = sysfs.root / "devices/system/memory"
    memory.mkdir(parents=True)
    (memory / "block_size_bytes").write_text("8000000\n")
    for number, state in zip((32, 33, 34, 35), ("online", *states, "online"), strict=True):
        (memory / f"memory{number}").mkdir()
        (memory / f"memory{number}" / "state").write_text(state + "\n")
    device = one(sysfs.read())
    # 32 begins before it and 35 ends behind it: the kernel did not make those of this device.
    assert (device.memory_blocks, device.online_blocks) == (2, states.count("online"))


# Sizes and aligns.


def fit(sysfs: Sysfs) -> DaxDevice:
    """Give the one device, with a node whose numbers are its own."""
    return replace(one(sysfs.read()), node_exists=True)


def test_size_that_is_no_multiple_of_the_align_leaves_a_rest(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", size=16 * MIB + 4096)
    assert assess_dax(sysfs.read(), one(sysfs.read())).verdict is Verdict.NO_NODE  # nothing wrong with its size
    shutil.rmtree(sysfs.root / "devices/platform")
    (sysfs.root / "bus/dax/devices/dax0.0").unlink()
    sysfs.dax("dax0.0", size=16 * MIB - 4096)
    found = assess_dax(sysfs.read(), fit(sysfs))
    assert (found.verdict, "usable here are 14680064 bytes" in found.why) == (Verdict.TOO_SMALL, True)


def test_align_of_1_gib_on_a_region_of_2_mib_pages_is_too_large(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", align=GIB)
    sysfs.dax_region(align=2 * MIB, id=0)
    found = assess_dax(sysfs.read(), fit(sysfs))
    assert found.verdict is Verdict.ALIGN
    assert found.command.endswith("-a 2M dax0.0")


def test_seed_of_a_region_is_no_device_but_the_region_has_room(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", size=0, driver=None)
    sysfs.dax_region(id=4, available_size=GIB)
    found = assess(sysfs.read())
    assert [(f.part.name, f.verdict, f.command) for f in found] == [
        ("hmem.0", Verdict.UNUSED, "daxctl create-device -r 4")
    ]


# Interleaves, regions, decoders.


@pytest.mark.parametrize("order", [(3, 1, 2), (6, 1, 5, 2, 4, 3)])
def test_memdevs_of_an_interleave_come_in_target_order(sysfs: Sysfs, order: tuple[int, ...]) -> None:
    decoders = {number: sysfs.memdev(number, hex(0xA0 + number)) for number in sorted(order)}
    above = sysfs.cxl_region("region0", [decoders[n] for n in order], interleave_granularity=1024)
    sysfs.device("cxl", above, "cxl_dax_region", devtype="cxl_dax_region")
    sysfs.dax("dax0.0", above, size=256 * MIB * len(order))
    sysfs.dax_region(above, id=0)
    tree = sysfs.read()
    device = one(tree)
    assert [m.serial for m in device.memdevs] == [0xA0 + n for n in order]
    assert device.cxl_region is not None
    assert (device.cxl_region.ways, device.cxl_region.granularity) == (len(order), 1024)
    assert device.origin is Origin.CXL_RAM


def test_region_that_lacks_a_target_is_incomplete(sysfs: Sysfs) -> None:
    sysfs.cxl_region("region0", [sysfs.memdev(1, "0x1"), "", sysfs.memdev(2, "0x2")])
    region = sysfs.read().cxl_regions[0]
    assert [t.memdev and t.memdev.name for t in region.targets] == ["mem1", None, "mem2"]
    found = verdict_of(sysfs.read(), "region0")
    assert (found.verdict, found.why) == (Verdict.INCOMPLETE, "target 1 of 3 is missing")


@pytest.mark.parametrize(("commit", "driver"), [(0, "cxl_region"), (1, None), (0, None)])
def test_region_that_is_uncommitted_or_has_no_driver_is_disabled(sysfs: Sysfs, commit: int, driver: str | None) -> None:
    sysfs.cxl_region("region7", [sysfs.memdev(1, "0x1")], driver, commit=commit)
    found = verdict_of(sysfs.read(), "region7")
    assert (found.verdict, found.command) == (Verdict.DISABLED, "cxl enable-region region7")


def test_locked_decoders_are_named_where_they_matter(sysfs: Sysfs) -> None:
    decoder = sysfs.memdev(1, "0x1")
    (sysfs.root / "bus/cxl/devices" / decoder / "locked").write_text("1\n")
    sysfs.cxl_region("region0", [decoder], commit=0)
    region = sysfs.read().cxl_regions[0]
    assert [d.name for d in region.locked] == [decoder]
    assert f"locked decoders ({decoder})" in verdict_of(sysfs.read(), "region0").why


def test_hmem_device_at_the_address_of_a_cxl_region_has_its_memdevs(sysfs: Sysfs) -> None:
    # Firmware made the region and reserved it: the kernel's dax device hangs on the platform, not on the region.
    sysfs.cxl_region("region0", [sysfs.memdev(1, "0xabc")])
    sysfs.dax("dax0.0", resource="0x410000000")
    device = one(sysfs.read())
    assert (device.origin, [m.serial for m in device.memdevs]) == (Origin.HMEM, [0xABC])


def test_nvdimm_region_is_not_taken_for_a_cxl_region_without_targets_of_its_size(sysfs: Sysfs) -> None:
    sysfs.cxl_region("region5", [""], mode="pmem", resource="0x0")
    sysfs.device("nd", "LNXSYSTM:00/ndbus0", "nd_bus", provider="ACPI.NFIT")
    sysfs.device("nd", "LNXSYSTM:00/ndbus0/region0", "nd_region", size=256 * MIB, available_size=0, mappings=0)
    (region,) = sysfs.read().nd_regions
    assert region.cxl_region is None


def test_disabled_memdev_says_what_enables_it(sysfs: Sysfs) -> None:
    sysfs.memdev(1, "0x1")
    (sysfs.root / "bus/cxl/devices/mem1/driver").unlink()
    assert verdict_of(sysfs.read(), "mem1").command == "cxl enable-memdev mem1"


def test_memdev_too_large_for_every_window_says_so(sysfs: Sysfs) -> None:
    sysfs.root_decoder()
    sysfs.memdev(1, "0x1", ram__size=hex(8 * GIB))
    found = verdict_of(sysfs.read(), "mem1")
    assert found.why.startswith(f"in no region, and no root decoder has {8 * GIB} bytes free for ram memory of mem1")
    assert found.command == ""


# Texts.


def test_bytes_that_are_no_text_are_shown_escaped(sysfs: Sysfs) -> None:
    sysfs.memdev(1, "0x1", firmware_version=b"\xff\xfe\x1b[31mred\n")
    firmware = sysfs.read().memdevs[0].firmware
    assert firmware == "\\xff\\xfe\x1b[31mred"
    assert json.loads(json.dumps(firmware).encode()) == firmware


# What is not there, or not any more, or not for this user.


def test_host_without_any_of_it_has_an_empty_tree(tmp_path: Path) -> None:
    tree = read_tree(tmp_path, tmp_path)
    assert (tree.dax_devices, tree.memdevs, tree.unread) == ((), (), ())


def test_sysfs_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BackingError, match="nowhere: No such file"):
        read_tree(tmp_path / "nowhere")


def test_device_that_went_between_listing_and_looking_is_left_out(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0")
    shutil.rmtree(sysfs.dax("dax1.0", "platform/hmem.1"))
    tree = sysfs.read()
    assert [d.name for d in tree.dax_devices] == ["dax0.0"]
    assert tree.unread == ()


def test_devices_that_come_and_go_are_whole_or_not_there(sysfs: Sysfs) -> None:
    for number in range(8):
        sysfs.dax(f"dax{number}.0", f"platform/hmem.{number}")
    links = [sysfs.root / "bus/dax/devices" / f"dax{number}.0" for number in range(8)]
    new = sysfs.root / "new"
    over = threading.Event()
    turns = 0

    def come_and_go() -> None:
        nonlocal turns
        while not over.is_set():
            for link in links[1::2]:
                place, target = link.resolve(), link.readlink()
                shutil.copytree(place, new, symlinks=True)
                # As the kernel does it: the link first, then attribute by attribute; and whole when it comes again.
                link.unlink()
                shutil.rmtree(place)
                new.rename(place)
                link.symlink_to(target)
            turns += 1

    thread = threading.Thread(target=come_and_go)
    thread.start()
    counts = set()
    reads, end = 0, time.monotonic() + 60
    try:
        while reads < 300 or (len(counts) < 2 and time.monotonic() < end):
            reads += 1
            devices = sysfs.read().dax_devices
            counts.add(len(devices))
            for device in devices:
                assert (device.size, device.mode, device.target_node) == (256 * MIB, Mode.DEVDAX, 1)
            assert {d.name for d in devices} >= {f"dax{n}.0" for n in range(0, 8, 2)}
    finally:
        over.set()
        thread.join()
    assert turns > 0
    assert len(counts) > 1, "no device was ever away"


def test_container_without_the_node_is_told_to_get_it(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", dev="252:5")
    assert not one(sysfs.read()).node_exists
    found = verdict_of(sysfs.read(), "dax0.0")
    assert found.verdict is Verdict.NO_NODE
    assert found.command == f"mknod -m 0640 {sysfs.dev}/dax0.0 c 252 5"


def test_something_else_at_the_place_of_the_node_is_no_node(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", dev="252:5")
    (sysfs.dev / "dax0.0").symlink_to("/dev/null")
    assert not one(sysfs.read()).node_exists


def test_node_of_a_disabled_device_opens_with_enxio(sysfs: Sysfs) -> None:
    # Major 4095 is nobody's: the kernel answers open() as it does for a dax device without a driver.
    sysfs.dax("dax0.0", dev="4095:1")
    if not make_node(sysfs.dev / "dax0.0", "4095:1"):
        pytest.skip("only root may make device nodes")
    assert one(sysfs.read()).node_exists
    found = verdict_of(sysfs.read(), "dax0.0")
    assert (found.verdict, found.why) == (Verdict.DISABLED, "open() gives ENXIO")


AS_NOBODY = """
import os, sys
from pathlib import Path
from engramdax.devices.fitness import assess
from engramdax.devices.reading import read_tree
if os.geteuid() == 0:
    os.setgroups([]); os.setgid(65534); os.setuid(65534)
tree = read_tree(Path(sys.argv[1]), Path(sys.argv[2]))
for device in tree.dax_devices:
    print(device.name, device.size, device.resource, device.mode)
for unread in tree.unread:
    print("unread", unread.path, unread.denied)
for fitness in assess(tree):
    print("verdict", fitness.part.name, fitness.verdict, fitness.needs_root)
"""


@pytest.fixture
def open_sysfs() -> Sysfs:
    """Give a sysfs where other users get at, too."""
    folder = Path(tempfile.mkdtemp(prefix="engramdax-test-"))
    folder.chmod(0o755)
    yield Sysfs(folder)  # type: ignore[misc]
    for place in folder.rglob("*"):
        if not place.is_symlink():
            place.chmod(0o700)
    shutil.rmtree(folder)


def as_nobody(sysfs: Sysfs) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, sysfs.root, sysfs.dev], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_attribute_that_is_root_s_to_read_is_unknown_and_named(open_sysfs: Sysfs) -> None:
    place = open_sysfs.dax("dax0.0")
    (place / "resource").chmod(0)
    said = as_nobody(open_sysfs)
    assert f"dax0.0 {256 * MIB} None devdax" in said
    assert f"unread {place}/resource True" in said


def test_no_permission_on_anything_says_so_and_fails_nothing(open_sysfs: Sysfs) -> None:
    place = open_sysfs.dax("dax0.0")
    for file in place.iterdir():
        if not file.is_symlink():
            file.chmod(0)
    (open_sysfs.root / "bus/cxl/devices").mkdir(parents=True)
    (open_sysfs.root / "bus/cxl/devices").chmod(0)
    open_sysfs.dax("dax1.0", "platform/hmem.1").chmod(0)
    said = as_nobody(open_sysfs)
    assert "dax0.0 None None devdax" in said
    assert f"unread {open_sysfs.root}/bus/cxl/devices True" in said
    assert f"unread {open_sysfs.root}/bus/dax/devices/dax1.0 True" in said
    assert "verdict dax0.0 unreadable False" in said


def test_node_that_is_root_s_alone_needs_root(open_sysfs: Sysfs) -> None:
    # /dev/mem's numbers: a node that can be made where dax is not, and that nobody but root opens.
    open_sysfs.dax("dax0.0", dev="1:1")
    if not make_node(open_sysfs.dev / "dax0.0", "1:1"):
        pytest.skip("only root may make device nodes")
    assert "verdict dax0.0 no-permission True" in as_nobody(open_sysfs)


# A tree need not come from a kernel.


def test_attributes_that_are_no_files_are_errors_of_their_own(sysfs: Sysfs) -> None:
    place = sysfs.dax("dax0.0", size=None, align=None, target_node=None)
    os.mkfifo(place / "size")  # must not block
    (place / "elsewhere").write_text("4096\n")
    (place / "align").symlink_to("elsewhere")
    (place / "target_node").mkdir()
    tree = sysfs.read()
    assert (one(tree).size, one(tree).align, one(tree).target_node) == (None, None, None)
    assert {u.path.name for u in tree.unread} == {"align", "target_node"}


def test_attribute_longer_than_a_page_is_cut_and_no_number(sysfs: Sysfs) -> None:
    sysfs.dax("dax0.0", size="1" * 10_000)
    assert one(sysfs.read()).size is None


@pytest.mark.parametrize("link", ["../../../../../../../../etc", "/etc", "a/" * 700 + "b", ".."])
def test_device_whose_link_leads_out_or_nowhere_is_not_followed(sysfs: Sysfs, link: str) -> None:
    sysfs.dax("dax0.0")
    (sysfs.root / "bus/dax/devices/dax1.0").symlink_to(link)
    tree = sysfs.read()
    assert [d.name for d in tree.dax_devices if d.name == "dax0.0"] == ["dax0.0"]
    assert all(d.size is None for d in tree.dax_devices if d.name == "dax1.0")


def test_names_that_no_kernel_gives_are_passed_over(sysfs: Sysfs) -> None:
    place = sysfs.dax("dax0.0")
    for name in ("dax", "dax0", "dax0.", "dax0.0.0", "dax0.0x", "xdax0.0", "dax-1.0", "dax0.0\n", "dax\udcff.0"):
        (sysfs.root / "bus/dax/devices" / name).symlink_to(place)
    assert [d.name for d in sysfs.read().dax_devices] == ["dax0.0"]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Host:
    """Give a captured host to spoil."""
    return unpack(DATA / "devdax-h0.tar.gz", tmp_path_factory.mktemp("scratch"))


def test_device_number_that_no_device_can_have_is_unknown() -> None:
    for number in ("99999999999:5", "4096:0", "1:1048576", "-1:0", "1:"):
        assert reading._numbers(number.encode()) is None, number
    assert reading._numbers(b"4095:1048575") == (4095, 1048575)


@settings(max_examples=200)
@given(data=st.data())
def test_no_value_of_any_attribute_is_too_much(scratch: Host, data: st.DataObject) -> None:
    files = sorted(p for p in scratch.sysfs.rglob("*") if p.is_file() and not p.is_symlink())
    before = {}
    for _ in range(data.draw(st.integers(1, 12))):
        value = data.draw(st.binary(max_size=40) | st.integers(-(1 << 65), 1 << 65).map(lambda n: str(n).encode()))
        file = data.draw(st.sampled_from(files))
        before.setdefault(file, file.read_bytes())
        file.write_bytes(value)
    try:
        tree = scratch.read()
        assess(tree)
    finally:
        for file, value in before.items():
            file.write_bytes(value)
    assert len(tree.memdevs) == 2
