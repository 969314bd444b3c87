# SPDX-License-Identifier: Apache-2.0
"""The commands that `discover` prints are ones that `provision` takes. The rack's tests run them."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from programs import Programs
from trees import DATA, GIB, MIB, Captured, Sysfs

from engramdax.commands import provision
from engramdax.commands.main import run
from engramdax.devices import blocks, fitness
from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.system import System
from engramdax.devices.tree import DaxDevice, Mode, Tree
from engramdax.errors import RefusedError

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))

Plan = Callable[[Fitness, Path, Path], str]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Plan:
    """Give a function that takes the last command of a remedy, on the host that it is for, and gives the steps."""
    # A file stands in for a block device, and has no cache of its own to drop.
    monkeypatch.setattr(blocks.fcntl, "ioctl", lambda *_: 0)
    (tmp_path / "proc").mkdir()
    programs = Programs(tmp_path)
    (tmp_path / "labels").write_bytes(bytes(4096))  # as of a memdev that never had a namespace
    programs.says("cxl", "read-labels", f"cp {tmp_path}/labels $3")
    monkeypatch.setenv("PATH", str(programs.folder))

    def take(found: Fitness, sysfs: Path, dev: Path) -> str:
        program, *arguments = shlex.split(found.command.split(" && ")[-1])
        assert program == "engramdax", found
        monkeypatch.setattr(provision, "System", lambda: System(sysfs, dev, tmp_path / "proc"))
        code = run([*arguments, "--dry-run"])
        said = capsys.readouterr()
        assert (code, said.err) == (0, ""), found.command
        return said.out

    return take


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_dax_device_yet_is_told_a_command_that_makes_a_pool_of_it(
    name: str, captured: Captured, plan: Plan, tmp_path: Path
) -> None:
    host = captured(name)
    tree = host.read()
    for namespace in tree.namespaces:
        for block in namespace.blocks:
            with (tmp_path / block.name).open("wb") as file:
                file.truncate(namespace.raw_size or 0)
    planned = 0
    for found in assess(tree):
        # A device of a captured tree has no memory behind it.
        if found.command.startswith("engramdax") and not (
            isinstance(found.part, DaxDevice) and found.part.mode is Mode.DEVDAX
        ):
            assert "write the superblock" in plan(found, host.sysfs, tmp_path)
            planned += 1
    assert planned or all(d.mode is Mode.DEVDAX for d in tree.dax_devices)


def of(tree: Tree, name: str) -> Fitness:
    (found,) = (f for f in assess(tree) if f.part.name == name)
    return found


def region_with_free_space(sysfs: Sysfs, *sizes: int) -> str:
    """Give the name of the dax region of a CXL region of 256 MiB with devices of these sizes."""
    parent = sysfs.cxl_region("region2", [sysfs.memdev(1, "0x11")])
    sysfs.device("cxl", parent, devtype="cxl_dax_region")
    sysfs.dax("dax2.9", parent, size=0, driver=None)  # of which the kernel makes the next one
    for number, size in enumerate(sizes):
        sysfs.dax(f"dax2.{number}", parent, size=size)
    sysfs.dax_region(parent, id=2, size=256 * MIB, align=2 * MIB, available_size=256 * MIB - sum(sizes))
    return Path(parent).name


def test_free_region_is_taken_whole(sysfs: Sysfs, plan: Plan) -> None:
    name = region_with_free_space(sysfs)
    found = of(sysfs.read(), name)
    assert (found.verdict, found.command) == (Verdict.UNUSED, "engramdax provision region2")
    assert f"daxctl create-device -s {256 * MIB}" in plan(found, sysfs.root, sysfs.dev)


def test_of_a_region_with_devices_the_rest_is_taken_by_its_size(sysfs: Sysfs, plan: Plan) -> None:
    name = region_with_free_space(sysfs, 64 * MIB, 64 * MIB)
    found = of(sysfs.read(), name)
    assert found.command == f"engramdax provision --size {128 * MIB} region2"
    assert f"daxctl create-device -s {128 * MIB}" in plan(found, sysfs.root, sysfs.dev)


def test_memdev_with_both_kinds_of_memory_says_which(sysfs: Sysfs, plan: Plan) -> None:
    sysfs.root_decoder()
    sysfs.memdev(1, "0x11", pmem__size=hex(256 * MIB))
    found = of(sysfs.read(), "mem1")
    assert found.command == "engramdax provision --type ram 0x11"
    assert "cxl create-region -t ram" in plan(found, sysfs.root, sysfs.dev)


def test_memdev_without_a_serial_is_named_by_its_address(sysfs: Sysfs, plan: Plan) -> None:
    sysfs.root_decoder()
    for number in (1, 2):
        sysfs.memdev(number, "0x0")
    found = of(sysfs.read(), "mem2")
    assert found.command == "engramdax provision 0000:02:00.0"
    assert "-m mem2" in plan(found, sysfs.root, sysfs.dev)


def test_memdev_whose_volatile_memory_finds_no_window_gives_its_persistent(sysfs: Sysfs, plan: Plan) -> None:
    sysfs.root_decoder()
    sysfs.memdev(1, "0x11", ram__size=hex(8 * GIB), pmem__size=hex(256 * MIB))
    found = of(sysfs.read(), "mem1")
    assert found.command == "engramdax provision --type pmem 0x11"


def test_free_space_beside_namespaces_is_taken_by_its_size(sysfs: Sysfs, plan: Plan) -> None:
    nvdimm(sysfs, available_size=64 * MIB)
    namespace(sysfs, "namespace0.0", "raw", 64 * MIB)
    found = of(sysfs.read(), "region0")
    assert found.command == f"engramdax provision --size {64 * MIB} region0"
    assert f"ndctl create-namespace -m raw -s {64 * MIB}" in plan(found, sysfs.root, sysfs.dev)


def test_namespace_in_sector_mode_is_made_raw_by_its_owner_and_its_region_provisioned(sysfs: Sysfs) -> None:
    nvdimm(sysfs, available_size=0)
    namespace(sysfs, "namespace0.0", "safe", 64 * MIB)
    found = of(sysfs.read(), "namespace0.0")
    assert found.verdict is Verdict.FOREIGN
    assert found.command == (
        "ndctl create-namespace -f -e namespace0.0 -m raw && engramdax provision --overwrite-unknown region0"
    )
    namespace(sysfs, "namespace0.1", "raw", 64 * MIB)
    assert of(sysfs.read(), "namespace0.0").command == "ndctl create-namespace -f -e namespace0.0 -m raw"


def nvdimm(sysfs: Sysfs, **values: object) -> None:
    sysfs.device("nd", "LNXSYSTM:00/ACPI0012:00/ndbus0", "nd_bus", provider="ACPI.NFIT")
    path = "LNXSYSTM:00/ACPI0012:00/ndbus0/region0"
    sysfs.device("nd", path, "nd_region", **({"size": 256 * MIB, "available_size": 0, "mappings": 0} | values))


def namespace(sysfs: Sysfs, name: str, mode: str, size: int) -> None:
    path = f"LNXSYSTM:00/ACPI0012:00/ndbus0/region0/{name}"
    sysfs.device("nd", path, "nd_pmem", size=size, mode=mode, uuid="0a4b6d6e-0000-4000-8000-00000000000" + name[-1])


# What stands on a raw namespace: a file stands in for its block device.


@pytest.fixture
def raw(sysfs: Sysfs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the memory of a raw namespace of 64 MiB."""
    nvdimm(sysfs)
    namespace(sysfs, "namespace0.0", "raw", 64 * MIB)
    block = sysfs.root / "devices/LNXSYSTM:00/ACPI0012:00/ndbus0/region0/namespace0.0/block/pmem0"
    block.mkdir(parents=True)
    (block / "dev").write_text("259:0\n")
    monkeypatch.setattr(blocks.fcntl, "ioctl", lambda *_: 0)
    monkeypatch.setattr(fitness, "System", lambda: System(sysfs.root, sysfs.dev, tmp_path / "proc"))
    memory = sysfs.dev / "pmem0"
    with memory.open("xb") as file:
        file.truncate(64 * MIB)
    return memory


