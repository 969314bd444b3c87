# SPDX-License-Identifier: Apache-2.0
"""Pools on real drivers, by the product's own commands: provisioned on one host, joined by the other, and unmade."""

from __future__ import annotations

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zygotes
from batch import Command, Remedy, Result, engramdax, run_all
from devices import POOLS, find
from media import digests

from tools.rack.guest import Guest
from tools.rack.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.timeout(900)]

TARGETS = {"nvdimm": "namespace0.0", "ram": "0xfedcba9876543210", "pmem": "0xe1"}
"""What an operator names; the device of hmem has another number at each boot."""


@dataclass
class Story:
    """What happened to four pools and two hosts, step by step."""

    tables: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    ids: np.ndarray[Any, Any] = field(default_factory=lambda: np.zeros(0))
    results: dict[str, list[Result]] = field(default_factory=dict)
    media: dict[str, dict[str, str]] = field(default_factory=dict)
    rows: dict[str, dict[str, bytes]] = field(default_factory=dict)
    unit: str = ""
    """What came of the boot unit."""


@pytest.fixture(scope="module")
def story(new_rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Provision, join, admit, load, gather, reboot, join again, gather again, and leave."""
    folder = tmp_path_factory.mktemp("tables")
    rack = new_rack
    first, second = rack.hosts
    random = np.random.default_rng(5)
    told = Story(ids=random.integers(0, 3_000, (100, 3), np.int64))
    np.save(folder / "ids.npy", told.ids)
    for name in POOLS:
        told.tables[name] = random.integers(0, 256, (3_000, 264), np.uint8)
        np.save(folder / f"{name}.npy", told.tables[name])
    for host in rack.hosts:
        zygotes.start(host)

    def targets(host: Guest) -> dict[str, str]:
        return {**TARGETS, "hmem": find(host, rack.pools["hmem"]) or ""}

    def gather(when: str) -> None:
        lines = [f"gather t --pool {n} --ids {folder}/ids.npy --out /run/{n}.npy" for n in POOLS]
        told.results[f"gather {when}"] = run_all(second, engramdax(*lines))
        told.rows[when] = {n: np.load(io.BytesIO(second.get(f"/run/{n}.npy"))).tobytes() for n in POOLS}

    here = targets(first)
    told.results["provision"] = run_all(first, engramdax(*(f"provision {here[n]} --name {n} --json" for n in POOLS)))
    told.media["provisioned"] = digests(rack)
    joins: dict[str, Command | Remedy] = {
        # What the first host wrote is there to be seen, and discover sees it.
        "nvdimm": Remedy("namespaces", "name", "namespace0.0", ("--json",)),
        "pmem": Remedy("memdevs", "serial", rack.pools["pmem"].serial, ("--json",)),
        "ram": Command(f"provision --join {TARGETS['ram']} --json"),
        "hmem": Command("provision --join --pool hmem --json"),
    }
    told.results["join"] = run_all(
        second, [*(joins[n] for n in POOLS), *engramdax("provision --join --json", "info --pool ram")]
    )
    told.media["joined"] = digests(rack)
    admissions = [r.json()[0]["admission"].removeprefix("engramdax ") for r in told.results["join"][: len(POOLS)]]
    loads = [f"load {folder}/{n}.npy --name t --pool {n}" for n in POOLS]
    done = run_all(first, engramdax(*admissions, admissions[0], "hosts --pool ram --json", *loads))
    told.results["admit"], told.results["load"] = done[: -len(POOLS)], done[-len(POOLS) :]
    told.media["loaded"] = digests(rack)
    gather("before")
    told.media["gathered"] = digests(rack)
    boot_again(rack, tmp_path_factory.mktemp("root"))
    with ThreadPoolExecutor(2) as threads:
        own = threads.submit(run_all, first, engramdax("provision --join --json"))
        told.unit = second.run(UNIT, timeout=240).stdout
        told.results["join again"] = run_all(second, engramdax("provision --join --json"))
        told.results["owner again"] = own.result()
    told.media["joined again"] = digests(rack)
    gather("after")
    return told


UNIT = """
systemctl is-system-running --wait
show() { systemctl show --value -p $1 $2; }
show Result engramdax-join; show ActiveState engramdax-join
[ $(show InactiveExitTimestampMonotonic engramdax-join) -gt $(show ActiveEnterTimestampMonotonic systemd-udev-trigger) ]
echo $?
grep -c ^kmem /proc/modules
journalctl -u engramdax-join -o cat
"""


def boot_again(rack: Rack, root: Path) -> None:
    """Boot both with memdevs in another order: the owner as ever, the other as what udev install makes of a host."""
    install = [sys.executable, "-m", "engramdax", "udev", "install", "--keep-kmem-off", "--root", str(root)]
    subprocess.run(install, check=True, stdout=subprocess.DEVNULL)
    first, second = rack.hosts
    for host in rack.hosts:
        host.shut_down()
    first.boot(["pmem", "ram"])
    second.boot(["pmem", "ram"], systemd=root)
    for host in rack.hosts:
        host.wait_ready()


def by_pool(results: list[Result]) -> dict[str, Any]:
    return dict(zip(POOLS, results, strict=False))


@pytest.mark.parametrize("pool", POOLS)
def test_provisioned_pool_is_joined_admitted_loaded_and_gathered(story: Story, rack: Rack, pool: str) -> None:
    made = by_pool(story.results["provision"])[pool].json()
    (joined,) = by_pool(story.results["join"])[pool].json()
    assert (made["name"], joined["name"], joined["uuid"]) == (pool, pool, made["uuid"])
    assert (joined["admitted"], joined["size"]) == (False, made["size"])
    by_pool(story.results["admit"])[pool].succeeded()
    by_pool(story.results["load"])[pool].succeeded()
    by_pool(story.results["gather before"])[pool].succeeded()
    assert story.rows["before"][pool] == story.tables[pool][story.ids].tobytes()


def test_discover_prints_how_to_join_what_another_host_provisioned(story: Story) -> None:
    joined = by_pool(story.results["join"])
    for pool, command in {"nvdimm": "--join namespace0.0", "pmem": "--join 0xe1"}.items():
        assert joined[pool].fitness["command"] == f"engramdax provision {command}"
        assert joined[pool].fitness["verdict"] == "unused"


def test_host_that_is_not_admitted_is_told_what_the_owner_has_to_run(story: Story) -> None:
    refused = story.results["join"][-1]
    admission = story.results["join"][POOLS.index("ram")].json()[0]["admission"]
    refused.failed(3, "is not admitted to the shared pool ram", f"its owner, run `{admission}`")
    assert admission.endswith("--name h1 --pool ram")


def test_joining_again_does_nothing(story: Story) -> None:
    again = story.results["join"][len(POOLS)].json()
    assert sorted(pool["name"] for pool in again) == sorted(POOLS)
    assert all(pool["steps"] == [] for pool in again)


def test_hosts_are_listed_and_admitting_again_says_so(story: Story) -> None:
    twice, listed = story.results["admit"][-2:]
    assert "was admitted to" in twice.succeeded().out
    assert [(h["name"], h["owner"]) for h in listed.json()["hosts"]] == [("h0", True), ("h1", False)]


@pytest.mark.parametrize(
    ("before", "after"), [("provisioned", "joined"), ("loaded", "gathered"), ("gathered", "joined again")]
)
def test_no_byte_of_the_media_changes_but_by_the_owner(story: Story, before: str, after: str) -> None:
    assert story.media[before] == story.media[after]


@pytest.mark.parametrize("pool", POOLS)
def test_after_a_reboot_in_another_order_the_same_pool_is_there_by_its_name(story: Story, pool: str) -> None:
    uuid = by_pool(story.results["provision"])[pool].json()["uuid"]
    for host in ("owner again", "join again"):
        (found,) = [p for p in story.results[host][0].json() if p["name"] == pool]
        assert (found["uuid"], found["admitted"]) == (uuid, True)
    assert story.rows["after"][pool] == story.tables[pool][story.ids].tobytes()


def test_boot_unit_makes_the_pools_visible_once_udev_has_found_their_devices(story: Story) -> None:
    system, result, state, after_udev, kmem, *journal = story.unit.splitlines()
    expected = ("running", "success", "active", "0", "0")
    assert (system, result, state, after_udev, kmem) == expected, story.unit
    assert sorted(line.split()[1] for line in journal if line.startswith("pool")) == sorted(POOLS)
    # Nothing was left to do.
    assert all(pool["steps"] == [] for pool in story.results["join again"][0].json())


READER = """
import numpy as np, time
import engramdax
table = engramdax.open("ram")["t"]
ids = np.arange(3000)
table.gather(ids)
print("reading", flush=True)

def lost():
    try:
        table.gather(ids)
    except engramdax.PoisonedRowsError as error:
        return len(error.ids)
    return 0

while not lost():  # the device may go in the middle of one: then that loses only the rows after it
    time.sleep(0.01)
print(table.name, lost(), flush=True)
"""


def test_reader_of_a_device_that_is_unplugged_gets_an_error_and_lives(story: Story, rack: Rack) -> None:
    host = rack.hosts[1]
    reader = host.start(["python", "-c", READER])
    while "reading" not in reader.output():
        assert reader.poll() is None
    host.unplug("ram")
    try:
        ended = reader.wait()
    finally:
        rack.reboot(host, order=["pmem", "ram"])
    assert (ended.code, ended.stdout) == (0, "reading\nt 3000\n"), ended.stderr


def test_deprovisioning_a_joined_pool_takes_only_the_view_away_and_the_owners_takes_all(
    story: Story, rack: Rack
) -> None:
    first, second = rack.hosts
    listing = "cxl list -R; ndctl list -N; daxctl list"
    before = digests(rack)
    lines = engramdax("provision --join", *(f"deprovision --pool {n}" for n in POOLS))
    *left, seen = run_all(second, [*lines, listing])
    for result in left:
        result.succeeded()
    assert '"region"' not in seen.out
    assert digests(rack) == before
    owner = run_all(
        first,
        [
            *engramdax("deprovision --pool ram", *(f"deprovision --force --pool {n}" for n in POOLS)),
            listing,
            "ls -A /var/lib/engramdax/pools",
            "cat /sys/bus/nd/devices/namespace0.0/mode",
        ],
    )
    owner[0].failed(3, "pool ram", "has other hosts admitted: h1", "engramdax hosts forget")
    for result in owner[1 : 1 + len(POOLS)]:
        result.succeeded()
    listed, records, mode = owner[-3:]
    assert '"region"' not in listed.out
    assert '"devdax"' not in listed.out.replace('"mode":"devdax",\n    "state":"disabled"', "")
    assert (records.out, mode.out) == ("", "raw\n")
