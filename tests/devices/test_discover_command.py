# SPDX-License-Identifier: Apache-2.0
"""`engramdax discover`: the table, the JSON, and what is said where there is nothing or not enough rights."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from trees import Captured, Sysfs

from engramdax.commands import discover
from engramdax.commands.main import run
from engramdax.devices import libraries
from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.libraries import Comparison, cross_check
from engramdax.devices.tree import DaxDevice, Tree, Unread
from engramdax.devices.watch import Change

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Give a function that runs `discover` on a host with this tree."""

    def call(tree: Tree, *options: str) -> tuple[int, str, str]:
        monkeypatch.setattr(discover, "read_tree", lambda: tree)
        # The libraries would speak of the machine that the test runs on.
        monkeypatch.setattr(discover, "cross_check", lambda _tree: Comparison((), ()))
        capfd.readouterr()
        code = run(["discover", *options])
        return code, *capfd.readouterr()

    return call


EMPTY = Tree((), (), (), (), (), (), (), (), (), ())


def test_nothing_found_is_said_and_no_failure(on: Run) -> None:
    code, out, err = on(EMPTY)
    assert (code, err) == (0, "")
    assert out.count("\n") == 1
    assert "engramdax provision --file" in out


def test_nothing_found_is_a_whole_document(on: Run) -> None:
    code, out, _ = on(EMPTY, "--json")
    assert code == 0
    assert json.loads(out) == {
        "format": 1,
        **{field.name: [] for field in dataclasses.fields(Tree)},
        "libraries": [],
        "disagreements": [],
    }


def test_each_device_has_a_row_and_what_helps(on: Run, captured: Captured) -> None:
    code, out, _ = on(captured("bare-h0").read())
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines()[1:]}
    assert "0xfedcba9876543210" in rows["mem0"]
    assert "mem0: in no region" in out
    assert "`engramdax provision 0xfedcba9876543210`" in out
    assert "`engramdax provision dax1.0`" in out


def parts(value: Any) -> Iterator[Any]:
    for field in dataclasses.fields(Tree):
        yield from (one for one in getattr(value, field.name) if dataclasses.is_dataclass(one))


@pytest.mark.parametrize("name", ["bare-h0", "devdax-h1", "kmem-online-h0", "fsdax-mapdev-disabled-h1", "sliced-h0"])
def test_json_has_everything_that_the_tree_holds(on: Run, captured: Captured, name: str) -> None:
    tree = captured(name).read()
    found = json.loads(on(tree, "--json")[1])
    for field in dataclasses.fields(Tree):
        values = getattr(tree, field.name)
        assert len(found[field.name]) == len(values)
        for part, printed in zip(values, found[field.name], strict=True):
            if not dataclasses.is_dataclass(part):
                assert printed == part
                continue
            for own in dataclasses.fields(part):
                value = getattr(part, own.name)
                if isinstance(value, Path):
                    value = str(value)
                elif dataclasses.is_dataclass(value):
                    value = value.name  # type: ignore[attr-defined]
                elif isinstance(value, tuple) and any(dataclasses.is_dataclass(v) for v in value):
                    assert len(printed[own.name]) == len(value)
                    continue
                elif isinstance(value, tuple):
                    value = list(value)
                assert printed[own.name] == value, own.name
    regions = {r["name"]: r for r in found["cxl_regions"]}
    for region in tree.cxl_regions:
        targets = [(t.decoder and t.decoder.name, t.memdev and t.memdev.name) for t in region.targets]
        assert [(t["decoder"], t["memdev"]) for t in regions[region.name]["targets"]] == targets


def test_json_has_every_verdict_with_what_helps(on: Run, captured: Captured) -> None:
    tree = captured("kmem-online-h0").read()
    found = json.loads(on(tree, "--json")[1])
    printed = [p["fitness"] for name in discover.LISTS.values() for p in found[name] if p["fitness"]]
    expected = [(str(f.verdict), f.why, f.command) for f in assess(tree)]
    assert sorted((p["verdict"], p["why"], p["command"]) for p in printed) == sorted(expected)