def write(memory: Path, offset: int, data: bytes) -> None:
    with memory.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def info_block(mode: int) -> bytes:
    """Give what the kernel writes of a devdax namespace: data from 2 MiB; mode 1, or 2 for map=dev."""
    return struct.pack("<16s40xQQI", b"NVDIMM_DAX_INFO", 2 * MIB, 62 * MIB // 4096, mode)


def test_empty_raw_namespace_needs_no_option(raw: Path, sysfs: Sysfs, plan: Plan) -> None:
    found = of(sysfs.read(), "namespace0.0")
    assert (found.verdict, found.command) == (Verdict.UNUSED, "engramdax provision namespace0.0")
    plan(found, sysfs.root, sysfs.dev)


def test_unknown_bytes_on_a_raw_namespace_are_named_with_the_option(raw: Path, sysfs: Sysfs, plan: Plan) -> None:
    write(raw, 40 * MIB, b"somebody's")
    found = of(sysfs.read(), "namespace0.0")
    assert (found.verdict, f"unknown bytes at {40 * MIB}" in found.why) == (Verdict.UNKNOWN, True)
    assert found.command == "engramdax provision --overwrite-unknown namespace0.0"
    plan(found, sysfs.root, sysfs.dev)


def test_pool_that_another_host_made_of_a_raw_namespace_is_to_be_joined(
    raw: Path, sysfs: Sysfs, make_pool: Callable[..., Path]
) -> None:
    write(raw, 4096, info_block(1))
    found = of(sysfs.read(), "namespace0.0")
    assert (found.verdict, found.command) == (Verdict.FOREIGN, "engramdax provision --force namespace0.0")
    write(raw, 2 * MIB, make_pool(62 * MIB).read_bytes())
    found = of(sysfs.read(), "namespace0.0")
    assert (found.verdict, found.command) == (Verdict.UNUSED, "engramdax provision --join namespace0.0")
    write(raw, 2 * MIB, bytes(4096))  # the other copy tells, too
    assert of(sysfs.read(), "namespace0.0").command == "engramdax provision --join namespace0.0"


def test_page_structures_that_another_host_put_on_the_media_are_seen(raw: Path, sysfs: Sysfs) -> None:
    write(raw, 4096, info_block(2))
    found = of(sysfs.read(), "namespace0.0")
    assert (found.verdict, "unfit for sharing" in found.why) == (Verdict.MAP_DEV, True)
    assert found.command == "ndctl create-namespace -f -e namespace0.0 -m devdax -M mem"
    with pytest.raises(RefusedError, match="unfit for sharing"):
        blocks.devdax_on_media(fitness.System(), found.part)  # type: ignore[arg-type]
