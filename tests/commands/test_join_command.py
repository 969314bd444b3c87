# SPDX-License-Identifier: Apache-2.0
"""`provision --join` where there is nothing to join; tests/rack joins pools on real devices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

from outcomes import Outcome

from engramdax.pool.records import Assembly, Record, write_record

Command = Callable[..., Outcome]


def test_a_boot_where_all_pools_are_in_files_has_nothing_to_do(command: Command, pool: Path) -> None:
    assert pool.exists()
    done = command("provision", "--join", "--known")
    done.succeeded()
    assert done.out == "this host remembers no pool on a device\n"
    assert command("provision", "--join", "--known", "--json").json() == []


def test_each_remembered_pool_is_tried_whatever_becomes_of_the_others(command: Command) -> None:
    for name in ("first", "second"):
        assembly = Assembly("cxl-ram", memdevs=(f"0xfeed{len(name):04x}",))
        write_record(Record(str(uuid4()), name, "/dev/dax99.0", assembly=assembly))
    for options in ((), ("--dry-run",)):
        command("provision", "--join", "--known", *options).failed(1, "0xfeed0005", "0xfeed0006")


def test_known_is_for_joining(command: Command, tmp_path: Path) -> None:
    outcome = command("provision", "--known", "--file", tmp_path / "p", "--size", "64M")
    outcome.failed(2, "--known goes with --join alone")
    assert not (tmp_path / "p").exists()
