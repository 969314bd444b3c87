# SPDX-License-Identifier: Apache-2.0
"""Giving back what provisioning made: the pool with its region, namespace or slice, or a further host's view of it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from engramdax.devices.assembly import removal
from engramdax.devices.holders import check_unheld
from engramdax.errors import BackingError, FormatError, RefusedError
from engramdax.locks import who_reads
from engramdax.pool.access import LocalAccess
from engramdax.pool.provision import Plan, plan_removal
from engramdax.pool.records import Record, forget_record, record_of
from engramdax.pool.steps import Step
from engramdax.pool.volume import read_superblock

if TYPE_CHECKING:
    from pathlib import Path

    from engramdax.devices.system import System
    from engramdax.format.superblock import Superblock
    from engramdax.pool.peers import Peers


def plan_deprovision(system: System, path: Path, *, force: bool, peers: Peers | None = None) -> Plan:
    """Plan to unmake the pool at `path`; where it was joined, to take away what makes it visible on this host.

    A device that a process of this host still holds is refused, whatever is forced: it would lose its memory.
    """
    try:
        opened = LocalAccess(path, writable=False)
    except BackingError:
        return plan_removal(path, force=force, peers=peers)  # which says what it cannot do there
    try:
        superblock = read_superblock(opened.media).value
        record = record_of(superblock.pool)
        if record is not None and record.joined and (who := who_reads(opened.backing, superblock.pool)):
            raise RefusedError(f"pool {superblock.name} on {path} is open in {who}", remedy="end its readers first")
    except FormatError as e:
        raise e.at(path) from None
    finally:
        opened.close()
        del opened  # with its mapping: the device is to go away
    if record is None or record.assembly is None:
        return plan_removal(path, force=force, peers=peers)
    give_back = _give_back(system, path, record)
    if record.joined:
        return _plan_leaving(path, superblock, give_back)
    return plan_removal(path, force=force, give_back=give_back, peers=peers)


def _plan_leaving(path: Path, superblock: Superblock, give_back: list[Step]) -> Plan:
    forget = Step("forget the pool on this host; its owner keeps it", lambda: forget_record(superblock.pool))
    return Plan(path, superblock.name, str(superblock.pool), superblock.size, [*give_back, forget])


def _give_back(system: System, path: Path, record: Record) -> list[Step]:
    device = system.tree().dax_by_number(path.stat().st_rdev)
    if device is None or record.assembly is None:
        return []
    steps = removal(system, device, record.assembly)
    if steps and device.device is not None:
        check_unheld(device.name, os.makedev(*device.device), system.proc)
    return steps
