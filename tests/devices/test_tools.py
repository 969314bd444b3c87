# SPDX-License-Identifier: Apache-2.0
"""What cxl, ndctl and daxctl print and end with, and what is made of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from programs import Programs

from engramdax.devices import tools
from engramdax.errors import ToolError


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    programs = Programs(tmp_path)
    monkeypatch.setenv("PATH", str(programs.folder))
    return programs


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", []),
        ("\n", []),
        ("[\n]\n", []),
        ("[]", []),
        ('{"chardev":"dax0.0"}', [{"chardev": "dax0.0"}]),
        ('[{"chardev":"dax0.0"},{"chardev":"dax1.0"}]', [{"chardev": "dax0.0"}, {"chardev": "dax1.0"}]),
        ("  Warning: no matching devices found\n\n[\n]\n", []),
        ('warning: [old] firmware\n[oops] more\n[\n  {"dev":"namespace0.0"}\n]\n', [{"dev": "namespace0.0"}]),
        ('{"serial":"0xfedcba9876543210","size":18446744073709551615}',
         [{"serial": "0xfedcba9876543210", "size": 18446744073709551615}]),
        ('{"size":-2097152}', [{"size": -2097152}]),
        ('created 1 region\n{"region":"region2"}\ncreated 1 region', [{"region": "region2"}]),
    ],
)  # fmt: skip
def test_objects_are_found_in_whatever_is_printed(text: str, values: list[object]) -> None:
    assert tools.parse(text) == values


@pytest.mark.parametrize("text", ["{", "[{", '{"size":}', "[1, 2]", "[" * 100_000])
def test_text_that_only_begins_like_json_is_an_error(text: str) -> None:
    with pytest.raises(ToolError, match="what looks like JSON is none"):
        tools.parse(text)


@pytest.mark.parametrize("line", ["[", "[1,", '{"a":', "[[]", "[oops]"])
def test_long_text_that_only_looks_like_json_is_given_up_soon(line: str) -> None:
    with pytest.raises(ToolError, match="what looks like JSON is none"):
        tools.parse(f"{line}\n" * 1_000_000)  # trying all of them took longer than a test may


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, "exit code 0"),
        (1, "exit code 1"),
        (250, "exit code 250 (ENXIO: No such device or address)"),
        (240, "exit code 240 (EBUSY: Device or resource busy)"),
        (234, "exit code 234 (EINVAL: Invalid argument)"),
        (130, "exit code 130 (ENOKEY"),
        (-9, "killed by SIGKILL"),
        (-70, "killed by signal 70"),
    ],
)
def test_exit_code_is_said_in_words(code: int, said: str) -> None:
    assert tools.code_text(code).startswith(said)


def test_nothing_done_with_exit_code_0_is_said_so(programs: Programs) -> None:
    programs.says("daxctl", "reconfigure-device", "echo 'reconfigured 0 devices' >&2")
    done = tools.run(["daxctl", "reconfigure-device", "-m", "devdax", "dax9.9"])
    assert done.problem == "exit code 0, but nothing was done: reconfigured 0 devices"
    assert done.command == "daxctl reconfigure-device -m devdax dax9.9"


def test_the_cause_is_said_and_not_the_count(programs: Programs) -> None:
    script = (
        "echo 'cxl region: create_region: no room' >&2; echo 'cxl region: cmd_create_region: created 0 regions' >&2"
    )
    programs.says("cxl", "create-region", f"{script}; exit 1")
    done = tools.run(["cxl", "create-region"])
    assert done.problem == "exit code 1: cxl region: create_region: no room"


@pytest.mark.parametrize(
    ("program", "package"), [("cxl", "cxl (Debian, Ubuntu) or cxl-cli"), ("ndctl", "ndctl"), ("daxctl", "daxctl")]
)
def test_missing_program_is_named_with_its_package(
    programs: Programs, monkeypatch: pytest.MonkeyPatch, *, program: str, package: str
) -> None:
    monkeypatch.setattr(tools, "SBIN", "")
    programs.uninstall(program)
    with pytest.raises(ToolError) as raised:
        tools.run([program, "list"])
    assert str(raised.value) == f"{program} is not installed; install the package {package}"


def test_program_that_hangs_is_killed_with_its_children(programs: Programs, tmp_path: Path) -> None:
    child = tmp_path / "child"
    programs.says("ndctl", "create-namespace", f"sleep 4322 & echo $! >{child}; wait")
    begun = time.monotonic()
    with pytest.raises(ToolError, match=r"`ndctl create-namespace` was not done after 2 s and was killed"):
        tools.run(["ndctl", "create-namespace"], seconds=2)
    pid = int(child.read_text())
    while time.monotonic() - begun < 60 and is_alive(pid):  # a signal takes its time on a busy machine
        time.sleep(0.01)
    assert not is_alive(pid)


def is_alive(pid: int) -> bool:
    """Tell whether the process runs; dead is also one whose exit code nobody has asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("echo 81", (81,)),
        ("echo 76.1", (76, 1)),
        ("echo v77.gabcdef", (77,)),
        ("echo", None),
        ("exit 129", None),
        (f"echo {'9' * 5000}", None),
        ("echo 1².3", (1,)),
    ],
)
def test_version_is_read_where_one_is_said(programs: Programs, said: str, version: tuple[int, ...] | None) -> None:
    programs.says("cxl", "--version", said)
    assert tools.version("cxl") == version


def test_old_cxl_is_told_what_it_cannot_do(programs: Programs) -> None:
    programs.says("cxl", "--version", "echo 76.1")
    with pytest.raises(ToolError, match=r"cxl 76\.1 cannot create volatile CXL regions.*install cxl 77 or later"):
        tools.require_ram_regions()
    for newer in ("77", "81", "unknown"):
        programs.says("cxl", "--version", f"echo {newer}")
        tools.require_ram_regions()


def test_output_that_is_no_utf8_is_shown_escaped(programs: Programs) -> None:
    programs.says("cxl", "list", r"printf 'bad \377 byte' >&2; exit 1")
    assert tools.run(["cxl", "list"]).problem == "exit code 1: bad \\xff byte"
