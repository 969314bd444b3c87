# SPDX-License-Identifier: Apache-2.0
"""`engramdax discover` beside sysfs and cxl, ndctl and daxctl, on hosts that have each kind of memory."""

from __future__ import annotations

import json
import signal
from typing import Any

import pytest
from batch import engramdax, run_all
from devices import POOLS, attach, find
from zygotes import wait_for

from tools.rack.guest import Completed, Guest
from tools.rack.rack import Rack

pytestmark = pytest.mark.rack

SECONDS = 120.0
"""A guest that is busy takes half a minute to start Python and import what discovery needs."""

LISTS = """
daxctl list -RDM; echo "//"; ndctl list -vvv -RDNX; echo "//"; cxl list -MR; echo "//"
for d in /sys/bus/dax/devices/dax*; do echo "$(basename $d) $(cat $d/size) $(cat $d/target_node) $(cat $d/dev)"; done
"""

# The interpreter of the environment, with libdaxctl, libndctl and libcxl in reach.
WITH_LIBRARIES = 'with-libraries "$(command -v python)" -m engramdax'


def discover(host: Guest) -> dict[str, Any]:
    found: dict[str, Any] = run_all(host, engramdax("discover --json"))[0].json()
    return found


def discover_with_libraries(host: Guest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(host.run(f"{WITH_LIBRARIES} discover --json", timeout=SECONDS).stdout)
    return found


def objects(text: str, key: str) -> list[dict[str, Any]]:
    """Give every object that has `key`, at whatever depth, in what a tool printed."""
    found: list[dict[str, Any]] = []
    waiting = [json.loads(text)] if text.strip() else []
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            found += [one] if key in one else []
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return found


def by_origin(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {d["origin"]: d for d in found["dax_devices"]}


@pytest.fixture(scope="module")
def attached(rack: Rack) -> dict[str, dict[str, str]]:
    """Give the paths of each pool's device, by host."""
    return {host.name: {pool: attach(rack, host, pool) for pool in POOLS} for host in rack.hosts}


@pytest.mark.parametrize("number", [0, 1])
def test_discover_says_what_sysfs_and_the_tools_say(rack: Rack, attached: dict[str, Any], number: int) -> None:
    host = rack.hosts[number]
    found = discover(host)
    daxctl, ndctl, cxl, sysfs = host.run(LISTS, timeout=SECONDS).stdout.split("//\n")
    devices = {d["name"]: d for d in found["dax_devices"]}
    for line in sysfs.splitlines():
        name, size, node, numbers = line.split()
        device = devices[name]
        assert (device["size"], device["target_node"]) == (int(size), int(node))
        assert device["device"] == [int(n) for n in numbers.split(":")]
    said = objects(daxctl, "chardev")
    assert {d["chardev"] for d in said} == devices.keys()
    for one in said:
        device = devices[one["chardev"]]
        assert (device["size"], device["align"], device["mode"]) == (one["size"], one["align"], one["mode"])
    namespaces = {n["name"]: n for n in found["namespaces"]}
    for one in objects(ndctl, "uuid"):
        if "map" in one:
            assert (namespaces[one["dev"]]["map"], namespaces[one["dev"]]["mode"]) == (one["map"], one["mode"])
            assert namespaces[one["dev"]]["uuid"] == one["uuid"]
    memdevs = {m["name"]: m for m in found["memdevs"]}
    assert {m["memdev"]: m["serial"] for m in objects(cxl, "serial")} == {n: m["serial"] for n, m in memdevs.items()}
    regions = {r["name"]: r for r in found["cxl_regions"]}
    assert {r["region"]: r["size"] for r in objects(cxl, "decode_state")} == {n: r["size"] for n, r in regions.items()}
    assert found["unread"] == []


def test_each_kind_is_there_on_both_hosts_with_the_same_memory_behind(rack: Rack, attached: dict[str, Any]) -> None:
    kinds = [by_origin(discover(host)) for host in rack.hosts]
    assert kinds[0].keys() == kinds[1].keys() == {"nvdimm", "hmem", "cxl-ram", "cxl-pmem"}
    for kind, device in kinds[0].items():
        other = kinds[1][kind]
        assert (device["size"], device["align"], device["mode"]) == (other["size"], other["align"], "devdax")
        assert len(device["memdevs"]) == len(other["memdevs"]) == (1 if kind.startswith("cxl") else 0)
    for host, found in zip(rack.hosts, kinds, strict=True):
        for pool, path in attached[host.name].items():
            assert found[{"ram": "cxl-ram", "pmem": "cxl-pmem"}.get(pool, pool)]["node"] == path


def test_pool_on_each_kind_is_found_on_the_other_host(rack: Rack, attached: dict[str, Any]) -> None:
    first, second = rack.hosts
    options = "--single-host --overwrite-unknown --force"
    commands = [f"provision {p} --name {n}-pool {options} --json" for n, p in attached[first.name].items()]
    made = [done.json() for done in run_all(first, engramdax(*commands))]
    seen = discover(second)["dax_devices"]
    pools = {d["fitness"]["pool"]["name"]: d["fitness"]["pool"]["uuid"] for d in seen if d["fitness"]["pool"]}
    assert {p["name"]: p["uuid"] for p in made} == pools
    assert {d["fitness"]["verdict"] for d in seen} == {"pool"}


def test_libraries_agree(rack: Rack, attached: dict[str, Any]) -> None:
    for host in rack.hosts:
        found = discover_with_libraries(host)
        assert found["libraries"] == ["daxctl", "ndctl", "cxl"]
        assert found["disagreements"] == []


def test_device_in_use_without_a_pool_names_the_process(rack: Rack, attached: dict[str, Any]) -> None:
    host = rack.hosts[0]
    path = attached[host.name]["hmem"]
    run_all(host, engramdax(f"deprovision --force --pool {path}"))
    user = host.start_python(f"""
import mmap, os, time
memory = mmap.mmap(os.open({path!r}, os.O_RDONLY), 2 << 20, prot=mmap.PROT_READ)
print("mapped", flush=True)
time.sleep(600)
""")
    wait_for(user, "mapped")
    fitness = by_origin(discover(host))["hmem"]["fitness"]
    user.kill()
    user.wait()
    assert (fitness["verdict"], fitness["why"]) == ("in-use", f"in use by process {user.pid}")


def test_user_without_rights_sees_what_there_is_and_what_needs_root(rack: Rack, attached: dict[str, Any]) -> None:
    host = rack.hosts[0]
    # Run as root first: such a user may not even look into root's home, where what is imported may be.
    program = """import os, sys; from engramdax.commands import main
main.run(["discover"]); print("AND NOW", flush=True)
os.setgroups([]); os.setgid(65534); os.setuid(65534); sys.exit(main.run(["discover"]))"""
    done = host.run(["python", "-c", program], timeout=SECONDS)
    as_root, _, as_user = done.stdout.partition("AND NOW\n")
    assert "no permission" not in as_root
    assert as_user.count("no permission") == len(POOLS)
    assert "can be read by root only: `sudo engramdax discover`" in as_user
    for path in attached[host.name].values():
        assert path.removeprefix("/dev/") in as_user


@pytest.mark.parametrize("udevd", [True, False])
def test_watch_sees_a_device_go_and_come(rack: Rack, attached: dict[str, Any], udevd: bool) -> None:
    host = rack.hosts[0]
    name = attached[host.name]["ram"].removeprefix("/dev/")
    region = host.run(f"basename $(dirname $(dirname $(realpath /sys/bus/dax/devices/{name})))").stdout.strip()
    if udevd:
        host.start_udevd()
    try:
        watcher = host.start("exec engramdax discover --watch")
        wait_for(watcher, name)
        host.run(f"cxl disable-region -f {region}")
        wait_for(watcher, f"removed {name}: cxl-ram, 256.0 MiB, devdax")
        host.run(f"cxl enable-region {region}")
        output = wait_for(watcher, f"added {name}: cxl-ram, 256.0 MiB")
        watcher.kill(signal.SIGINT)
        ended: Completed = watcher.wait()
        assert (ended.code, ended.stderr) == (0, ""), output
    finally:
        host.run(f"cxl enable-region {region}; daxctl reconfigure-device -m devdax {name}", check=False)
        if udevd:
            host.run("udevadm control --exit")


def test_kmem_memory_is_told_online_and_offline(rack: Rack, attached: dict[str, Any]) -> None:
    host = rack.hosts[0]
    name = attached[host.name]["ram"].removeprefix("/dev/")
    try:
        host.run(f"daxctl reconfigure-device -m system-ram -N {name}")
        offline = by_origin(discover(host))["cxl-ram"]
        host.run(f"daxctl online-memory {name}")
        found = discover_with_libraries(host)
    finally:
        host.run(f"daxctl offline-memory {name}; daxctl reconfigure-device -m devdax {name}", check=False)
    assert (offline["mode"], offline["online_blocks"], offline["memory_blocks"]) == ("system-ram", 0, 2)
    assert offline["fitness"]["verdict"] == "system-ram-offline"
    online = by_origin(found)
    assert found["disagreements"] == []
    assert (online["cxl-ram"]["online_blocks"], online["cxl-ram"]["fitness"]["verdict"]) == (2, "system-ram")
    # Which runs what has just been run (test_refusals.py).
    command = f"engramdax provision --offline-memory --overwrite-unknown {name}"
    assert online["cxl-ram"]["fitness"]["command"] == command


def test_unplugged_memdev_and_its_device_are_gone(rack: Rack, attached: dict[str, Any]) -> None:
    host = rack.hosts[1]
    serial = rack.pools["ram"].serial
    assert serial in [m["serial"] for m in discover(host)["memdevs"]]
    host.unplug("ram")
    try:
        found = discover(host)
        assert serial not in [m["serial"] for m in found["memdevs"]]
        assert by_origin(found).keys() == {"nvdimm", "hmem", "cxl-pmem"}
        assert find(host, rack.pools["ram"]) is None
        # What stays behind of the region says that it is no good.
        assert all(r["fitness"]["verdict"] == "incomplete" for r in found["cxl_regions"] if r["mode"] == "ram")
    finally:
        host.crash()
