# SPDX-License-Identifier: Apache-2.0
"""`provision` and `deprovision`: pools made and unmade."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer

from engramdax.backing import Backing, Kind, inspect, parse_size
from engramdax.commands.fleet import HostsOption, ProgramOption, SshOption, TimeoutOption, chosen_peers
from engramdax.commands.output import ForceOption, JsonOption, PoolOption, print_json, print_line, size_text
from engramdax.devices.deprovision import plan_deprovision
from engramdax.devices.join import Found, Join, finish_join, join_command, plan_join
from engramdax.devices.provision import ALIGNS, LatePlan, Wish, plan_provision
from engramdax.devices.system import System
from engramdax.devices.target import find_place
from engramdax.errors import EngramdaxError, ParameterError
from engramdax.format.superblock import MAX_POOL_NAME, NAME_CHARACTERS
from engramdax.pool.provision import Consent, Plan, plan_device, plan_file, plan_hugepages
from engramdax.pool.records import record_of, resolve
from engramdax.pool.remains import lost_pool, plan_forgetting
from engramdax.pool.steps import carry_out

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the steps and do none.")]


def provision(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[TARGET]", help="/dev/daxX.Y, daxX.Y, namespaceX.Y, regionN, memN or 0xSERIAL[,...]."),
    ] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Make the pool in this file, on a disk or tmpfs.")] = None,
    hugepages: Annotated[
        str | None, typer.Option("--hugepages", metavar="2M|1G", help="Make it in huge pages.")
    ] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="N", help="Bytes, or 512M, 2G, 1T.")] = None,
    align: Annotated[str | None, typer.Option("--align", metavar="2M|1G", help="Pages of a device to be made.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The pool's name.")] = None,
    join: Annotated[
        bool, typer.Option("--join", help="Make a pool visible that is there already; initialise nothing.")
    ] = False,
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="With --join: the name or uuid of the pool.")
    ] = None,
    known: Annotated[
        bool, typer.Option("--known", help="With --join: pools that this host remembers, if there are any.")
    ] = False,
    single_host: Annotated[
        bool, typer.Option("--single-host", help="The device is this host's alone, not shared.")
    ] = False,
    kind: Annotated[str | None, typer.Option("--type", metavar="ram|pmem", help="Of memdevs that have both.")] = None,
    granularity: Annotated[
        int | None, typer.Option("--granularity", metavar="N", help="Bytes of the interleave of several memdevs.")
    ] = None,
    decoder: Annotated[
        str | None, typer.Option("--decoder", metavar="decoderX.Y", help="Root decoder for a new CXL region.")
    ] = None,
    offline_memory: Annotated[
        bool, typer.Option("--offline-memory", help="Take memory that is online as system RAM from the system.")
    ] = False,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    overwrite_unknown: Annotated[
        bool, typer.Option("--overwrite-unknown", help="Overwrite bytes that nobody recognises.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a pool: on a device or what one can be made of, in a file, or in huge pages; --join: see another host's."""
    if sum(choice is not None for choice in (target, file, hugepages)) > 1:
        raise ParameterError(
            "there is more than one place for the pool",
            remedy="give a device, or --file PATH --size N, or --hugepages 2M --size N",
        )
    if kind not in (None, "ram", "pmem"):
        raise ParameterError(f"--type {kind} is unknown", remedy="say ram or pmem")
    if join:
        for option, given in {"--file": file, "--hugepages": hugepages, "--size": size, "--name": name}.items():
            if given is not None:
                raise ParameterError(f"{option} does not go with --join", remedy="a pool that is there has its own")
        joins = plan_join(System(), target, pool=pool, granularity=granularity, decoder=decoder, mode=kind, known=known)
        _join(joins, dry_run=dry_run, as_json=as_json)
        return
    if known:
        raise ParameterError("--known goes with --join alone", remedy="leave it out")
    if pool is not None:
        raise ParameterError("--pool goes with --join alone", remedy="--name names a new pool")
    consent = Consent(force=force, unknown=overwrite_unknown)
    if file is None and hugepages is None:
        wish = Wish(
            name=name,
            shared=not single_host,
            consent=consent,
            size=None if size is None else parse_size(size),
            align=_parse_align(align),
            mode=kind,
            granularity=granularity,
            decoder=decoder,
            offline_memory=offline_memory,
        )
        plan = _plan_device(target, wish)
    else:
        if size is None:
            raise ParameterError("--size is missing", remedy="say how large the pool is to be, such as --size 2G")
        if align is not None:
            raise ParameterError("--align is for devices", remedy="leave it out")
        count = parse_size(size)
        if file is not None:
            plan = plan_file(file, count, name=_default_name(file) if name is None else name, consent=consent)
        else:
            plan = plan_hugepages(str(hugepages), count, name="hugepages" if name is None else name)
    plan = _carry_out(plan, dry_run=dry_run, as_json=as_json)
    if not dry_run and not as_json:
        backing = inspect(plan.path)
        print_line(f"pool {plan.name} ({plan.uuid}) is ready: {size_text(plan.size)} on {plan.path}, {_pages(backing)}")
        if backing.kind is Kind.DEVDAX and not single_host and (record := record_of(UUID(plan.uuid))):
            print_line(f"on a further host: {join_command(record)}")


