# SPDX-License-Identifier: Apache-2.0
"""What provision refuses on real drivers, and what it leaves behind where a step fails: what was there before."""

from __future__ import annotations

import io
import shlex
import tarfile
from uuid import uuid4

import pytest
import zygotes
from batch import Command, Remedy, engramdax, run_all
from devices import MEMDEV, find
from media import unchanged, unchanged_but_labels
from memory import load, store
from selection import ALL

from tools.rack.guest import Guest
from tools.rack.prefix import Prefix
from tools.rack.rack import Rack

pytestmark = [pytest.mark.rack, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def host(new_rack: Rack) -> Guest:
    """Give a host with nothing on its devices."""
    for host in new_rack.hosts:
        zygotes.start(host)
    return new_rack.hosts[0]


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

EVERY_RUN = ("busy", "killed before")
"""Those that a plain run has for each step: one makes the whole command again, which takes six seconds there."""

KILLED_BEHIND = 'REAL "$@" >/dev/null; kill -9 $$'
"""It has done its work, which is then believed."""

RAM, PMEM = 0xFEDC_BA98_7654_3210, 0xE1

HELD = """
python3 -I -S -c 'import os, time; os.open("/dev/pmem0", os.O_EXCL); print(flush=True); time.sleep(900)' \
    </dev/null 2>/dev/null >/run/held & holder=$!
while [ ! -s /run/held ]; do sleep 0.1; done
REAL "$@"; code=$?; kill $holder; rm /run/held; exit $code
"""
"""Hold the namespace as a mount does while the real program works."""

NAMESPACE = 'sed -n \'s/.*"dev":"\\(namespace[0-9.]*\\)".*/\\1/p\''


def in_region(command: str) -> str:
    """Give a command of daxctl's with the region and its device that are there by then."""
    here = "r=$(basename /sys/bus/cxl/devices/region*); r=${r#region}; d=dax$r.0"
    return f"{here}; {command}"


def test_step_made_to_fail_leaves_what_was_there_before(host: Guest, rack: Rack, prefix: Prefix) -> None:
    listing = (
        # The bus of nvdimms also has seeds of its own, which count up.
        "cd /sys/bus; ls -d nd/devices/{region,namespace,nmem}* cxl/devices/* dax/devices/*; "
        "grep . nd/devices/namespace*/{mode,size,holder} cxl/devices/mem*/serial; ls -d dax/devices/*/driver"
    )
    hmem = find(host, rack.pools["hmem"])
    half_namespace = f'n=$(REAL "$@" | {NAMESPACE}); REAL disable-namespace $n >/dev/null; kill -9 $$'
    taken = in_region("REAL create-device -r $r -s 208M >/dev/null; ")
    enabled = in_region("REAL reconfigure-device -m devdax $d >/dev/null; ")
    smaller = in_region("REAL create-device -r $r -s 32M >/dev/null; kill -9 $$")
    shorter = in_region("REAL reconfigure-device -m devdax -s 128M $d >/dev/null; kill -9 $$")
    part = f"{RAM:#x} --size 64M"
    cases: list[tuple[str, str, str, dict[str, str]]] = [
        (
            "cxl",
            "create-region",
            f"{PMEM:#x}",
            {**FAILURES, "killed half-way": 'REAL "$@" >/dev/null; REAL disable-region -f all >/dev/null; kill -9 $$'},
        ),
        ("ndctl", "create-namespace", f"{PMEM:#x}", {**FAILURES, "killed half-way": half_namespace}),
        (
            "ndctl",
            "create-namespace",
            "namespace0.0",
            # Not when it makes the namespace raw again.
            {
                **FAILURES,
                "killed half-way": f'if [[ "$*" = *devdax* ]]; then {half_namespace}; fi',
                "really busy": HELD,
            },
        ),
        ("daxctl", "reconfigure-device", str(hmem), FAILURES),
        (
            "daxctl",
            "reconfigure-device",
            f"{RAM:#x}",
            {"no device": FAILURES["no device"]},
        ),
        (
            "daxctl",
            "destroy-device",
            part,
            {
                "really enabled": f'{enabled} exec REAL "$@"',
                "killed half-way": shorter,
            },
        ),
        (
            "daxctl",
            "create-device",
            part,
            {
                "really no space": f'{taken} exec REAL "$@"',
                "killed half-way": smaller,
            },
        ),
    ]
    if not ALL:
        cases = [(*case, {f: s for f, s in scripts.items() if f in EVERY_RUN}) for *case, scripts in cases[:3]]
    commands: list[str | Command] = [listing]
    positions: list[tuple[str, str, str]] = []
    wrappers = [(program, verb, script) for program, verb, _, scripts in cases for script in scripts.values()]
    paths = iter(wrap(host, prefix, *wrappers))
    for program, verb, target, scripts in cases:
        for failure in scripts:
            # What does not come is not worth the wait that what comes may need.
            commands += [Command(f"provision {target} --overwrite-unknown", next(paths), settle=1), listing]
            positions.append((program, verb, failure))
    for missing, target in {"cxl": PMEM, "ndctl": PMEM, "daxctl": RAM}.items():
        folder = f"/run/without-{missing}"
        others = " ".join(str(prefix.bin / name) for name in ("cxl", "ndctl", "daxctl") if name != missing)
        host.run(f"mkdir {folder}; ln -s {others} {folder}/")
        commands += [Command(f"provision {target:#x} --overwrite-unknown", f"{folder}:/usr/bin:/bin"), listing]
        positions.append((missing, "", "missing"))
    # Found only when region and namespace are there: what was made up to there goes again.
    commands += [Command(f"provision {PMEM:#x}"), listing]
    with rack.media("pmem").open("r+b") as media:
        media.seek(64 << 20)
        media.write(b"somebody's")
    with unchanged_but_labels(rack):
        before, *results, unknown, last = run_all(host, commands, timeout=800 if ALL else 400)
    unknown.failed(3, f"is not empty: unknown bytes at {64 << 20}", "--overwrite-unknown")
    assert last.out == before.out
    for (program, verb, failure), failed, after in zip(positions, results[::2], results[1::2], strict=True):
        if failure == "missing":
            failed.failed(1, f"{program} is not installed; install the package {program}")
        else:
            failed.failed(3 if "busy" in failure else 1, f"`{program} {verb} ")
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
