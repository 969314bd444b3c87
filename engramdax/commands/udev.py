# SPDX-License-Identifier: Apache-2.0
"""Rules, users and a boot unit, so that pools' devices have names, and users who may read them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from engramdax.commands.output import ForceOption, JsonOption, print_json, print_line
from engramdax.commands.provision import DryRunOption
from engramdax.devices.installation import Plan, own_program, plan_install, plan_remove
from engramdax.errors import BackingError, ParameterError
from engramdax.pool.steps import carry_out

GROUP: Final = "udev"

RootOption = Annotated[
    Path, typer.Option("--root", metavar="DIR", help="Work below this directory, and start nothing.")
]


def install(
    *,
    root: RootOption = Path("/"),
    keep_kmem_off: Annotated[
        bool, typer.Option("--keep-kmem-off", help="Also keep volatile dax devices from becoming system RAM at boot.")
    ] = False,
    health_timer: Annotated[
        bool, typer.Option("--health-timer", help="Also look at the pool's health every five minutes, for Prometheus.")
    ] = False,
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Install rules, helper, user, directories and boot unit."""
    plan = plan_install(
        _checked(root), own_program(), keep_kmem_off=keep_kmem_off, force=force, health_timer=health_timer
    )
    _carry_out(plan, "wrote", dry_run=dry_run, as_json=as_json)


def remove(
    *,
    root: RootOption = Path("/"),
    force: ForceOption = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Take away what install wrote; files that were changed since are kept."""
    plan = plan_remove(_checked(root), force=force)
    _carry_out(plan, "removed", dry_run=dry_run, as_json=as_json)


def _checked(root: Path) -> Path:
    root = Path(os.path.realpath(root))
    if not root.is_dir():
        raise ParameterError(f"--root {root} is no directory", remedy="name one that is there")
    if root == Path("/") and os.geteuid() != 0:
        raise BackingError("only root may change this host", remedy="run it with sudo, or give --root DIR")
    return root


def _carry_out(plan: Plan, verb: str, *, dry_run: bool, as_json: bool) -> None:
    if not dry_run:
        carry_out(plan.steps)
    if as_json:
        value: dict[str, Any] = {
            name: [str(path) for path in paths]
            for name, paths in (("changed", plan.changed), ("same", plan.same), ("kept", plan.kept))
        }
        print_json({**value, "notes": plan.notes, "done": not dry_run, "steps": [s.what for s in plan.steps]})
        return
    if dry_run:
        for step in plan.steps:
            print_line(f"would {step.what}")
    else:
        for path in plan.changed:
            print_line(f"{verb} {path}")
        for path in plan.same:
            print_line(f"{path} is there already")
    for path in plan.kept:
        print_line(f"{path} was changed since it was installed and is kept; --force removes it")
    for note in plan.notes:
        print_line(f"note: {note}")


COMMANDS: Final = {"install": install, "remove": remove}
