# SPDX-License-Identifier: Apache-2.0
"""Commands in a guest."""

from __future__ import annotations

import signal

import pytest

from tools.rack.errors import CommandError, CommandTimeoutError, RackError
from tools.rack.rack import Rack

pytestmark = pytest.mark.rack


def test_command_gives_code_and_both_outputs(rack: Rack) -> None:
    done = rack.hosts[0].run("cat; echo problem >&2; exit 3", stdin=b"given", check=False)
    assert (done.code, done.stdout, done.stderr) == (3, "given", "problem\n")


def test_failed_command_is_an_error_with_what_it_printed(rack: Rack) -> None:
    with pytest.raises(CommandError, match=r"h1: ls /nowhere: exit code 2\nstderr: ls: cannot access '/nowhere'"):
        rack.hosts[1].run(["ls", "/nowhere"])


def test_command_that_takes_too_long_is_killed_with_all_that_it_started(rack: Rack) -> None:
    host = rack.hosts[0]
    with pytest.raises(CommandTimeoutError, match="not done after 1 s\nstdout: begun"):
        host.run("echo begun; sleep 4321 & wait", timeout=1)
    assert "4321" not in host.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '").stdout


def test_background_process_runs_on_until_it_is_killed(rack: Rack) -> None:
    host = rack.hosts[0]
    process = host.start(["sleep", "1000"])
    assert process.poll() is None
    assert host.run(f"cat /proc/{process.pid}/comm").stdout == "sleep\n"
    process.kill(signal.SIGTERM)
    assert process.wait().code == -signal.SIGTERM


def test_snippet_that_crashes_does_not_take_the_guest_down(rack: Rack) -> None:
    host = rack.hosts[0]
    done = host.python("import os, signal; print(os.getpid() != 1, flush=True); os.kill(os.getpid(), 11)", check=False)
    assert (done.code, done.stdout) == (-signal.SIGSEGV, "True\n")
    with pytest.raises(CommandError, match="ZeroDivisionError"):
        host.python("1 / 0")


def test_nothing_that_a_guest_writes_reaches_this_machine_or_the_other_guest(rack: Rack) -> None:
    first, second = rack.hosts
    first.put(f"{__file__}.written", b"by a guest")
    assert first.get(f"{__file__}.written") == b"by a guest"
    with pytest.raises(CommandError, match="FileNotFoundError"):
        second.get(f"{__file__}.written")
    with pytest.raises(FileNotFoundError):
        open(f"{__file__}.written")  # noqa: PTH123, SIM115


def test_only_cxl_memdevs_can_be_unplugged(rack: Rack) -> None:
    with pytest.raises(RackError, match="hmem is hmem; only CXL memdevs"):
        rack.hosts[0].unplug("hmem")
    with pytest.raises(RackError, match="h0: ram is in already"):
        rack.hosts[0].plug("ram")