def _plan_device(target: str | None, wish: Wish) -> Plan:
    if target is not None:
        path = resolve(target) if "/" in target or os.path.exists(target) else None  # noqa: PTH110 (raises less)
        if path is not None and find_place(f"{path.parent}/{path.name}", System().tree()) is None:
            if wish.size is not None:
                raise ParameterError(f"--size does not go with {target}", remedy="a device has its own size")
            name = path.name if wish.name is None else wish.name
            return plan_device(path, name=name, shared=wish.shared, consent=wish.consent)
    return plan_provision(System(), target, wish)


def _parse_align(align: str | None) -> int | None:
    if align is not None and align not in ALIGNS:
        raise ParameterError(f"pages of {align!r} are unknown", remedy="say 2M or 1G")
    return None if align is None else ALIGNS[align]


def _join(joins: list[Join], *, dry_run: bool, as_json: bool) -> None:
    done = []
    problems: list[EngramdaxError] = []
    if not joins and not as_json:
        print_line("this host remembers no pool on a device")
    for join in joins:
        if dry_run and join.problem is None:
            if not as_json:
                for step in join.steps:
                    print_line(f"would {step.what}")
            done.append({"steps": [s.what for s in join.steps], "done": not join.steps})
            continue
        try:
            found = finish_join(join)
        except EngramdaxError as e:
            # The others are to be there after a boot all the same.
            problems.append(e)
            continue
        done.append(_joined(found, join, as_json=as_json))
    if as_json:
        print_json(done)
    if problems:
        for problem in problems[1:]:
            problems[0].add_note(str(problem))
        raise problems[0]


def _joined(found: Found, join: Join, *, as_json: bool) -> dict[str, Any]:
    superblock = found.superblock
    if not as_json:
        print_line(f"pool {superblock.name} ({superblock.pool}) is on {found.path}, {size_text(superblock.size)}")
        if not found.admitted:
            print_line(f"this host is not admitted yet; on {found.owner}, the owner, run: {found.admission}")
        elif not found.ours:
            print_line(f"this host is admitted by {found.owner}, the owner")
    return {
        "name": superblock.name,
        "uuid": str(superblock.pool),
        "path": str(found.path),
        "size": superblock.size,
        "owner": str(found.directory.owner),
        "admitted": found.admitted,
        "admission": None if found.admitted else found.admission,
        "done": True,
        "steps": [s.what for s in join.steps],
    }


def deprovision(
    *,
    pool: PoolOption = None,
    force: ForceOption = False,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    program: ProgramOption = None,
    ssh_options: SshOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Unmake a pool, and give back what provisioning made for it; on a joined host, only its view of the pool.

    Of a pool that other hosts are admitted to, each of them is asked whether anybody has it open there.
    """
    peers = chosen_peers(hosts, timeout=timeout, program=program, ssh_options=ssh_options)
    if lost := lost_pool(pool):
        plan = plan_forgetting(lost, force=force)
    else:
        plan = plan_deprovision(System(), resolve(pool), force=force, peers=peers)
    plan = _carry_out(plan, dry_run=dry_run, as_json=as_json)
    if not dry_run and not as_json:
        print_line(f"pool {plan.name} is gone from {plan.path}")


def _carry_out(plan: Plan, *, dry_run: bool, as_json: bool) -> Plan:
    steps = [s.what for s in plan.steps]
    if not dry_run:
        carry_out(plan.steps)
        if isinstance(plan, LatePlan):
            plan = plan.settled()
    if as_json:
        value: dict[str, Any] = {"name": plan.name, "uuid": plan.uuid, "path": str(plan.path)}
        print_json({**value, "size": plan.size, "done": not dry_run, "steps": steps})
    elif dry_run:
        for step in steps:
            print_line(f"would {step}")
    return plan


def _default_name(file: Path) -> str:
    return re.sub(rf"[^{NAME_CHARACTERS}]", "-", file.stem)[:MAX_POOL_NAME] or "pool"


def _pages(backing: Backing) -> str:
    if backing.kind in (Kind.DEVDAX, Kind.HUGETLBFS):
        return f"{backing.kind}, pages of {size_text(backing.align)}"
    return str(backing.kind)


COMMANDS = (provision, deprovision)
