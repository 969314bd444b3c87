# SPDX-License-Identifier: Apache-2.0
"""Pools over several memdevs at once: the order of the interleave is the pool's, whatever a host's names are.

A rack of its own, with one host: QEMU takes the short way to memory only where no interleave is.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from batch import Result, engramdax, run_all
from selection import LONG

from engramdax.format.geometry import MIB, standard
from tools.rack.guest import Guest
from tools.rack.pools import Kind, Pool
from tools.rack.prefix import Prefix
from tools.rack.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.timeout(600), LONG]

MEMDEVS = (
    Pool("a", Kind.CXL_RAM, serial=0xA),
    Pool("b", Kind.CXL_RAM, serial=0xB),
    Pool("c", Kind.CXL_PMEM, serial=0xC),
    Pool("d", Kind.CXL_PMEM, serial=0xD),
)
GRANULARITY = 1024
SETS = {"ram": "0xb,0xa", "pmem": "0xd,0xc"}
"""Not in the order that the host finds them in."""


@dataclass
class Story:
    """What came of two pools over a boot with the memdevs in another order."""

    table: np.ndarray[Any, Any]
    made: dict[str, Result]
    media: dict[str, bytes]
    rows: list[dict[str, bytes]]
    wrong: Result
    again: list[Result]


@pytest.fixture(scope="module")
def story(prefix: Prefix, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    """Provision, load, gather, boot, join, gather."""
    folder = tmp_path_factory.mktemp("tables")
    table = np.random.default_rng(9).integers(0, 256, (2_000, 264), np.uint8)
    np.save(folder / "t.npy", table)
    np.save(folder / "ids.npy", np.arange(len(table)))
    gathers = [f"gather t --pool {n} --ids {folder}/ids.npy --out /run/{n}.npy" for n in SETS]

    def rows(host: Guest) -> dict[str, bytes]:
        return {n: np.load(io.BytesIO(host.get(f"/run/{n}.npy"))).tobytes() for n in SETS}

    with Rack(prefix, hosts=1, pools=MEMDEVS) as rack:
        (host,) = rack.hosts
        options = f"--granularity {GRANULARITY} --size 32M --json"
        provisions = [f"provision {memdevs} --name {name} {options}" for name, memdevs in SETS.items()]
        loads = [f"load {folder}/t.npy --name t --pool {n}" for n in SETS]
        done = run_all(host, engramdax(*provisions, *loads, *gathers), timeout=300)
        for result in done:
            result.succeeded()
        before = rows(host)
        media = {pool.name: start_of(rack.media(pool.name)) for pool in MEMDEVS}
        rack.reboot(host, order=["d", "b", "c", "a"])
        # Who has lost what it knew names one memdev, and the labels name the other. No label has the granularity.
        forget = 'rm $(grep -l \'"name": "pmem"\' /var/lib/engramdax/pools/*)'
        commands = engramdax(
            f"provision --join 0xa,0xb --granularity {GRANULARITY}",
            "provision --join --known",
            f"provision --join 0xc --granularity {GRANULARITY}",
        )
        wrong, *again = run_all(
            host,
            [commands[0], commands[1], forget, "cxl destroy-region -f all", *commands[1:], *engramdax(*gathers)],
            timeout=300,
        )
        for result in again:
            result.succeeded()
        yield Story(table, dict(zip(SETS, done, strict=False)), media, [before, rows(host)], wrong, again)


def start_of(media: Path) -> bytes:
    with media.open("rb") as file:
        return file.read(32 * MIB)


@pytest.mark.parametrize("pool", SETS)
def test_table_is_gathered_from_memdevs_side_by_side_before_and_after_a_boot(story: Story, pool: str) -> None:
    for rows in story.rows:
        assert rows[pool] == story.table.tobytes()


def test_bytes_lie_on_the_memdevs_in_turn_in_the_order_that_was_said(story: Story) -> None:
    first, second = (np.frombuffer(story.media[name], np.uint8).reshape(-1, GRANULARITY) for name in ("b", "a"))
    pool = np.stack([first, second], axis=1).reshape(-1)
    table = story.table.tobytes()
    start = pool.tobytes().find(table)
    assert start >= max(standard(32 * MIB).slots) + standard(32 * MIB).slot_bytes
    assert table not in story.media["a"] + story.media["b"]


def test_memdevs_in_another_order_are_no_pool(story: Story) -> None:
    story.wrong.failed(1, "there is no pool", "in the order of the owner's region")


def test_known_pools_come_back_and_one_memdev_names_the_set_by_its_labels(story: Story) -> None:
    known, _, _, again, by_label = story.again[:5]
    assert known.succeeded().out.count("is on /dev/dax") == len(SETS)
    assert again.succeeded().out.count("pool ram") == 1
    assert by_label.succeeded().out.count("pool pmem") == 1
