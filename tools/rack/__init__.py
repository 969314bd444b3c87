# SPDX-License-Identifier: Apache-2.0
"""A virtual rack: hosts with real Linux CXL, nvdimm and dax drivers that share the same pools of memory.

Each host is a QEMU guest on this machine. Its root is this machine's /, read-only under an overlay in its RAM,
so the checkout and its environment are simply there, and nothing that a guest writes reaches the machine.

    errors     what can go wrong
    prefix     QEMU, kernel and tools, unpacked from the Debian archive into a cache, without root
    kernel     what a guest boots: the kernel unpacked, the modules it loads
    initramfs  the archive that finds the root, and the script in it
    pools      the memory that all hosts share, and how a machine of each kind is wired
    network    a cable between each two hosts
    guest      one host: boot, commands, crash, shutdown
    agent      pid 1 in the guest: runs what it is told
    qmp        QEMU's control socket: unplug, poison, media events
    rack       the hosts together

All guests share this machine's page cache, so the memory is perfectly coherent between them: a rack cannot show a
missing flush or invalidate, and its speeds are no figures of anything.
"""

from __future__ import annotations
