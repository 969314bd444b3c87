# SPDX-License-Identifier: Apache-2.0
"""`engramdax health --hosts` over real sshds of two hosts with real drivers: each fault as what it is, where it is."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from memory import store
from resident import Resident
from zygotes import SECONDS, start, wait_for

from engramdax.format.geometry import standard
from tools.rack.guest import Guest, Process
from tools.rack.rack import Rack

pytestmark = [
    pytest.mark.rack,
    pytest.mark.skipif(
        shutil.which("sshd", path="/usr/sbin:/usr/bin") is None, reason="openssh-server is not installed"
    ),
]


# What bounds these tests is the emulated processors: two boots, and 13 questions to both hosts, each of which takes 5 s
# of one beside ssh, 3.5 of them for `cxl list --media-errors`, so that is asked for where the device is what matters;
# 20 s where the machine has other work. A host that hangs takes a whole timeout.
TIMEOUT = 60.0

TOO_SLOW = "was not done after"
ROWS = 20_000
ROW_BYTES = 64
SERIAL = 0xFEDCBA9876543210

# QEMU's devices have no health information, its speeds are no speeds, and no udevd gives devices names there.
SKIPPED = "device.name memdev.health memdev.temperature memdev.life_used pool.bandwidth host.numa"
SKIP = " ".join(f"--skip {name}" for name in SKIPPED.split())

FLEET = ("ClusterShell.Event", "ClusterShell.NodeSet", "ClusterShell.Task", "ClusterShell.Worker.Ssh")
"""What asks hosts, and takes an emulated processor more than a second to import."""

HOLD = """
import os, time
import engramdax
table = engramdax.open("ram")["words"]
print("holding as", os.getpid(), flush=True)
time.sleep(3600)
"""

CONFIG = """\
Port 22
ListenAddress 0.0.0.0
HostKey /run/ssh/host
PidFile /run/ssh/pid
UsePAM no
StrictModes no
AuthorizedKeysFile /run/ssh/authorized
PermitRootLogin yes
PasswordAuthentication no
"""


@dataclass
class Fleet:
    """Two hosts that see one pool, each with an sshd and an engramdax that is imported already."""

    hosts: list[Guest]
    residents: list[Resident]
    device: dict[str, str]
    options: str
    """How the hosts are asked."""
    keys: dict[str, bytes]
    daemons: dict[str, Process] = field(default_factory=dict)

    def sshd(self, host: Guest, more: str = "") -> None:
        """Start the host's sshd, in the place of one that runs."""
        self.stop(host)
        host.run("mkdir -p /run/ssh /run/sshd; chmod 700 /run/ssh")
        for name, content in self.keys.items():
            host.put(f"/run/ssh/{name}", content)
        host.put("/run/ssh/config", (CONFIG + more).encode())
        # The programs that a host has in /usr/bin lie elsewhere in a guest.
        host.run('chmod 600 /run/ssh/host /run/ssh/user; echo "SetEnv PATH=$PATH" >>/run/ssh/config')
        self.daemons[host.name] = host.start("exec /usr/sbin/sshd -D -e -f /run/ssh/config")
        host.run("for i in $(seq 100); do [ -s /run/ssh/pid ] && exit 0; sleep 0.1; done; exit 1")

    def stop(self, host: Guest) -> None:
        """End it."""
        if daemon := self.daemons.pop(host.name, None):
            daemon.kill()
            daemon.wait()
            host.run("rm -f /run/ssh/pid")

    def health(self, timeout: float = TIMEOUT, *, poison: bool = False) -> tuple[int, Any, float]:
        """Ask from the first host; give exit code, document and how long it took there.

        poison: also look for it on the memdevs, which takes most of the time.

        On a machine that has other work, an emulated `cxl list` may take longer than it is given: asked again then.
        """
        skip = SKIP if poison else f"{SKIP} --skip memdev.poison"
        for _ in range(3):
            begin = time.monotonic()
            done = self.residents[0].run(f"health --pool ram --json {skip} {self.options} --timeout {timeout:g}")
            assert done.out, done.err
            took = time.monotonic() - begin
            if TOO_SLOW not in done.out:
                break
        return done.code, json.loads(done.out), took


def bad(document: Any, host: str) -> dict[str, str]:
    """Give what is not ok of one host, and why."""
    (answer,) = [h for h in document["hosts"] if h["host"] == host]
    findings = answer["report"]["findings"] if answer["report"] else []
    return {f["probe"]: f"{f['state']}: {f['found']}" for f in findings if f["state"] != "ok"}


