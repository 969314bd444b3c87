# SPDX-License-Identifier: Apache-2.0
"""`own`: which host writes a pool, and how that changes hands. `reclaim`: space back, with proof."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engramdax.commands.fleet import HostsOption, ProgramOption, SshOption, TimeoutOption, chosen_peers
from engramdax.commands.output import JsonOption, PoolOption, print_json, print_line, printable, size_text
from engramdax.errors import FormatError, ParameterError, RefusedError
from engramdax.pool.access import LocalAccess
from engramdax.pool.ownership import release, standing, take_over
from engramdax.pool.proof import other_hosts
from engramdax.pool.records import resolve
from engramdax.pool.volume import read_superblock
from engramdax.pool.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from uuid import UUID

    from engramdax.format.directory import Host
    from engramdax.pool.access import Access
    from engramdax.pool.ownership import Standing, TakeOver
    from engramdax.pool.peers import Peers

ACCOUNT: Final = (
    "its writers stop before their next step, and nobody writes the pool until every other admitted host has said "
    "that none of them lives there"
)


def own(
    *,
    pool: PoolOption = None,
    release_it: Annotated[
        bool, typer.Option("--release", help="Give the pool up, so that another host may take it.")
    ] = False,
    to: Annotated[
        str | None, typer.Option("--to", metavar="HOST", help="With --release: the host that is to have it.")
    ] = None,
    take: Annotated[bool, typer.Option("--take-over", help="Make this host the one that writes.")] = False,
    fenced: Annotated[
        bool,
        typer.Option("--fenced", help="With --take-over: you know that no other host writes, the silent ones are off."),
    ] = False,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    program: ProgramOption = None,
    ssh_options: SshOption = None,
    as_json: JsonOption = False,
) -> int:
    """Tell which host writes a pool, or hand it over.

    A pool has one writer host, its owner. `own --release` on the owner gives it up: to the host named with --to;
    without that to the other admitted host if there is only one, else to any. `own --take-over` makes this host the
    owner. Where the owner did not release the pool, its writers stop at once, but this host writes nothing before every
    other admitted host has answered that no writer lives there (--hosts says which to ask), or you say with --fenced
    that the hosts that do not answer are off. Saying so of a host that still writes can cost tables that are
    loaded from then on.
    """
    if release_it and take:
        raise ParameterError("--release and --take-over were both given", remedy="give one of them")
    if fenced and not take:
        raise ParameterError("--fenced goes with --take-over alone", remedy="say --take-over --fenced")
    if to is not None and not release_it:
        raise ParameterError("--to goes with --release alone", remedy="say --release --to HOST")
    if not take and any(option is not None for option in (hosts, timeout, program, ssh_options)):
        raise ParameterError("other hosts are asked by --take-over alone", remedy="say --take-over, or leave them out")
    path = resolve(pool)
    if release_it:
        return _release(path, to, as_json=as_json)
    if take:
        peers = chosen_peers(hosts, timeout=timeout, program=program, ssh_options=ssh_options)
        return _take_over(path, peers, fenced=fenced, as_json=as_json)
    return _tell(path, as_json=as_json)


def _tell(path: Path, *, as_json: bool) -> int:
    access = LocalAccess(path, writable=False)
    try:
        superblock = read_superblock(access.media, patient=True).value
        now = standing(access, superblock) if superblock.shared else None
    except FormatError as e:
        raise e.at(path) from None
    finally:
        access.close()
    if now is None:
        if as_json:
            print_json({"shared": False, "may_write": True})
        else:
            print_line(f"pool {superblock.name} is not shared by hosts: any process that can write it may")
        return 0
    if as_json:
        print_json(_standing_json(now))
        return 0
    d = now.directory
    print_line(
        f"pool {superblock.name} {'was released' if d.released else 'is written'} by host {d.host_name(d.owner)}, "
        f"epoch {d.epoch}{', this host' if d.owner == now.host else ''}"
    )
    if d.released and d.heir:
        print_line(f"it is for host {d.host_name(d.heir)}, whose next write takes it")
    if now.claim:
        print_line(f"host {d.host_name(now.claim.owner)} is taking it over, epoch {now.claim.epoch}: {ACCOUNT}")
    return 0


def _standing_json(now: Standing) -> dict[str, Any]:
    d = now.directory
    return {
        "shared": True,
        "owner": str(d.owner),
        "epoch": d.epoch,
        "released": d.released,
        "heir": str(d.heir) if d.heir else None,
        "claim": {"host": str(now.claim.owner), "epoch": now.claim.epoch} if now.claim else None,
        "host": str(now.host),
        "may_write": now.is_owner,
    }


def _release(path: Path, to: str | None, *, as_json: bool) -> int:
    # Loads that died stay for `load --resume` on the next owner.
    with Writer(path, keep=lambda _: True) as writer:
        if not writer.superblock.shared:
            raise ParameterError(
                f"{path}: pool {writer.superblock.name} is not shared by hosts",
                remedy="any process that can write it may",
            )
        others = other_hosts(writer.directory, writer.access)
        if not others:
            raise RefusedError(
                f"{path}: no other host is admitted to pool {writer.superblock.name}", remedy="admit one first"
            )
        heir = _heir(others, to)
        release(writer, heir)
        name, directory = writer.superblock.name, writer.directory
    if as_json:
        print_json({"released": True, "heir": str(heir) if heir else None})
    elif heir:
        print_line(f"pool {name} is released to host {directory.host_name(heir)}, whose next write takes it")
    else:
        print_line(f"pool {name} is released: `engramdax own --take-over` on one of the other hosts takes it")
    return 0


def _heir(others: Sequence[Host], to: str | None) -> UUID | None:
    if to is None:
        return others[0].id if len(others) == 1 else None
    matches = [host for host in others if to in (host.name, str(host.id))]
    if len(matches) != 1:
        names = ", ".join(f"{host.name} ({host.id})" for host in others)
        raise ParameterError(f"{len(matches)} other admitted hosts are named {to}", remedy=f"there are {names}")
    return matches[0].id


def _take_over(path: Path, peers: Peers | None, *, fenced: bool, as_json: bool) -> int:
    access = LocalAccess(path, writable=True, peers=peers)
    try:
        done = take_over(access, fenced=fenced)
    except FormatError as e:
        raise e.at(path) from None
    finally:
        access.close()
    if as_json:
        print_json(
            {
                "owner": done.proven,
                "before": str(done.before.directory.owner),
                "silent": [str(host.id) for host in done.silent],
                "writing": [str(host.id) for host in done.writing],
                "problems": _problems(access, done.silent),
            }
        )
    elif done.before.is_owner:
        print_line("this host owns the pool already")
    elif done.proven:
        print_line(f"this host owns the pool now, in place of host {_before(done)}")
    else:
        print_line(f"this host has claimed the pool of host {_before(done)}: {ACCOUNT}")
        for host in done.writing:
            print_line(f"  {host.name} ({host.id}) has a writer: repeat this when it has ended")
        for host in done.silent:
            print_line(f"  {host.name} ({host.id}) did not answer; say --fenced if it is off")
        for problem in _problems(access, done.silent):
            print_line(printable(f"  {problem}"))
    return 0 if done.proven else 1


def _before(done: TakeOver) -> str:
    return done.before.directory.host_name(done.before.directory.owner)


def _problems(access: Access, silent: Sequence[Host]) -> list[str]:
    """Say what stood in the way, where somebody did not answer."""
    return list(access.peers.problems) if silent else []


def reclaim(
    *,
    pool: PoolOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    program: ProgramOption = None,
    ssh_options: SshOption = None,
    as_json: JsonOption = False,
) -> int:
    """Free the space of removed tables that is proven to be in no reader's hands, on any admitted host.

    Ends with 3 where some has to wait.
    """
    path = resolve(pool)
    peers = chosen_peers(hosts, timeout=timeout, program=program, ssh_options=ssh_options)
    with Writer(path, access=LocalAccess(path, writable=True, peers=peers)) as writer:
        waiting = writer.directory.retired
        free = sum(extent.length for extent in writer.free())
        proof = writer.proof if waiting else None
        problems = _problems(writer.access, proof.silent) if proof else []
        here = writer.access.host
    silent = proof.silent if proof else []
    holding = proof.holding(max(r.generation for r in waiting)) if proof else []
    held = sum(extent.length for one in waiting for extent in one.extents)
    if as_json:
        print_json(
            {
                "free": free,
                "waiting": [{"name": r.name, "bytes": sum(e.length for e in r.extents)} for r in waiting],
                "silent": [str(host.id) for host in silent],
                "holding": [str(host.id if host else here) for host in holding],
                "looked_here": proof is None or proof.here is not None,
                "problems": problems,
            }
        )
        return RefusedError.exit_code if waiting else 0
    print_line(f"{size_text(free)} are free" + (f"; {size_text(held)} of removed tables wait" if held else ""))
    if proof is not None and proof.here is None:
        print_line("only root sees all processes that map the device: `sudo engramdax reclaim`")
    for host in silent:
        print_line(f"host {host.name} ({host.id}) did not answer")
    for problem in problems:
        print_line(printable(f"  {problem}"))
    for one in holding:
        who = f"host {one.name} ({one.id})" if one else "this host"
        print_line(f"readers on {who} hold older generations: their space is free after they refresh or end")
    return RefusedError.exit_code if waiting else 0


COMMANDS = (own, reclaim)
