# SPDX-License-Identifier: Apache-2.0
"""What the helper says of the hardware behind a device, from sysfs alone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from dax_tree import MIB, Tree

Ask = Callable[[str], dict[str, str]]
GIB = 1 << 30
BASE = 0x4_1000_0000
UUID = "5e761282-fab7-47c6-a6db-0656fe26ef73"


def device(tree: Tree, below: str, name: str = "dax2.0", resource: int = BASE) -> None:
    tree.device(name, 256 * MIB, below=below, resource=f"{resource:#x}")


def test_a_serial_of_64_bits_is_given_as_the_kernel_writes_it(ask: Ask, tree: Tree) -> None:
    device(tree, tree.region(2, tree.memdev(0, "0xfedcba9876543210")))
    assert ask("dax2.0") == {
        "ENGRAMDAX_SERIAL": "0xfedcba9876543210",
        "ENGRAMDAX_CXL_ID": "0xfedcba9876543210",
    }


@pytest.mark.parametrize("ways", [2, 3, 6])
def test_serials_of_an_interleave_set_are_in_the_order_of_its_targets(ask: Ask, tree: Tree, ways: int) -> None:
    decoders = [tree.memdev(i, f"{0xE0 + i:#x}") for i in range(ways)]
    decoders.reverse()
    device(tree, tree.region(2, *decoders))
    assert ask("dax2.0")["ENGRAMDAX_CXL_ID"] == "-".join(f"{0xE0 + i:#x}" for i in reversed(range(ways)))


def test_regions_and_slices_on_one_memdev_have_ids_of_their_own(ask: Ask, tree: Tree) -> None:
    first = tree.region(2, tree.memdev(0, "0xe1"))
    device(tree, first)
    device(tree, first, "dax2.1", BASE + 64 * MIB)
    assert ask("dax2.0")["ENGRAMDAX_CXL_ID"] == "0xe1"
    assert ask("dax2.1")["ENGRAMDAX_CXL_ID"] == "0xe1_0x4000000"


def test_a_place_counts_on_each_memdev_of_a_set(ask: Ask, tree: Tree) -> None:
    decoders = [tree.memdev(i, f"{0xE0 + i:#x}", dpa=GIB) for i in range(2)]
    device(tree, tree.region(2, *decoders), resource=BASE + 64 * MIB)
    assert ask("dax2.0")["ENGRAMDAX_CXL_ID"] == f"0xe0-0xe1_{GIB + 32 * MIB:#x}"


@pytest.mark.parametrize("serial", ["0x0", "0", "", "-5", "0xffffffffffffffff", "junk", "0xe1/../x", "0xe1 0xe2"])
def test_a_serial_that_identifies_nothing_is_left_out(ask: Ask, tree: Tree, serial: str) -> None:
    device(tree, tree.region(2, tree.memdev(0, "0xe0"), tree.memdev(1, serial)))
    assert ask("dax2.0") == {}


@pytest.mark.parametrize("decoder", ["", "decoder9.9", "../../../etc", "/etc", "none", "a\nb"])
def test_a_region_without_its_decoder_has_no_serial(ask: Ask, tree: Tree, decoder: str) -> None:
    device(tree, tree.region(2, decoder))
    assert ask("dax2.0") == {}


@pytest.mark.parametrize("ways", [0, 17, -1, "x", (1 << 64) - 1])
def test_an_impossible_number_of_ways_is_nothing(ask: Ask, tree: Tree, ways: object) -> None:
    folder = tree.region(2, tree.memdev(0, "0xe0"))
    tree.write(folder.rpartition("/")[0], interleave_ways=ways)
    device(tree, folder)
    assert ask("dax2.0") == {}


def test_a_set_whose_serials_are_too_long_for_a_name_has_none(ask: Ask, tree: Tree) -> None:
    device(tree, tree.region(2, *(tree.memdev(i, f"{(1 << 63) + i:#x}") for i in range(16))))
    assert ask("dax2.0") == {}


def test_a_device_that_hides_its_place_has_serials_and_no_id(ask: Ask, tree: Tree) -> None:
    tree.device("dax2.0", 256 * MIB, below=tree.region(2, tree.memdev(0, "0xe1")))
    assert ask("dax2.0") == {"ENGRAMDAX_SERIAL": "0xe1"}


def test_a_namespace_has_its_uuid_and_the_serials_behind_it(ask: Ask, tree: Tree) -> None:
    device(tree, tree.namespace(UUID, 225, -81985529216486896), "dax3.0")
    assert ask("dax3.0") == {
        "ENGRAMDAX_SERIAL": "0xe1-0xfedcba9876543210",
        "ENGRAMDAX_NAMESPACE_UUID": UUID,
    }


@pytest.mark.parametrize("uuid", ["", "x", f"{UUID}/", "../" * 12, f"{UUID[:-1]}\t"])
def test_a_uuid_that_is_none_is_left_out(ask: Ask, tree: Tree, uuid: str) -> None:
    device(tree, tree.namespace(uuid), "dax3.0")
    assert ask("dax3.0") == {}


def test_reserved_memory_has_nothing_that_tells_it_apart(ask: Ask, tree: Tree) -> None:
    device(tree, "platform/hmem.0")
    assert ask("dax2.0") == {}
