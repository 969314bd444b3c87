# SPDX-License-Identifier: Apache-2.0
"""Options of commands that ask other hosts, and the channel that they choose."""

from __future__ import annotations

from typing import Annotated

import typer

from engramdax.fleet import TIMEOUT_SECONDS, chosen_fleet
from engramdax.pool.peers import FleetPeers

HostsOption = Annotated[
    str | None, typer.Option("--hosts", metavar="NODESET", help="Ask these hosts by ssh: node[1-8], @group.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", metavar="SECONDS", help=f"With --hosts: how long one may take; {TIMEOUT_SECONDS:g} unless given."
    ),
]
ProgramOption = Annotated[
    str | None, typer.Option("--program", metavar="COMMAND", help="With --hosts: how engramdax is started there.")
]
SshOption = Annotated[
    str | None,
    typer.Option("--ssh-options", metavar="OPTIONS", help="With --hosts: what ssh is given, such as '-l admin'."),
]


def chosen_peers(
    hosts: str | None, *, timeout: float | None, program: str | None, ssh_options: str | None
) -> FleetPeers | None:
    """Give the channel to these hosts; None where no option chooses one, and the configured one is taken."""
    if all(option is None for option in (hosts, timeout, program, ssh_options)):
        return None
    fleet = chosen_fleet(hosts, timeout=timeout, program=program, ssh_options=ssh_options)
    return None if fleet is None else FleetPeers(fleet)
