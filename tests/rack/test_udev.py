# SPDX-License-Identifier: Apache-2.0
"""A real udevd with the rules of `engramdax udev install`: names of pools, and who may read and write them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
from batch import Result
from devices import attach
from memory import store
from resident import Resident

from engramdax.format.geometry import SUPERBLOCK_BYTES, standard, superblock_places
from engramdax.format.superblock import Superblock
from tools.rack.guest import Guest
from tools.rack.prefix import Prefix
from tools.rack.rack import Rack

pytestmark = pytest.mark.rack

RULES = "/etc/udev/rules.d/70-engramdax.rules"
HELPER = "/usr/lib/udev/engramdax-dax-id"
BLACKLIST = "/etc/modprobe.d/engramdax.conf"
SERIAL = "cxl-0xfedcba9876543210"
MEMBER = "setpriv --reuid nobody --regid nogroup --groups engramdax env HOME=/nowhere"
STRANGER = "setpriv --reuid nobody --regid nogroup --clear-groups env HOME=/tmp"
LOADER = "setpriv --reuid engramdax --regid engramdax --clear-groups env HOME=/nowhere"
POOL_BYTES = 64 << 20
"""Of pools that only have to be there: less than any device has."""


def set_up_udev(host: Guest) -> None:
    """Install, with udevd there already as on a host that is up."""
    host.start_udevd()
    Resident(host).run("udev install --keep-kmem-off --json").succeeded()


@pytest.fixture(scope="module")
def udev_host(rack: Rack) -> Iterator[Guest]:
    """Give a host with udevd and the rules."""
    host = rack.hosts[1]
    for name in ("hmem", "ram", "pmem"):
        attach(rack, host, name)
    set_up_udev(host)
    yield host
    host.run("udevadm control --exit", check=False)


@pytest.fixture
def devices(rack: Rack, udev_host: Guest) -> dict[str, str]:
    """Give the paths of two devices without a pool, by their names in the rack."""
    paths = {name: attach(rack, udev_host, name) for name in ("hmem", "ram")}
    for path in paths.values():
        for place in superblock_places(POOL_BYTES):
            store(udev_host, path, place, bytes(SUPERBLOCK_BYTES))
    udev_host.run(LOOK_AGAIN)
    return paths


LOOK_AGAIN = "udevadm trigger --settle --action=change --subsystem-match=dax"


def put_pool(host: Guest, path: str, name: str) -> str:
    """Make of a device what udev takes for a pool: its superblock; gives the uuid."""
    uuid = uuid4()
    superblock = Superblock(uuid, uuid, name, POOL_BYTES, standard(POOL_BYTES), shared=False, created=1)
    for place in superblock.geometry.superblocks:
        store(host, path, place, superblock.to_bytes())
    return str(uuid)


def access(host: Guest, path: str) -> str:
    return host.run(f"stat -c '%U %G %a' {path}").stdout.strip()


def links(host: Guest, path: str) -> set[str]:
    """Give the links below /dev/engramdax that lead to a device."""
    found = host.run("cd /dev/engramdax 2>/dev/null && for l in */*; do echo $l $(readlink -f $l); done", check=False)
    return {line.split()[0] for line in found.stdout.splitlines() if line.endswith(f" {path}")}


def test_rules_please_udevadm_and_the_helper_answers_at_once(
    udev_host: Guest, devices: dict[str, str], record_property: Callable[[str, object], None]
) -> None:
    host, path = udev_host, devices["ram"]
    host.run(f"udevadm verify {RULES}")
    uuid = put_pool(host, path, "quick")
    # Since 257 it runs no program, but says which it would.
    tested = host.run(f"udevadm test --action=change /sys/bus/dax/devices/{Path(path).name}")
    assert f"{HELPER} {path}" in tested.stderr
    took = host.python(f"""
import subprocess, time
began = time.monotonic()
for _ in range(20):
    subprocess.run([{HELPER!r}, {path!r}], stdout=subprocess.DEVNULL)
