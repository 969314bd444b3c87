# SPDX-License-Identifier: Apache-2.0
"""What the hosts of a rack share, what is their own, and what can happen to them."""

from __future__ import annotations

import mmap
import signal

import pytest
from devices import POOLS, attach, find
from memory import load, store

from tools.rack.network import address
from tools.rack.rack import Rack

pytestmark = pytest.mark.rack

PLACE = 64 << 20
"""Where tests store: far from the namespaces' info blocks, from superblocks and the first table."""

OWN = "/var/lib/engramdax/kept"


@pytest.mark.parametrize("pool", POOLS)
def test_what_one_host_stores_the_other_loads(rack: Rack, pool: str) -> None:
    first, second = rack.hosts
    paths = [attach(rack, host, pool) for host in rack.hosts]
    store(first, paths[0], PLACE, f"h0 in {pool}".encode())
    assert load(second, paths[1], PLACE, 20) == f"h0 in {pool}".encode().ljust(20, b"\0")
    store(second, paths[1], PLACE + 4096, b"and back")
    assert load(first, paths[0], PLACE + 4096, 8) == b"and back"
    with rack.media(pool).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as media:
        assert media.find(f"h0 in {pool}".encode()) >= PLACE


def test_reboot_keeps_pools_and_own_disk_and_changes_names(rack: Rack) -> None:
    host = rack.hosts[1]
    path = attach(rack, host, "ram")
    store(host, path, PLACE, b"outlives")
    namespaces = ("nvdimm", "pmem")
    for pool in namespaces:
        store(host, attach(rack, host, pool), PLACE, pool.encode())
    host.run(f"echo mine > {OWN}; echo lost > /etc/lost")
    before = host.run("grep . /sys/bus/cxl/devices/mem*/serial").stdout.split()
    machine = host.run("cat /sys/class/dmi/id/product_uuid").stdout
    # The other way round than the module before left them.
    ram_was_first = before[0].endswith(f"{rack.pools['ram'].serial:#x}")
    rack.reboot(host, order=["pmem", "ram"] if ram_was_first else ["ram", "pmem"])
    after = host.run("grep . /sys/bus/cxl/devices/mem*/serial").stdout.split()
    assert sorted(line.split(":")[1] for line in after) == sorted(line.split(":")[1] for line in before)
    assert after != before
    assert host.run("cat /sys/class/dmi/id/product_uuid").stdout == machine
    assert host.get(OWN) == b"mine\n"
    assert host.run("test -e /etc/lost", check=False).code == 1
    assert load(host, attach(rack, host, "ram"), PLACE, 8) == b"outlives"
    for pool in namespaces:
        assert load(host, attach(rack, host, pool), PLACE, len(pool)) == pool.encode()


def test_unplugged_memdev_takes_its_device_along_and_comes_back(rack: Rack) -> None:
    host = rack.hosts[1]
    path = attach(rack, host, "ram")
    store(host, path, PLACE, b"unplugged")
    reader = host.start_python(f"""
import mmap, os, time
memory = mmap.mmap(os.open({path!r}, os.O_RDONLY), 2 << 20, prot=mmap.PROT_READ)
print("reading", flush=True)
while True:
    memory[0]
    time.sleep(0.05)
""")
    while "reading" not in reader.output():
        assert reader.poll() is None
    host.unplug("ram")
    assert reader.wait().code == -signal.SIGBUS
    assert find(host, rack.pools["ram"]) is None
    assert host.run(f"test -e {path}", check=False).code == 1
    assert load(rack.hosts[0], attach(rack, rack.hosts[0], "ram"), PLACE, 9) == b"unplugged"
    host.plug("ram")
    # What is left of the memdev's old region holds decoders of the switch; only a boot lets go of them.
    rack.reboot(host)
    assert load(host, attach(rack, host, "ram"), PLACE, 9) == b"unplugged"


def test_crash_of_a_host_leaves_pools_and_what_it_had_synced(rack: Rack) -> None:
    first, second = rack.hosts
    store(first, attach(rack, first, "hmem"), PLACE, b"survivor")
    first.run(f"echo synced > {OWN}; sync {OWN}")
    first.crash()
    assert not first.alive
    assert load(second, attach(rack, second, "hmem"), PLACE, 8) == b"survivor"
    rack.boot(first)
    assert first.get(OWN) == b"synced\n"
    assert load(first, attach(rack, first, "hmem"), PLACE, 8) == b"survivor"


def test_network_carries_a_tcp_connection(rack: Rack) -> None:
    server = rack.hosts[0].start_python(f"""
import socket
with socket.create_server(("{address(0)}", 7000)) as server:
    print("listening", flush=True)
    peer, (name, _) = server.accept()
    peer.sendall(peer.recv(100).upper() + name.encode())
    peer.close()
""")
    while "listening" not in server.output():
        assert server.poll() is None
    answer = rack.hosts[1].python("""
import socket
with socket.create_connection(("h0", 7000)) as peer:
    peer.sendall(b"hello from ")
    while data := peer.recv(100):
        print(data.decode(), end="")
""")
    assert answer.stdout == f"HELLO FROM {address(1)}"
    assert server.wait().code == 0


def test_injected_poison_is_listed_and_a_media_event_is_traced(rack: Rack) -> None:
    host = rack.hosts[1]
    tracing = "/sys/kernel/tracing"
    host.run(f"echo 1 > {tracing}/events/cxl/cxl_general_media/enable")
    host.inject_media_event("ram", 0x2000)
    host.inject_poison("ram", 0x1000, 128)
    memdev = "$(basename $(dirname $(grep -lx 0xfedcba9876543210 /sys/bus/cxl/devices/mem*/serial)))"
    listed = host.run(f"cxl list -m {memdev} --media-errors").stdout
    assert '"offset":4096' in listed
    assert '"length":128' in listed
    assert "dpa=2000" in host.run(f"cat {tracing}/trace").stdout


def test_udevd_gives_a_device_the_owner_that_a_rule_says(rack: Rack) -> None:
    host = rack.hosts[0]
    path = attach(rack, host, "hmem")
    host.run("mkdir -p /etc/udev/rules.d")
    host.put("/etc/udev/rules.d/99-test.rules", b'SUBSYSTEM=="dax", GROUP="daemon", MODE="0640"\n')
    host.run("udevadm verify /etc/udev/rules.d/99-test.rules")
    host.start_udevd()
    host.run("udevadm trigger --settle --action=add --subsystem-match=dax")
    assert host.run(f"stat -c '%G %a' {path}").stdout == "daemon 640\n"
    host.run("udevadm control --exit; rm /etc/udev/rules.d/99-test.rules")
