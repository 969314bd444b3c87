# SPDX-License-Identifier: Apache-2.0
"""Trees of real kernels, captured on the rack's hosts, beside what cxl, ndctl and daxctl said at the same moment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trees import DATA, MIB, Captured, unpack

from engramdax.devices.fitness import Verdict, assess
from engramdax.devices.sysfs import read_entries
from engramdax.devices.tree import Map, Mode, Origin
from tools.capture_sysfs import capture

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


def walk(value: Any, key: str) -> Iterator[dict[str, Any]]:
    """Give every object, at whatever depth, that has `key`."""
    if isinstance(value, dict):
        if key in value:
            yield value
        for one in value.values():
            yield from walk(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from walk(one, key)


@pytest.mark.parametrize("name", NAMES)
def test_dax_devices_are_what_daxctl_says(name: str, captured: Captured) -> None:
    host = captured(name)
    devices = {d.name: d for d in host.read().dax_devices}
    said = {d["chardev"]: d for d in walk(host.said("daxctl"), "chardev")}
    assert devices.keys() == said.keys()
    for device_name, one in said.items():
        device = devices[device_name]
        assert (device.size, device.align) == (one["size"], one["align"])
        assert device.target_node == one.get("target_node")
        assert str(device.mode) == ("disabled" if one.get("state") == "disabled" else one["mode"])
        assert device.online_blocks == one.get("online_memblocks")
        assert device.memory_blocks == one.get("total_memblocks")
        assert device.resource == one["mappings"][0]["start"]
        assert device.region is not None


@pytest.mark.parametrize("name", NAMES)
def test_dax_regions_are_what_daxctl_says(name: str, captured: Captured) -> None:
    host = captured(name)
    said = {r["id"]: r for r in walk(host.said("daxctl"), "path")}
    regions = {r.id: r for r in host.read().dax_regions}
    assert regions.keys() == said.keys()
    for number, one in said.items():
        region = regions[number]
        assert (region.size, region.align, region.available) == (
            one["size"],
            one["align"],
            one.get("available_size", region.available),
        )
        assert str(region.path).endswith(one["path"])


@pytest.mark.parametrize("name", NAMES)
def test_namespaces_and_their_regions_are_what_ndctl_says(name: str, captured: Captured) -> None:
    host = captured(name)
    tree = host.read()
    said = list(walk(host.said("ndctl"), "mappings"))
    assert {r.name for r in tree.nd_regions} == {r["dev"] for r in said}
    for one in said:
        region = tree.nd_region(one["dev"])
        assert region is not None
        assert (region.size, region.align, region.available) == (one["size"], one["align"], one["available_size"])
        assert list(region.dimms) == [m["dimm"] for m in sorted(one["mappings"], key=lambda m: m["position"])]
        for space in (n for n in one.get("namespaces", []) if n["size"]):
            namespace = tree.namespace(space["dev"])
            assert namespace is not None
            assert namespace.region is region
            assert (namespace.mode, namespace.size) == (space["mode"], space["size"])
            assert namespace.uuid == space.get("uuid")
            assert namespace.map == space.get("map")
            assert namespace.enabled is (space.get("state") != "disabled")
            assert [b.name for b in namespace.blocks] == [space[k] for k in ("blockdev",) if k in space]
            for chardev in walk(space, "chardev"):
                device = tree.dax(chardev["chardev"])
                assert device is not None
                assert device.namespace is namespace


@pytest.mark.parametrize("name", NAMES)
def test_memdevs_and_cxl_regions_are_what_cxl_says(name: str, captured: Captured) -> None:
    host = captured(name)
    tree = host.read()
    said = {m["memdev"]: m for m in walk(host.said("cxl"), "memdev") if "serial" in m}
    assert {m.name for m in tree.memdevs} == said.keys()
    for memdev in tree.memdevs:
        one = said[memdev.name]
        assert memdev.serial == one["serial"]
        assert (memdev.ram_size, memdev.pmem_size) == (one.get("ram_size", 0), one.get("pmem_size", 0))
        assert (memdev.parent, memdev.firmware) == (one["host"], one["firmware_version"])
    regions = {r["region"]: r for r in walk(host.said("cxl"), "decode_state")}
    assert {r.name for r in tree.cxl_regions} == regions.keys()
    for region in tree.cxl_regions:
        one = regions[region.name]
        assert (region.size, region.resource, region.mode) == (one["size"], one["resource"], one["type"])
        assert (region.ways, region.granularity) == (one["interleave_ways"], one["interleave_granularity"])
        assert region.enabled is (one.get("state") != "disabled")
        mappings = sorted(one["mappings"], key=lambda m: m["position"])
        assert [t.decoder and t.decoder.name for t in region.targets] == [m["decoder"] for m in mappings]
        assert [m.name for m in region.memdevs] == [m["memdev"] for m in mappings]


@pytest.mark.parametrize("name", NAMES)
def test_captured_tree_captured_again_is_the_same(name: str, captured: Captured, tmp_path: Path) -> None:
    host = captured(name)
    capture(tmp_path / "again.tar.gz", host.sysfs, host.dev)
    again = unpack(tmp_path / "again.tar.gz", tmp_path / "again")
    first, second = (sorted(read_entries(h.sysfs), key=lambda e: (e.path, e.folder)) for h in (host, again))
    assert first == second


def test_names_differ_between_hosts_and_serials_do_not(captured: Captured) -> None:
    first, second = (captured(f"devdax-{name}").read() for name in ("h0", "h1"))
    serial = 0xFEDC_BA98_7654_3210
    one, other = first.memdev(serial), second.memdev(serial)
    assert one is not None
    assert other is not None
    assert one.name != other.name


def test_serial_above_the_signed_range_is_whole(captured: Captured) -> None:
    tree = captured("bare-h0").read()
    assert sorted(m.serial or 0 for m in tree.memdevs) == [0xE1, 0xFEDC_BA98_7654_3210]


@pytest.mark.parametrize("name", ["devdax-h0", "devdax-h1"])
def test_each_kind_of_memory_is_told_with_the_memdevs_behind(name: str, captured: Captured) -> None:
    devices = captured(name).read().dax_devices
    found = {d.origin: [m.serial for m in d.memdevs] for d in devices}
    assert found == {
        Origin.NVDIMM: [],
        Origin.HMEM: [],
        Origin.CXL_RAM: [0xFEDC_BA98_7654_3210],
        Origin.CXL_PMEM: [0xE1],
    }
    assert all(d.mode is Mode.DEVDAX for d in devices)


def test_hmem_device_before_it_is_configured_is_disabled(captured: Captured) -> None:
    host = captured("bare-h0")
    (device,) = host.read().dax_devices
    assert (device.driver, device.mode, device.origin) == (None, Mode.DISABLED, Origin.HMEM)
    found = next(f for f in assess(host.read()) if f.part == device)
    assert found.verdict is Verdict.DISABLED
    assert found.command == f"engramdax provision {device.name}"


def test_memdev_in_no_region_is_named_by_its_serial(captured: Captured) -> None:
    tree = captured("bare-h0").read()
    commands = {f.part.name: f.command for f in assess(tree) if f.part in tree.memdevs}
    assert commands == {
        "mem0": "engramdax provision 0xfedcba9876543210",
        "mem1": "engramdax provision 0xe1",
    }


def test_kmem_device_online_is_the_kernels_and_how_much_of_it(captured: Captured) -> None:
    host = captured("kmem-online-h0")
    tree = host.read()
    (device,) = (d for d in tree.dax_devices if d.driver == "kmem")
    assert (device.mode, device.memory_blocks, device.online_blocks) == (Mode.SYSTEM_RAM, 2, 2)
    found = next(f for f in assess(tree) if f.part == device)
    assert found.verdict is Verdict.SYSTEM_RAM
    assert "2 of 2 blocks" in found.why
    assert found.command == f"engramdax provision --offline-memory --overwrite-unknown {device.name}"


def test_kmem_device_offline_can_be_had_back_at_once(captured: Captured) -> None:
    tree = captured("kmem-offline-h0").read()
    (device,) = (d for d in tree.dax_devices if d.driver == "kmem")
    assert (device.mode, device.memory_blocks, device.online_blocks) == (Mode.SYSTEM_RAM, 2, 0)
    found = next(f for f in assess(tree) if f.part == device)
    assert found.verdict is Verdict.SYSTEM_RAM_OFFLINE
    assert found.command == f"engramdax provision {device.name}"  # it may hold another host's pool, whole


def test_several_dax_devices_in_one_region_share_it(captured: Captured) -> None:
    tree = captured("sliced-h0").read()
    region = next(r for r in tree.dax_regions if r.origin is Origin.CXL_RAM)
    devices = tree.dax_devices_of(region)
    assert [d.size for d in devices] == [128 * MIB, 64 * MIB, 64 * MIB]
    assert len({d.resource for d in devices}) == 3
    assert region.available == 0
    memdev = tree.memdev(0xFEDC_BA98_7654_3210)
    assert memdev is not None
    assert tree.dax_devices_of(memdev) == devices


def test_namespace_in_fsdax_mode_is_somebody_s_until_forced(captured: Captured) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    namespace = tree.namespace("namespace0.0")
    assert namespace is not None
    assert (namespace.mode, namespace.map, namespace.enabled) == ("fsdax", Map.DEV, True)
    found = next(f for f in assess(tree) if f.part == namespace)
    assert found.verdict is Verdict.FOREIGN
    assert found.command == "engramdax provision --force namespace0.0"


def test_namespace_with_page_structures_on_the_device_says_so(captured: Captured) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    (device,) = (d for d in tree.dax_devices if d.origin is Origin.CXL_PMEM)
    assert device.namespace is not None
    assert device.namespace.map is Map.DEV
    assert device.size is not None
    assert device.size < device.namespace.raw_size - 2 * MIB if device.namespace.raw_size else False


def test_disabled_region_says_what_enables_it(captured: Captured) -> None:
    tree = captured("fsdax-mapdev-disabled-h1").read()
    (region,) = (r for r in tree.cxl_regions if r.mode == "ram")
    assert not region.enabled
    assert not tree.dax_devices_of(region)
    found = next(f for f in assess(tree) if f.part == region)
    assert found.verdict is Verdict.DISABLED
    assert found.command == f"cxl enable-region {region.name}"
