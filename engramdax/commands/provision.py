# SPDX-License-Identifier: Apache-2.0
"""`provision` and `deprovision`: pools made and unmade."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from engramdax.backing import Backing, Kind, inspect, parse_size
from engramdax.commands.output import ForceOption, JsonOption, PoolOption, print_json, print_line, size_text
from engramdax.errors import ParameterError
from engramdax.format.superblock import MAX_POOL_NAME, NAME_CHARACTERS
from engramdax.pool.provision import Consent, Plan, plan_device, plan_file, plan_hugepages, plan_removal
from engramdax.pool.records import resolve
from engramdax.pool.steps import carry_out

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Print the steps and do none.")]


def provision(
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]", help="A devdax device.")] = None,
    *,
    file: Annotated[Path | None, typer.Option("--file", help="Make the pool in this file, on a disk or tmpfs.")] = None,
    hugepages: Annotated[
        str | None, typer.Option("--hugepages", metavar="2M|1G", help="Make it in huge pages.")
    ] = None,
    size: Annotated[str | None, typer.Option("--size", metavar="N", help="Bytes, or 512M, 2G, 1T.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The pool's name.")] = None,
    single_host: Annotated[
        bool, typer.Option("--single-host", help="The device is this host's alone, not shared.")
    ] = False,
    dry_run: DryRunOption = False,
    force: ForceOption = False,
    overwrite_unknown: Annotated[
        bool, typer.Option("--overwrite-unknown", help="Overwrite bytes that nobody recognises.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a pool: on a devdax device, in a file, or in huge pages."""
    if sum(choice is not None for choice in (target, file, hugepages)) != 1:
        raise ParameterError(
            "exactly one place for the pool is needed",
            remedy="give a device, or --file PATH --size N, or --hugepages 2M --size N",
        )
    consent = Consent(force=force, unknown=overwrite_unknown)
    if target is not None:
        if size is not None:
            raise ParameterError(f"--size does not go with {target}", remedy="a device has its own size")
        path = resolve(target)
        plan = plan_device(path, name=path.name if name is None else name, shared=not single_host, consent=consent)
    else:
        if size is None:
            raise ParameterError("--size is missing", remedy="say how large the pool is to be, such as --size 2G")
        count = parse_size(size)
        if file is not None:
            plan = plan_file(file, count, name=_default_name(file) if name is None else name, consent=consent)
        else:
            plan = plan_hugepages(str(hugepages), count, name="hugepages" if name is None else name)
    _carry_out(plan, dry_run=dry_run, as_json=as_json)
    if not dry_run and not as_json:
        backing = inspect(plan.path)
        print_line(f"pool {plan.name} ({plan.uuid}) is ready: {size_text(plan.size)} on {plan.path}, {_pages(backing)}")


def deprovision(
    *,
    pool: PoolOption = None,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Unmake a pool, and give back what provisioning made for it."""
    plan = plan_removal(resolve(pool), force=force)
    _carry_out(plan, dry_run=dry_run, as_json=as_json)
    if not dry_run and not as_json:
        print_line(f"pool {plan.name} is gone from {plan.path}")


def _carry_out(plan: Plan, *, dry_run: bool, as_json: bool) -> None:
    if not dry_run:
        carry_out(plan.steps)
    if as_json:
        value: dict[str, Any] = {"name": plan.name, "uuid": plan.uuid, "path": str(plan.path)}
        print_json({**value, "size": plan.size, "done": not dry_run, "steps": [s.what for s in plan.steps]})
    elif dry_run:
        for step in plan.steps:
            print_line(f"would {step.what}")


def _default_name(file: Path) -> str:
    return re.sub(rf"[^{NAME_CHARACTERS}]", "-", file.stem)[:MAX_POOL_NAME] or "pool"


def _pages(backing: Backing) -> str:
    if backing.kind in (Kind.DEVDAX, Kind.HUGETLBFS):
        return f"{backing.kind}, pages of {size_text(backing.align)}"
    return str(backing.kind)


COMMANDS = (provision, deprovision)