print((time.monotonic() - began) / 20)
""")
    record_property("helper_seconds", float(took.stdout))
    print(f"the helper took {float(took.stdout) * 1000:.1f} ms on an emulated processor, its start included")
    assert host.run([HELPER, path]).stdout.splitlines() == [
        "ENGRAMDAX_SERIAL=0xfedcba9876543210",
        "ENGRAMDAX_CXL_ID=0xfedcba9876543210",
        f"ENGRAMDAX_POOL_UUID={uuid}",
        "ENGRAMDAX_POOL_NAME=quick",
    ]


def test_group_has_only_a_device_with_a_pool_and_only_its_user_writes(
    udev_host: Guest, devices: dict[str, str]
) -> None:
    host, ram, other = udev_host, devices["ram"], devices["hmem"]
    assert access(host, ram) == access(host, other) == "root root 600"
    assert links(host, ram) == {f"by-id/{SERIAL}"}
    assert links(host, other) == set()

    engramdax = Resident(host)
    uuid = engramdax.json(f"provision {ram} --name r1 --single-host --overwrite-unknown")["uuid"]
    assert access(host, ram) == "engramdax engramdax 640"
    assert links(host, ram) == {f"by-id/{SERIAL}", f"by-id/pool-{uuid}", "by-name/r1"}
    assert access(host, other) == "root root 600"

    let_others_run_python(host)
    table = np.random.default_rng(1).integers(0, 256, (300, 264), np.uint8)
    for name, array in (("table", table), ("ids", np.array([7, 299]))):
        buffer = io.BytesIO()
        np.save(buffer, array)
        host.put(f"/run/{name}.npy", buffer.getvalue())
    # The user of the pools, and not root: locks and records must be its own to use.
    engramdax.run("load /run/table.npy --pool r1", under=LOADER).succeeded()
    host.run("mkdir -pm 777 /run/out")
    engramdax.run("gather table --pool r1 --ids /run/ids.npy --out /run/out/rows.npy", under=MEMBER).succeeded()
    assert np.load(io.BytesIO(host.get("/run/out/rows.npy"))).tobytes() == table[[7, 299]].tobytes()
    refused(engramdax.run("rm table --pool r1", under=MEMBER), "for writing")
    # Also who may not read it learns where it is, and what is missing.
    refused(engramdax.run("ls --pool r1", under=STRANGER), f"no permission to open {ram}", "group")

    engramdax.run("deprovision --pool r1 --force").succeeded()
    assert access(host, ram) == "root root 600"
    assert links(host, ram) == {f"by-id/{SERIAL}"}


def let_others_run_python(host: Guest) -> None:
    """Open the way to the interpreter, which may lie in a home of root's."""
    folders = {folder for path in (Path(sys.executable), Path(sys.executable).resolve()) for folder in path.parents}
    host.run(["chmod", "o+x", *map(str, folders - {Path("/")})])


def refused(done: Result, *said: str) -> None:
    done.failed(1, *said)
    assert done.err.count("\n") == 1


def test_device_without_its_driver_is_root_s_until_it_is_back(udev_host: Guest, devices: dict[str, str]) -> None:
    host, path = udev_host, devices["hmem"]
    uuid = put_pool(host, path, "bound")
    host.run(LOOK_AGAIN)
    driver, name = "/sys/bus/dax/drivers/device_dax", Path(path).name
    host.run(f"echo {name} > {driver}/unbind; udevadm settle")
    assert access(host, path) == "root root 600"
    assert links(host, path) == set()
    host.run(f"echo {name} > {driver}/bind; udevadm settle")
    assert access(host, path) == "engramdax engramdax 640"
    assert links(host, path) == {f"by-id/pool-{uuid}", "by-name/bound"}


def test_of_two_pools_with_one_name_the_uuid_tells_which(udev_host: Guest, devices: dict[str, str]) -> None:
    host = udev_host
    uuids = {path: put_pool(host, path, "same") for path in devices.values()}
    host.run(LOOK_AGAIN)
    for path, uuid in uuids.items():
        assert f"by-id/pool-{uuid}" in links(host, path)
    first, second = devices.values()
    assert "by-name/same" in links(host, first) ^ links(host, second)


