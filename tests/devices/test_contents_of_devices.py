# SPDX-License-Identifier: Apache-2.0
"""What discovery says of what is on a device. Files stand in for its memory: the same code maps and reads both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from trees import MIB, Captured, Sysfs

from engramdax.devices.fitness import Fitness, Verdict, assess, assess_dax
from engramdax.devices.holders import holders
from engramdax.devices.tree import Map

Look = Callable[[Path], Fitness]


@pytest.fixture
def look(sysfs: Sysfs) -> Look:
    """Give a function that assesses a dax device whose memory is a file."""
    sysfs.dax("dax0.0")
    tree = sysfs.read()

    def assess_file(path: Path) -> Fitness:
        return assess_dax(tree, replace(tree.dax_devices[0], node=path, node_exists=True))

    return assess_file


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    path = tmp_path / "memory"
    with path.open("xb") as file:
        file.truncate(32 * MIB)
    return path


def test_empty_device_is_fit_and_says_what_to_run(look: Look, empty: Path) -> None:
    found = look(empty)
    assert (found.verdict, found.why, found.command) == (Verdict.FIT, "", f"engramdax provision {empty}")


def test_pool_is_named(look: Look, make_pool: Callable[..., Path]) -> None:
    path = make_pool(name="rack1")
    found = look(path)
    assert found.verdict is Verdict.POOL
    assert found.pool is not None
    assert (found.pool.name, found.pool.size, found.pool.shared) == ("rack1", 32 * MIB, False)


@pytest.mark.parametrize("offset", [0, 5 * MIB + 3, 32 * MIB - 1])
def test_random_bytes_are_somebody_s_unknown_ones(look: Look, empty: Path, offset: int) -> None:
    with empty.open("r+b") as file:
        file.seek(offset)
        file.write(np.random.default_rng(1).integers(1, 256, min(4096, 32 * MIB - offset), np.uint8).tobytes())
    found = look(empty)
    assert found.verdict is Verdict.UNKNOWN
    assert f"unknown bytes at {offset}" in found.why
    assert "--overwrite-unknown" in found.command


def test_file_system_is_recognised(look: Look, empty: Path) -> None:
    program = shutil.which("mkfs.ext4", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        pytest.skip("no mkfs.ext4 here")
    subprocess.run([program, "-q", "-F", "-L", "mine", empty], check=True)
    found = look(empty)
    assert found.verdict is Verdict.FOREIGN
    assert "ext4 signature labelled mine" in found.why
    assert "--force" in found.command


def test_device_shorter_than_its_superblock_says_is_no_pool_to_use(look: Look, make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    os.truncate(path, 20 * MIB)
    found = look(path)
    assert found.verdict is Verdict.DAMAGED
    assert f"the superblock says {32 * MIB} bytes, the media has {20 * MIB}" in found.why


def test_memory_that_faults_is_unreadable_and_kills_nobody(
    look: Look, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from engramdax import backing

    # The file is shorter than the device claims: loads behind its end fault, as they do where memory is poisoned.
    real = backing.inspect_fd
    monkeypatch.setattr("engramdax.pool.access.inspect_fd", lambda fd, path: replace(real(fd, path), size=64 * MIB))
    found = look(empty)
    assert found.verdict is Verdict.UNREADABLE
    assert "cannot be read" in found.why


def test_pool_with_page_structures_on_the_device_is_shown_and_not_to_be_shared(
    captured: Captured, make_pool: Callable[..., Path]
) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    device = next(d for d in tree.dax_devices if d.namespace and d.namespace.map is Map.DEV)
    found = assess_dax(tree, replace(device, node=make_pool(name="mine"), node_exists=True))
    assert found.verdict is Verdict.MAP_DEV
    assert found.pool is not None
    assert found.pool.name == "mine"
    assert found.command == ""  # a host that is alone may have it so


def test_device_with_page_structures_on_it_is_to_be_made_anew(captured: Captured, empty: Path) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    device = next(d for d in tree.dax_devices if d.namespace and d.namespace.map is Map.DEV)
    assert device.namespace is not None
    device = replace(device, node=empty, node_exists=True)
    found = assess_dax(tree, device)
    assert (found.verdict, "holds" in found.why) == (Verdict.MAP_DEV, False)
    assert found.command == f"ndctl create-namespace -f -e {device.namespace.name} -m devdax -M mem"
    with empty.open("r+b") as file:
        file.write(b"somebody's")
    assert "holds unknown bytes at 0, if nobody needs that" in assess_dax(tree, device).why


def test_looking_changes_nothing(look: Look, make_pool: Callable[..., Path]) -> None:
    path = make_pool()
    before = path.read_bytes()
    path.chmod(0o400)
    look(path)
    assert path.read_bytes() == before


# Who has it.


def test_process_that_has_a_device_open_or_mapped_is_found() -> None:
    # /dev/zero is a character device, too, and can be mapped shared. A mapping of it is shmem's own, so it is the
    # descriptor that shows here; the rack shows the mapping.
    program = "import os, sys, time; f = os.open('/dev/zero', os.O_RDONLY); print('open', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            assert process.pid in holders(Path("/dev/zero").stat().st_rdev)
        finally:
            process.kill()
    assert process.pid not in holders(Path("/dev/zero").stat().st_rdev)


def proc(folder: Path, mounts: str) -> Path:
    place = folder / "proc"
    (place / "self").mkdir(parents=True)
    (place / "self/mountinfo").write_text(mounts)
    return place


def test_mounted_namespace_is_in_use_and_says_where(captured: Captured, tmp_path: Path) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    namespace = tree.namespace("namespace0.0")
    assert namespace is not None
    (block,) = namespace.blocks
    assert block.device is not None
    line = f"36 29 {block.device[0]}:{block.device[1]} / /mnt/my\\040data rw - ext4 /dev/{block.name} rw\n"
    found = next(f for f in assess(tree, proc(tmp_path, line)) if f.part == namespace)
    assert (found.verdict, "mounted at /mnt/my data" in found.why) == (Verdict.IN_USE, True)
    assert found.command == "umount '/mnt/my data' && engramdax provision --force namespace0.0"


def test_namespace_that_is_swapped_on_is_in_use(captured: Captured, tmp_path: Path) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    namespace = tree.namespace("namespace0.0")
    assert namespace is not None
    (block,) = namespace.blocks
    place = proc(tmp_path, "")
    (place / "swaps").write_text(f"Filename\tType\tSize\tUsed\tPriority\n/dev/{block.name} partition 1020 0 -2\n")
    found = next(f for f in assess(tree, place) if f.part == namespace)
    assert (found.verdict, found.why) == (Verdict.IN_USE, "fsdax, swapped on; if nobody needs that")
    assert found.command == f"swapoff /dev/{block.name} && engramdax provision --force namespace0.0"


def test_namespace_that_is_part_of_another_block_device_is_in_use(sysfs: Sysfs) -> None:
    region = "LNXSYSTM:00/ACPI0012:00/ndbus0/region0"
    sysfs.device("nd", "LNXSYSTM:00/ACPI0012:00/ndbus0", "nd_bus", provider="ACPI.NFIT")
    sysfs.device("nd", region, "nd_region", size=64 * MIB, available_size=0, mappings=0)
    place = sysfs.device("nd", f"{region}/namespace0.0", "nd_pmem", size=64 * MIB, mode="raw")
    (place / "block/pmem0/holders/dm-3").mkdir(parents=True)
    (place / "block/pmem0/dev").write_text("259:0\n")
    (found,) = assess(sysfs.read())
    assert (found.verdict, "a part of dm-3" in found.why) == (Verdict.IN_USE, True)


def test_mapping_does_not_outlive_the_look(look: Look, empty: Path) -> None:
    look(empty)
    assert str(empty) not in Path("/proc/self/maps").read_text()


def test_device_that_is_known_and_the_same_is_not_looked_at_again(sysfs: Sysfs, empty: Path) -> None:
    sysfs.dax("dax0.0")
    tree = sysfs.read()
    device = replace(tree.dax_devices[0], node=empty, node_exists=True)
    tree = replace(tree, dax_devices=(device,))
    (before,) = assess(tree)
    empty.write_bytes(b"changed since")
    assert assess(tree, known=[before]) == (before,)
    other = replace(tree, dax_devices=(replace(device, target_node=7),))
    assert assess(other, known=[before])[0].verdict is not before.verdict
