# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.rack`: a rack to try things on."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.rack.errors import RackError
from tools.rack.prefix import cache_dir, set_up
from tools.rack.rack import Rack, find
from tools.rack.terminal import shell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.rack.guest import Guest
    from tools.rack.prefix import Prefix

SHOWN: Final = ("qemu-system-x86", "kernel", "cxl", "ndctl", "daxctl", "udev")
RUN_SECONDS: Final = 3600.0


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks for; gives the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.rack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("setup", help="download and unpack what a rack needs, where that is missing")
    up = commands.add_parser("up", help="boot the hosts; they run until `down`")
    up.add_argument("--hosts", type=int, default=2, help="how many (default: 2)")
    run = commands.add_parser("run", help="run a command on a host; ends with its exit code")
    run.add_argument("host", help="h0, h1, ...")
    run.add_argument("words", nargs=argparse.REMAINDER, metavar="CMD", help="one word is a line for bash")
    commands.add_parser("shell", help="a shell on a host").add_argument("host", help="h0, h1, ...")
    commands.add_parser("down", help="switch the hosts off and remove all that they had")
    chosen = parser.parse_args(arguments)
    try:
        prefix = set_up()
        if chosen.command == "setup":
            _print_versions(prefix)
        elif chosen.command == "up":
            _up(prefix, chosen.hosts)
        elif chosen.command == "down":
            _rack(prefix).down()
            _place().unlink()
        elif chosen.command == "shell":
            shell(_host(prefix, chosen.host))
        elif not chosen.words:
            parser.error("a command is missing")
        else:
            return _run(_host(prefix, chosen.host), chosen.words)
    except RackError as e:
        sys.stderr.write(f"rack: {e}\n")
        return 1
    return 0


def _print_versions(prefix: Prefix) -> None:
    versions = prefix.versions
    print(f"ready in {prefix.path}")
    for name in SHOWN:
        print(f"{name:16} {versions[name]}")


def _up(prefix: Prefix, hosts: int) -> None:
    if _place().exists():
        raise RackError(f"a rack is up in {_place().read_text()}; `python -m tools.rack down` removes it")
    started = time.monotonic()
    rack = Rack(prefix, hosts=hosts, outlives=True)
    rack.up()
    _place().write_text(str(rack.folder))
    print(f"up after {time.monotonic() - started:.1f} s: {', '.join(host.name for host in rack.hosts)}")
    for pool in rack.pools.values():
        serial = f", serial {pool.serial:#x}" if pool.kind.is_cxl else ""
        print(f"{pool.name:7} {pool.kind:9} {pool.size >> 20} MiB in {rack.media(pool.name)}{serial}")


def _run(host: Guest, words: Sequence[str]) -> int:
    command = words[0] if len(words) == 1 else shlex.join(words)
    done = host.run(command, check=False, timeout=RUN_SECONDS)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    # As a shell says it, where a signal ended it.
    return done.code if done.code >= 0 else 128 - done.code


def _place() -> Path:
    """Give the file that tells where the rack that is up lives."""
    return cache_dir() / "up"


def _rack(prefix: Prefix) -> Rack:
    if not _place().exists():
        raise RackError("no rack is up; `python -m tools.rack up` starts one")
    return find(prefix, Path(_place().read_text()))


def _host(prefix: Prefix, name: str) -> Guest:
    hosts = {host.name: host for host in _rack(prefix).hosts}
    if name not in hosts:
        raise RackError(f"there is no host {name}, but {', '.join(hosts)}")
    return hosts[name]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