def test_kmem_is_kept_from_loading_by_itself(udev_host: Guest, prefix: Prefix) -> None:
    host = udev_host
    # udevd loads what a device's modalias asks for, as at boot.
    load_drivers = "udevadm control --reload; udevadm trigger --settle --action=add --subsystem-match=dax"
    host.run(f"cp {prefix.udev_rules}/80-drivers.rules /run/udev/rules.d/; {load_drivers}")
    assert host.run("test -e /sys/module/kmem", check=False).code == 1
    host.run(f"mv {BLACKLIST} /run/; {load_drivers}")
    assert host.run("test -e /sys/module/kmem", check=False).code == 0
    host.run(f"{prefix.busybox} rmmod kmem; mv /run/engramdax.conf {BLACKLIST}; rm /run/udev/rules.d/80-drivers.rules")


def test_names_are_the_same_after_a_boot_with_memdevs_in_another_order(rack: Rack, udev_host: Guest) -> None:
    host = udev_host
    names = {"ram": "volatile", "pmem": "lasting"}
    uuids = {pool: put_pool(host, attach(rack, host, pool), name) for pool, name in names.items()}
    host.run(LOOK_AGAIN)
    before = {pool: links(host, attach(rack, host, pool)) for pool in names}
    memdevs = host.run("cat /sys/bus/cxl/devices/mem*/serial").stdout
    rack.reboot(host, order=["ram", "pmem"] if memdevs.startswith("0xe1") else ["pmem", "ram"])
    assert host.run("cat /sys/bus/cxl/devices/mem*/serial").stdout != memdevs
    # A host's /etc does not outlive a boot here. The devices appear when the rules are there: nobody triggers.
    set_up_udev(host)
    paths = {pool: attach(rack, host, pool) for pool in names}
    host.run("udevadm settle")
    for pool, name in names.items():
        assert links(host, paths[pool]) == before[pool] > {f"by-name/{name}", f"by-id/pool-{uuids[pool]}"}
        assert access(host, paths[pool]) == "engramdax engramdax 640"
    assert any(link.startswith("by-id/namespace-") for link in before["pmem"])


def test_removal_leaves_no_trace_on_devices_or_in_files(udev_host: Guest, devices: dict[str, str]) -> None:
    host, path = udev_host, devices["ram"]
    put_pool(host, path, "r1")
    host.run(LOOK_AGAIN)
    assert access(host, path) == "engramdax engramdax 640"
    kept = "/etc/tmpfiles.d/engramdax.conf"
    host.run(f"echo '# mine' >> {kept}")
    assert Resident(host).json("udev remove")["kept"] == [kept]
    assert access(host, path) == "root root 600"
    assert links(host, path) == set()
    left = host.run(f"ls {RULES} {HELPER} {BLACKLIST} {kept} /etc/systemd/system/engramdax-join.service", check=False)
    assert left.stdout == f"{kept}\n"


def test_program_that_fails_or_does_nothing_undoes_the_installation(udev_host: Guest) -> None:
    host = udev_host
    engramdax = Resident(host)
    engramdax.run("udev remove --force")
    before = host.run("ls -R /etc /usr/lib/udev").stdout
    for script, said in (("echo broken >&2; exit 1", "failed: broken"), ("exit 0", "did not make /run/engramdax")):
        host.run("mkdir -p /run/bad; rm -rf /run/engramdax")
        host.put("/run/bad/systemd-tmpfiles", f"#!/bin/sh\n{script}\n".encode())
        host.run("chmod +x /run/bad/*")
        done = engramdax.run("udev install", under="env PATH=/run/bad:$PATH")
        assert (done.code, done.out, said in done.err) == (1, "", True), done.err
        assert host.run("ls -R /etc /usr/lib/udev").stdout == before