def differing(document: Any) -> dict[str, str]:
    return {f["object"]: f["probe"] for f in document["findings"] if f["state"] != "ok"}


@pytest.fixture(scope="module")
def fleet(new_rack: Rack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Provision on the first host, join and admit the second, load a table, and let both run an sshd."""
    rack = new_rack
    folder = tmp_path_factory.mktemp("keys")
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    keys = {name: (folder / name).read_bytes() for name in ("host", "user")}
    keys["authorized"] = (folder / "user.pub").read_bytes()
    words = np.arange(ROWS * ROW_BYTES, dtype=np.uint32).astype(np.uint8).reshape(ROWS, ROW_BYTES)
    np.save(folder / "words.npy", words)
    rack.hosts[0].put("/run/words.npy", (folder / "words.npy").read_bytes())
    for host in rack.hosts:
        start(host, *FLEET)
    first, second = residents = [Resident(host) for host in rack.hosts]
    made = first.json(f"provision {SERIAL:#x} --name ram --force --overwrite-unknown")
    (joined,) = second.json(f"provision --join {SERIAL:#x}")
    first.run(joined["admission"].removeprefix("engramdax ")).succeeded()
    first.run("load /run/words.npy --pool ram").succeeded()
    ssh = "-i /run/ssh/user -oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oLogLevel=ERROR"
    options = f"--hosts h0,h1 --program '{first.program}' --ssh-options '{ssh}'"
    devices = {"h0": made["path"], "h1": joined["path"]}
    fleet = Fleet(list(rack.hosts), residents, devices, options, keys)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(fleet.sshd, rack.hosts))
        # Events are listened to from the first look on.
        list(threads.map(lambda r: r.run(f"health --pool ram {SKIP}"), residents))
    yield fleet
    for host in rack.hosts:  # with poison, and without a device
        host.crash()


@pytest.fixture(scope="module")
def well(fleet: Fleet) -> tuple[Any, float]:
    """Give the document of two healthy hosts, and how long it took."""
    code, document, took = fleet.health(poison=True)
    assert (code, document["state"]) == (0, "ok"), (bad(document, "h0"), bad(document, "h1"), document)
    return document, took


def test_two_healthy_hosts_are_ok(well: tuple[Any, float]) -> None:
    document, _ = well
    assert [h["answered"] for h in document["hosts"]] == ["report", "report"]
    pools = [h["report"]["pool"] for h in document["hosts"]]
    assert pools[0]["uuid"] == pools[1]["uuid"]
    assert [t["digest"] for t in pools[0]["tables"]] == [t["digest"] for t in pools[1]["tables"]]
    probes = {f["probe"] for f in document["hosts"][1]["report"]["findings"]}
    assert {"device.mode", "pool.directory", "table.bytes", "memdev.poison", "memdev.events", "pcie.link"} <= probes


def test_poison_is_named_with_table_and_row_on_its_host(fleet: Fleet, well: Any) -> None:
    row = 10
    extent = _extent(fleet)
    fleet.hosts[1].inject_poison("ram", extent + row * ROW_BYTES, 64)
    code, document, _ = fleet.health(poison=True)
    assert code == 2
    assert bad(document, "h0") == {}
    assert f"row {row} of table words" in bad(document, "h1")["memdev.poison"]
    assert set(bad(document, "h1")) == {"memdev.poison"}


def _extent(fleet: Fleet) -> int:
    program = (
        "import engramdax; p = engramdax.open('ram'); print(p.directory.require('words', p.backing.path).extent.offset)"
    )
    process = fleet.residents[0].start(program)
    return int(process.wait(SECONDS).stdout)


def test_media_event_is_told_by_its_host(fleet: Fleet, well: Any) -> None:
    fleet.hosts[1].inject_media_event("ram", 0x2000)
    code, document, _ = fleet.health()
    assert code == 2
    assert bad(document, "h0") == {}
    assert "cxl_general_media" in bad(document, "h1")["memdev.events"]


def test_changed_permissions_are_told_by_their_host(fleet: Fleet, well: Any) -> None:
    node = fleet.device["h1"]
    before = fleet.hosts[1].run(f"stat -c %a {node}").stdout.strip()
    fleet.hosts[1].run(f"chmod 666 {node}")
    try:
        code, document, _ = fleet.health()
    finally:
        fleet.hosts[1].run(f"chmod {before} {node}")
    assert code == 2
    assert bad(document, "h0") == {}
    assert "anybody can write it" in bad(document, "h1")["device.permissions"]


def test_damaged_directory_slot_is_told_by_all_who_see_it(fleet: Fleet, rack: Rack, well: Any) -> None:
    slot = standard(rack.pools["ram"].size).slots[1]
    store(fleet.hosts[0], fleet.device["h0"], slot, b"\xff" * 64)
    code, document, _ = fleet.health()
    assert code == 2  # the poison of before is still there
    for host in ("h0", "h1"):
        assert "header line is damaged; the other slot serves" in bad(document, host)["pool.directory"]
    assert differing(document) == {}


def test_reader_elsewhere_is_named_and_keeps_space_from_being_free_until_it_was_killed(fleet: Fleet, well: Any) -> None:
    first = fleet.residents[0]
    reader = fleet.residents[1].start(HOLD)
    pid = int(wait_for(reader, "holding as").split()[-1])
    first.run("rm words --pool ram").succeeded()
    code, document, _ = fleet.health()
    assert code == 2  # the poison of before is still there
    assert "pool.old_generation" not in bad(document, "h0")
    assert f"process {pid} (" in bad(document, "h1")["pool.old_generation"]
    # What was written repaired the slot.
    assert "pool.directory" not in bad(document, "h0") | bad(document, "h1")

    listed = first.json(f"hosts --pool ram {fleet.options} --timeout {TIMEOUT:g}")["hosts"]
    before, _ = well
    generation = before["hosts"][0]["report"]["pool"]["generation"]
    assert {h["name"]: h["readers"] for h in listed} == {
        "h0": [],
        "h1": [{"pid": pid, "command": "python", "generation": generation}],
    }

    refused = first.run(f"reclaim --pool ram --json {fleet.options} --timeout {TIMEOUT:g}")
    assert refused.code == 3, refused
    waits = json.loads(refused.out)
    assert [w["name"] for w in waits["waiting"]] == ["words"]
    assert waits["silent"] == []
    assert waits["holding"] == [h["id"] for h in listed if h["name"] == "h1"]
    fleet.hosts[1].run(f"kill -KILL {pid}")
    reader.wait()
    after = first.json(f"reclaim --pool ram {fleet.options} --timeout {TIMEOUT:g}")
    assert after["waiting"] == []
    assert after["free"] == waits["free"] + waits["waiting"][0]["bytes"]


@contextmanager
def another_sshd(fleet: Fleet, command: str) -> Iterator[None]:
    """Let the second host answer something else."""
    fleet.sshd(fleet.hosts[1], f"ForceCommand {command}\n")
    try:
        yield
    finally:
        fleet.sshd(fleet.hosts[1])


def test_stopped_garbled_and_hanging_sshds_are_rows_of_the_table(fleet: Fleet, well: tuple[Any, float]) -> None:
    _, took_well = well
    fleet.stop(fleet.hosts[1])
    told = {"stopped": fleet.health()}
    with another_sshd(fleet, "head -c 2000 /dev/urandom"):
        told["garbled"] = fleet.health()
    timeout = max(15.0, 2 * took_well)
    with another_sshd(fleet, "sleep 3600"):
        told["hangs"] = fleet.health(timeout)
    answered = {what: {h["host"]: h["answered"] for h in d["hosts"]} for what, (_, d, _) in told.items()}
    assert answered == {
        "stopped": {"h0": "report", "h1": "failed"},
        "garbled": {"h0": "report", "h1": "rubbish"},
        "hangs": {"h0": "report", "h1": "timeout"},
    }
    for _, document, _ in told.values():
        assert differing(document) == {"h1": "hosts.answer"}
        assert bad(document, "h0") == {}
    assert told["hangs"][2] < timeout + 3 * took_well
    assert max(told["stopped"][2], told["garbled"][2]) < 3 * took_well


def test_unplugged_device_is_told_by_its_host(fleet: Fleet, well: Any) -> None:
    fleet.hosts[1].unplug("ram")
    code, document, _ = fleet.health()
    assert code == 2
    assert bad(document, "h0") == {}
    assert "device.present" in bad(document, "h1")
    assert bad(document, "h1")["device.present"].startswith("critical")
    assert differing(document) == {"h1": "hosts.pool"}
