# SPDX-License-Identifier: Apache-2.0
"""Pools on real drivers, by the product's own commands: provisioned on one host, joined by the other, and unmade."""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from batch import Command, Remedy, Result, engramdax, get_ready, run_all
from devices import MEMDEV, POOLS, find
from memory import load, store

from tools.rack.guest import Guest
from tools.rack.pools import LABEL_BYTES, Kind
from tools.rack.prefix import Prefix
from tools.rack.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.timeout(900)]

CHUNK = 1 << 20

TARGETS = {"nvdimm": "namespace0.0", "ram": "0xfedcba9876543210", "pmem": "0xe1"}
"""What an operator names; the device of hmem has another number at each boot."""


def as_new(rack: Rack) -> None:
    """Boot both hosts with media, labels and disks as they were at first."""
    for host in rack.hosts:
        host.crash()
        (host.folder / "disk").unlink(missing_ok=True)
    for pool in rack.pools.values():
        blank(pool.file(rack.folder), pool.size)
        if pool.kind is Kind.CXL_PMEM:
            blank(pool.labels(rack.folder), LABEL_BYTES)
    rack.boot(*rack.hosts)
    for host in rack.hosts:
        get_ready(host)


def blank(file: Path, size: int) -> None:
    with file.open("r+b") as media:
        media.truncate(0)
        media.truncate(size)


def digests(rack: Rack) -> dict[str, str]:
    """Give what stands on all media, labels included."""
    files = [rack.media(name) for name in POOLS]
    files += [pool.labels(rack.folder) for pool in rack.pools.values() if pool.kind is Kind.CXL_PMEM]
    with ThreadPoolExecutor(2) as threads:
        return dict(zip((f.name for f in files), threads.map(digest, files), strict=True))


