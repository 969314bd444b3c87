# SPDX-License-Identifier: Apache-2.0
"""Hosts that a shared pool admits; without a command, which they are."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final
from uuid import UUID

import typer

from engramdax.commands.fleet import HostsOption, ProgramOption, SshOption, TimeoutOption
from engramdax.commands.output import JsonOption, PoolOption, print_grid, print_json, print_line, printable
from engramdax.errors import ParameterError
from engramdax.fleet import chosen_fleet
from engramdax.health.hosts import examine_hosts
from engramdax.health.readers import Reader
from engramdax.host import host_id
from engramdax.pool.pool import Pool
from engramdax.pool.records import resolve
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Callable

GROUP: Final = "hosts"
NOT_READERS: Final = ("device", "table", "memdev", "nvdimm", "pcie", "host", "pool.bandwidth")
"""Probes that say nothing of processes."""

HostArgument = Annotated[str, typer.Argument(metavar="HOSTID", help="The host's id, as `provision --join` prints it.")]


def list_hosts(
    context: typer.Context,
    *,
    pool: PoolOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    program: ProgramOption = None,
    ssh_options: SshOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the hosts that a shared pool admits, or admit and forget one.

    With --hosts, or where a file says whom to ask, also the processes that have the pool open there, and the oldest
    generation that each holds.
    """
    if context.invoked_subcommand is not None:
        return
    with Pool(resolve(pool)) as opened:
        directory, shared, name, uuid = opened.directory, opened.superblock.shared, opened.name, str(opened.uuid)
    attached: dict[str, tuple[Reader, ...]] = {}
    del opened  # with its mapping: this process is no reader
    fleet = chosen_fleet(hosts, timeout=timeout, program=program, ssh_options=ssh_options)
    if fleet is not None:
        options = ["--pool", uuid, *(word for group in NOT_READERS for word in ("--skip", group))]
        asked = examine_hosts(fleet, options)
        reports = [answer.report for answer in asked.answers if answer.report is not None]
        attached = {r.host_id: r.readers for r in reports if r.host_id and r.pool is not None and r.pool.uuid == uuid}
    if as_json:
        print_json(
            {
                "pool": name,
                "shared": shared,
                "hosts": [
                    {
                        "id": str(h.id),
                        "name": h.name,
                        "owner": h.id == directory.owner,
                        "readers": [asdict(r) for r in attached[str(h.id)]] if str(h.id) in attached else None,
                    }
                    for h in directory.hosts
                ],
            }
        )
        return
    here = host_id()
    rows = []
    for host in directory.hosts:
        notes = [note for note, so in (("owner", host.id == directory.owner), ("this host", host.id == here)) if so]
        row = [printable(host.name), str(host.id), ", ".join(notes)]
        if fleet is not None:
            row.append(_readers(attached.get(str(host.id))))
        rows.append(row)
    print_grid(["HOST", "ID", "", *(["PROCESSES"] if fleet is not None else [])], rows)


def _readers(found: tuple[Reader, ...] | None) -> str:
    """Say who reads on a host; None where it did not answer for this pool."""
    if found is None:
        return "not known: it did not answer"
    texts = [
        f"{r.pid} ({r.command}) " + ("without a pin" if r.generation is None else f"holds generation {r.generation}")
        for r in found
    ]
    return printable(", ".join(texts)) or "none"


def admit(
    host: HostArgument,
    *,
    name: Annotated[str, typer.Option("--name", help="What operators call it.")] = "",
    pool: PoolOption = None,
    as_json: JsonOption = False,
) -> None:
    """Admit a further host to a shared pool; run on the pool's owner."""
    id_ = _host_id(host)
    with Writer(resolve(pool)) as writer:
        changed = writer.admit(id_, name)
        pool_name = writer.superblock.name
    if as_json:
        print_json({"id": str(id_), "name": name, "changed": changed})
        return
    shown = f"{printable(name)} ({id_})" if name else str(id_)
    print_line(f"{shown} is admitted to {pool_name}" if changed else f"{shown} was admitted to {pool_name} already")


def forget(host: HostArgument, *, pool: PoolOption = None, as_json: JsonOption = False) -> None:
    """Admit a host no more, once it has left the pool: its readers are not reckoned with any longer."""
    id_ = _host_id(host)
    with Writer(resolve(pool)) as writer:
        name = writer.forget(id_)
        pool_name = writer.superblock.name
    if as_json:
        print_json({"id": str(id_), "name": name})
        return
    print_line(f"{printable(name)} ({id_}) is admitted to {pool_name} no more")


def _host_id(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise ParameterError(
            f"{text!r} is no host id", remedy="give the uuid that `engramdax provision --join` prints on that host"
        ) from None


COMMANDS: Final[dict[str, Callable[..., None]]] = {"admit": admit, "forget": forget}