def test_every_verdict_has_its_words() -> None:
    device = DaxDevice.__new__(DaxDevice)
    for verdict in Verdict:
        assert discover._state(Fitness(device, verdict, ""))


def test_what_needs_root_is_said(on: Run, captured: Captured) -> None:
    unread = (
        Unread(Path("/sys/a"), "Permission denied", denied=True),
        Unread(Path("/sys/b"), "I/O error", denied=False),
    )
    _, out, _ = on(dataclasses.replace(captured("devdax-h0").read(), unread=unread))
    assert "1 attribute of sysfs can be read by root only: `sudo engramdax discover`\n" in out
    assert "/sys/b: I/O error\n" in out


def test_control_characters_never_reach_the_terminal(on: Run, sysfs: Sysfs) -> None:
    sysfs.cxl_region("region0", [sysfs.memdev(1, "0x1")], mode=b"ram\x1b]0;title\x07\n", commit=0)
    _, out, _ = on(sysfs.read())
    assert "ram\\x1b]0;title\\x07" in out
    assert out.replace("\n", "").isprintable()


def test_interrupted_watch_ends_with_0(on: Run, monkeypatch: pytest.MonkeyPatch, captured: Captured) -> None:
    tree = captured("devdax-h0").read()

    def change_and_interrupt(*_arguments: Any) -> Iterator[Change]:
        yield Change("removed", tree.dax_devices[0], None)
        raise KeyboardInterrupt

    monkeypatch.setattr(discover, "changes", change_and_interrupt)
    code, out, err = on(tree, "--watch")
    assert (code, err) == (0, "")
    assert out.splitlines()[-1].endswith("removed dax0.0: nvdimm, 254.0 MiB, devdax")
    code, out, _ = on(tree, "--watch", "--json")
    first, last = out.splitlines()
    assert len(json.loads(first)["dax_devices"]) == 4
    change = json.loads(last)
    assert (change["action"], change["list"], change["part"]["name"]) == ("removed", "dax_devices", "dax0.0")


def test_watch_ends_cleanly_at_a_real_interrupt() -> None:
    program = Path(sys.executable).with_name("engramdax")
    with subprocess.Popen([program, "discover", "--watch"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        # Sent again, since the first may come before anything is waited for.
        for _ in range(20):
            time.sleep(0.5)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert (process.wait(), process.stderr.read()) == (0, b"")


# A second opinion.


def test_absent_libraries_have_no_opinion(monkeypatch: pytest.MonkeyPatch, captured: Captured) -> None:
    monkeypatch.setattr(libraries, "SONAMES", dict.fromkeys(libraries.SONAMES, "libnowhere.so.0"))
    libraries._open.cache_clear()
    assert cross_check(captured("devdax-h0").read()) == Comparison((), ())
    libraries._open.cache_clear()


def test_disagreements_name_device_attribute_and_both_opinions(on: Run, captured: Captured) -> None:
    tree = captured("devdax-h0").read()
    tree = dataclasses.replace(
        tree, dax_devices=tuple(dataclasses.replace(d, node_exists=True) for d in tree.dax_devices)
    )
    said = libraries._dax_known(tree)
    said["dax1.0"]["mode"] = "system-ram"
    del said["dax2.0"]
    said["dax9.0"] = {}
    assert list(libraries._compare("libdaxctl", said, libraries._dax_known(tree))) == [
        "dax1.0: libdaxctl says mode system-ram, sysfs devdax",
        "dax2.0: libdaxctl does not see it",
        "dax9.0: libdaxctl sees it, sysfs does not",
    ]


def test_document_is_the_same_for_the_same_tree(on: Run, captured: Captured) -> None:
    tree = captured("sliced-h0").read()
    assert on(tree, "--json") == on(tree, "--json")
    assert os.fsencode(on(tree, "--json")[1]).isascii()