def digest(file: Path) -> str:
    """Give a checksum of the places and bytes that are not zero: most of the media are holes."""
    found = hashlib.sha256()
    zeros = bytes(CHUNK)
    with file.open("rb") as media:
        at, end = 0, media.seek(0, os.SEEK_END)
        while at < end:
            try:
                at = os.lseek(media.fileno(), at, os.SEEK_DATA) // CHUNK * CHUNK
            except OSError:  # only a hole is left
                break
            data = os.pread(media.fileno(), CHUNK, at)
            if data != zeros:
                found.update(at.to_bytes(8, "little") + data)
            at += CHUNK
    return found.hexdigest()


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
def story(rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Story:
    """Provision, join, admit, load, gather, reboot, join again, gather again, and leave."""
    folder = tmp_path_factory.mktemp("tables")
    first, second = rack.hosts
    random = np.random.default_rng(5)
    told = Story(ids=random.integers(0, 3_000, (100, 3), np.int64))
    np.save(folder / "ids.npy", told.ids)
    for name in POOLS:
        told.tables[name] = random.integers(0, 256, (3_000, 264), np.uint8)
        np.save(folder / f"{name}.npy", told.tables[name])
    as_new(rack)

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
journalctl -u engramdax-join -o cat | grep '^pool'
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
    system, result, state, after_udev, kmem, *pools = story.unit.splitlines()
    assert (system, result, state, after_udev, kmem) == ("running", "success", "active", "0", "0")
    assert sorted(line.split()[1] for line in pools) == sorted(POOLS)
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


# What is refused, and what fails.


@pytest.fixture(scope="module")
def host(rack: Rack) -> Guest:
    """Give a host with nothing on its devices."""
    as_new(rack)
    return rack.hosts[0]


@contextmanager
def unchanged(rack: Rack) -> Iterator[None]:
    before = digests(rack)
    yield
    assert digests(rack) == before


def test_file_systems_mounts_and_other_modes_are_refused(host: Guest, rack: Rack) -> None:
    host.run("mkfs.ext4 -q -L precious /dev/pmem0; mkdir -p /run/mnt; sync")
    with unchanged(rack):
        plain, listed = run_all(
            host, [Command("provision namespace0.0"), Command("provision namespace0.0 --overwrite-unknown")]
        )
    plain.failed(3, "namespace0.0 holds a ext4 signature labelled precious", "--force")
    listed.failed(3, "ext4", "--force")
    # What is swapped on or mounted is in use, whatever is forced.
    host.run("ndctl create-namespace -f -e namespace0.0 -m fsdax -M mem && mkfs.ext4 -q /dev/pmem0")
    # A file system that may be written to writes now and then by itself.
    host.run("mount /dev/pmem0 /run/mnt && echo kept >/run/mnt/file && mount -o remount,ro /run/mnt && sync")
    try:
        with unchanged(rack):
            results = run_all(
                host, engramdax("provision namespace0.0", "provision namespace0.0 --force", "provision region0 --force")
            )
        for result in results:
            result.failed(3, "namespace0.0 is in use: /dev/pmem0 is mounted")
        assert host.run("cat /run/mnt/file").stdout == "kept\n"
        # The command that says so unmounts it, and then it can be had.
        forced, gone, mode = run_all(
            host,
            [
                Remedy("namespaces", "name", "namespace0.0", ("--name", "unmounted")),
                Command("deprovision"),
                "cat /sys/bus/nd/devices/namespace0.0/mode; mkfs.ext4 -q /dev/pmem0",
            ],
        )
        assert forced.fitness["verdict"] == "in-use"
        assert forced.fitness["why"] == "fsdax, mounted at /run/mnt; if nobody needs that"
        assert forced.fitness["command"] == "umount /run/mnt && engramdax provision --force namespace0.0"
        assert "pool unmounted (" in forced.succeeded().out
        gone.succeeded()
        assert mode.succeeded().out == "memory\n"  # fsdax, as it was
    finally:
        host.run("umount /run/mnt", check=False)
    with unchanged(rack):
        (refused,) = run_all(host, engramdax("provision namespace0.0"))
    refused.failed(3, "namespace0.0 holds a ext4 signature, in fsdax mode", "--force")
    host.run("ndctl create-namespace -f -e namespace0.0 -m raw")


def test_foreign_superblock_and_device_in_use_are_refused(host: Guest, rack: Rack) -> None:
    name = find(host, rack.pools["hmem"]) or ""
    host.run(
        f"daxctl reconfigure-device -m devdax {name}; truncate -s 64M /run/image; mkfs.ext4 -q -L other /run/image"
    )
    superblock = host.run("head -c 2048 /run/image | tail -c 1024 | xxd -p -c 2048").stdout.strip()
    store(host, f"/dev/{name}", 1024, bytes.fromhex(superblock))
    with unchanged(rack):
        results = run_all(
            host,
            [
                *engramdax(f"provision {name}", f"provision /dev/{name} --overwrite-unknown"),
                f"sleep 900 </dev/{name} >/dev/null 2>&1 & echo $! | tee /run/holder",
                Command(f"provision {name} --force --overwrite-unknown"),
                "kill $(cat /run/holder)",
            ],
        )
    for result in results[:2]:
        result.failed(3, "holds a ext4 signature labelled other", "--force")
    results[3].failed(3, f"{name} is in use by process {results[2].out.strip()} (sleep)")
    assert load(host, f"/dev/{name}", 1024, 64).hex() == superblock[:128]


def test_system_ram_is_refused_until_it_may_be_taken(host: Guest, prefix: Prefix) -> None:
    memdev = MEMDEV.format(serial=0xFEDC_BA98_7654_3210)
    host.run(f"{memdev} cxl create-region -t ram -d decoder0.0 -m $memdev")
    name = host.run("basename $(ls -d /sys/bus/cxl/devices/region*/dax_region*/dax*.0)").stdout.strip()
    host.run(f"daxctl reconfigure-device -m system-ram {name}")
    block = "$(dirname $(grep -lx Movable /sys/devices/system/memory/memory*/valid_zones | head -1))/state"
    # Each way to fail at each of daxctl's steps, by the real program as far as it gets.
    failures = {
        "offline-memory does nothing": ("offline-memory", "exit 0"),
        "offline-memory dies half-way": ("offline-memory", f"echo offline >{block}; kill -9 $$"),
        "reconfigure-device finds it busy": ("reconfigure-device", f'REAL online-memory {name}; exec REAL "$@"'),
        "reconfigure-device dies half-way": ("reconfigure-device", f"REAL disable-device {name}; kill -9 $$"),
        "reconfigure-device does nothing": ("reconfigure-device", "exit 0"),
    }
    listing = f"daxctl list -d {name}"
    failing: list[str | Command | Remedy] = []
    for path in wrap(host, prefix, *(("daxctl", verb, script) for verb, script in failures.values())):
        failing += [Command(f"provision {name} --offline-memory --overwrite-unknown", path, settle=1), listing]
    taking = Remedy("dax_devices", "name", name, ("--json",))
    try:
        refused, before, *failed, taken, gone, mode, again, end = run_all(
            host,
            [
                Command(f"provision {name} --force --overwrite-unknown"),
                listing,
                *failing,
                taking,
                Command("deprovision"),
                listing,
                # What its pool left is nobody's, and that the kernel had it before does not matter any more.
                taking,
                Command("deprovision"),
            ],
        )
        refused.failed(3, f"{name} is online as system RAM (2 of 2 blocks)", "--offline-memory", "EBUSY")
        assert '"online_memblocks":2' in before.out
        for (failure, (verb, _)), done, after in zip(failures.items(), failed[::2], failed[1::2], strict=True):
            done.failed(3 if "busy" in failure else 1, f"`daxctl {verb} ")
            assert "failed too" not in done.err
            assert after.out == before.out, failure
        assert taken.fitness["command"] == f"engramdax provision --offline-memory --overwrite-unknown {name}"
        assert taken.json()["name"] == name
        assert '"system-ram"' in mode.out
        assert again.fitness["verdict"] == "system-ram-offline"
        assert again.fitness["command"] == f"engramdax provision {name}"
        for result in (gone, again, end):
            result.succeeded()
    finally:
        host.run(
            f"daxctl offline-memory {name}; daxctl disable-device {name}; cxl destroy-region -f all; "
            f"{prefix.busybox} rmmod kmem",
            check=False,
        )
    assert host.run("ls -d /sys/bus/cxl/devices/region*", check=False).code != 0


def test_namespace_with_page_structures_on_the_device_is_unfit_for_sharing(host: Guest, rack: Rack) -> None:
    host.run("ndctl create-namespace -f -e namespace0.0 -m devdax -M dev")
    with unchanged(rack):
        (refused, join) = run_all(host, engramdax("provision namespace0.0 --force", "provision --join namespace0.0"))
        # The other host has it raw still: if the kernel looked, it would write its own page structures there.
        (other,) = run_all(rack.hosts[1], engramdax("provision --join namespace0.0"))
    refused.failed(3, "namespace0.0 is unfit for sharing: its page structures are on the device (map=dev)", "-M mem")
    join.failed(3, "namespace0.0 is unfit for sharing")
    other.failed(3, "namespace0.0 is unfit for sharing")
    made, device, gone = run_all(
        host,
        [
            Remedy("dax_devices", "origin", "nvdimm"),
            Remedy("dax_devices", "origin", "nvdimm"),
            Command("deprovision"),
        ],
    )
    assert made.succeeded().fitness["verdict"] == "map-dev"
    assert made.fitness["command"] == "ndctl create-namespace -f -e namespace0.0 -m devdax -M mem"
    assert device.fitness["command"].startswith("engramdax provision --overwrite-unknown /dev/dax")
    for result in (device, gone):
        result.succeeded()
    host.run("ndctl create-namespace -f -e namespace0.0 -m raw")


FAILURES = {
    "busy": "exit 240",
    "no device": "exit 250",
    "nothing done": "echo created 0 namespaces >&2; exit 0",
    "killed before": "kill -9 $$",
}
"""What a wrapper does in the place of the real program."""

KILLED_BEHIND = 'REAL "$@" >/dev/null; kill -9 $$'
"""It has done its work, which is then believed."""


def test_step_made_to_fail_leaves_what_was_there_before(host: Guest, rack: Rack, prefix: Prefix) -> None:
    listing = (
        "cd /sys/bus; ls nd/devices cxl/devices dax/devices; grep . nd/devices/*/{mode,size,holder} "
        "cxl/devices/mem*/serial; ls -d dax/devices/*/driver"
    )
    commands: list[str | Command] = [listing]
    cases = [
        ("cxl", "create-region", "0xe1"),
        ("ndctl", "create-namespace", "0xe1"),
        ("ndctl", "create-namespace", "namespace0.0"),
    ]
    positions: list[tuple[str, str, str]] = []
    for program, verb, target in cases:
        for failure, script in FAILURES.items():
            (path,) = wrap(host, prefix, (program, verb, script))
            # What does not come is not worth the wait that what comes may need.
            commands += [Command(f"provision {target} --overwrite-unknown", path, settle=1), listing]
            positions.append((program, verb, failure))
    for missing in ("cxl", "ndctl"):
        other = {"cxl": "ndctl", "ndctl": "cxl"}[missing]
        folder = f"/run/wrappers/without-{missing}"
        host.run(f"mkdir -p {folder}; ln -s $(command -v {other}) $(command -v daxctl) {folder}/")
        commands += [Command("provision 0xe1 --overwrite-unknown", f"{folder}:/usr/bin:/bin"), listing]
        positions.append((missing, "", "missing"))
    # Found only when region and namespace are there: what was made up to there goes again.
    commands += [Command("provision 0xe1"), listing]
    with rack.media("pmem").open("r+b") as media:
        media.seek(64 << 20)
        media.write(b"somebody's")
    with unchanged_but_labels(rack):
        before, *results, unknown, last = run_all(host, commands, timeout=400)
    unknown.failed(3, f"is not empty: unknown bytes at {64 << 20}", "--overwrite-unknown")
    assert last.out == before.out
    for (program, verb, failure), failed, after in zip(positions, results[::2], results[1::2], strict=True):
        if failure == "missing":
            failed.failed(1, f"{program} is not installed; install the package {program}")
        else:
            failed.failed(3 if failure == "busy" else 1, f"`{program} {verb} ")
            assert "failed too" not in failed.err
        assert after.out == before.out, f"{program} {verb} {failure}"


def wrap(host: Guest, prefix: Prefix, *wrappers: tuple[str, str, str]) -> list[str]:
    """Put scripts before verbs of real programs, REAL in the scripts; gives for each a PATH with it."""
    archive = io.BytesIO()
    paths = []
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for program, verb, script in wrappers:
            folder = f"run/wrappers/{uuid4()}"
            text = f'#!/bin/bash\nif [ "$1" = {verb} ]; then\n{script}\nfi\nexec REAL "$@"\n'
            content = text.replace("REAL", str(prefix.bin / program)).encode()
            file = tarfile.TarInfo(f"{folder}/{program}")
            file.size, file.mode = len(content), 0o755
            tar.addfile(file, io.BytesIO(content))
            paths.append(f"/{folder}:{host._environment['PATH']}")
    host.run("tar x", stdin=archive.getvalue())
    return paths


@contextmanager
def unchanged_but_labels(rack: Rack) -> Iterator[None]:
    """Check the media; a label area that was never used is initialised by the first namespace, and stays so."""
    before = {name: text for name, text in digests(rack).items() if not name.endswith(".labels")}
    yield
    assert {name: text for name, text in digests(rack).items() if not name.endswith(".labels")} == before


def test_program_that_died_after_its_work_is_believed_by_its_work(host: Guest, prefix: Prefix) -> None:
    (path,) = wrap(host, prefix, ("ndctl", "create-namespace", KILLED_BEHIND))
    made, gone = run_all(
        host,
        [
            Command("provision 0xe1 --name survivor --json --overwrite-unknown", path),
            Command("deprovision --pool survivor"),
        ],
    )
    assert made.json()["name"] == "survivor"
    gone.succeeded()


def test_slice_of_a_new_region_is_as_large_as_was_said(host: Guest) -> None:
    size = 64 << 20
    made, too_large, gone = run_all(
        host,
        engramdax(
            f"provision 0xfedcba9876543210 --size {size} --align 2M --name part --json --overwrite-unknown",
            "provision 0xfedcba9876543210 --size 1G --name more",
            "deprovision --pool part",
        ),
    )
    assert made.json()["size"] == size
    too_large.failed(1, "give a smaller --size")
    gone.succeeded()
    assert shlex.split(host.run("ls /sys/bus/cxl/devices").stdout).count("region2") == 0
