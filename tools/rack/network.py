# SPDX-License-Identifier: Apache-2.0
"""The control network: a cable between each two hosts, over unix sockets, so that it needs no root and no hub.

Two QEMU processes send each other frames as datagrams. What is sent to a host that is down is lost, as on a
cable; a host that boots again is reachable again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def address(host: int) -> str:
    """Give a host's address in the guests."""
    return f"10.93.0.{host + 1}"


def arguments(host: int, hosts: int, folder: Path) -> list[str]:
    """Give QEMU's arguments for the ends of a host's cables, whose sockets lie in `folder`."""
    result = []
    for peer in range(hosts):
        if peer != host:
            sockets = (
                f"local.type=unix,local.path={_socket(folder, host, peer)},"
                f"remote.type=unix,remote.path={_socket(folder, peer, host)}"
            )
            # An ordinary PCI device has to be told its bus where there is a pxb-cxl. No ROM: nobody boots from it.
            card = f"virtio-net-pci,netdev=cable{peer},mac={_mac(host, peer)},bus=pcie.0,romfile="
            result += ["-netdev", f"dgram,id=cable{peer},{sockets}", "-device", card]
    return result


def set_up_script(host: int, hosts: int, busybox: Path) -> str:
    """Give the shell commands that set a guest's addresses, and the names of all hosts in its /etc/hosts."""
    lines = [f"{busybox} ip link set lo up"]
    lines += [f"echo {address(peer)} h{peer} >> /etc/hosts" for peer in range(hosts)]
    for peer in range(hosts):
        if peer != host:
            lines.append(f"""\
card=$(basename $(dirname $(grep -l {_mac(host, peer)} /sys/class/net/*/address)))
{busybox} ip addr add {address(host)} peer {address(peer)} dev $card
{busybox} ip link set $card up""")
    return "\n".join(lines)


def _socket(folder: Path, here: int, there: int) -> Path:
    return folder / f"cable-{here}-{there}"


def _mac(here: int, there: int) -> str:
    return f"52:54:00:93:{here:02x}:{there:02x}"
