# SPDX-License-Identifier: Apache-2.0
"""The program as a whole: usage, help, exit codes, completion, and where output goes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from outcomes import Outcome

import engramdax

Command = Callable[..., Outcome]

COMMANDS = ("provision", "deprovision", "load", "rm", "ls", "info", "verify", "gather", "demo")


def test_version(process: Command) -> None:
    assert process("--version").succeeded().out == f"engramdax {engramdax.__version__}\n"


def test_help_names_every_command(process: Command, command: Command) -> None:
    overview = process("--help").succeeded().out
    for name in COMMANDS:
        assert f"  {name} " in overview
        assert "--json" in command(name, "--help").succeeded().out


def test_no_command_at_all_is_a_usage_error_with_help(process: Command) -> None:
    outcome = process()
    assert outcome.code == 2
    assert "Commands:" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fly"], "fly"),
        (["ls", "--fly"], "--fly"),
        (["load"], "source"),
        (["rm"], "table"),
        (["ls", "one", "two"], "one"),
        (["info", "--pool"], "--pool"),
        (["gather", "t"], "--ids"),
        (["demo", "--vocab-size", "x"], "--vocab-size"),
    ],
)
def test_wrong_usage_points_to_the_help(command: Command, arguments: list[str], said: str) -> None:
    command(*arguments).failed(2, said, "--help`")


def interrupt(*_arguments: object, **_options: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["trace", "tokens.npy", "--config", "config.json"], "engramdax.commands.trace.read_traces"),
        (["ls"], "engramdax.commands.show.resolve"),
        (["verify"], "engramdax.commands.show.resolve"),
        (["gather", "t", "--ids", "ids.npy", "--out", "rows.npy"], "engramdax.commands.gather._read_ids"),
        (["hot", "show", "t"], "engramdax.commands.hot.resolve"),
        (["bench", "cpu", "--quick"], "engramdax.bench.contest.hold"),
        (["demo"], "engramdax.commands.demo.write_checkpoint"),
    ],
)
def test_interrupted_command_that_changes_no_pool_says_only_that(
    command: Command, arguments: list[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, interrupt)
    outcome = command(*arguments)
    assert (outcome.code, outcome.out, outcome.err) == (1, "", "engramdax: interrupted\n")


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["load", "t.npy"], "engramdax.commands.load.open_sources"),
        (["rm", "t"], "engramdax.commands.load.resolve"),
        (["provision", "--file", "p", "--size", "64M"], "engramdax.commands.provision.plan_file"),
        (["deprovision"], "engramdax.commands.provision.resolve"),
        (["hot", "set", "t", "hot.npz"], "engramdax.commands.hot.read_hot_list"),
    ],
)
def test_interrupted_command_that_changes_a_pool_says_what_is_left(
    command: Command, arguments: list[str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, interrupt)
    command(*arguments).failed(1, "interrupted; nothing unfinished is published, and its space is free")


def test_interrupted_hand_over_says_how_to_see_what_is_left(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not that nothing is: a claim may be on the media, and stops the owner.
    monkeypatch.setattr("engramdax.commands.own.resolve", interrupt)
    command("own", "--take-over").failed(1, "interrupted; `engramdax own` tells whether this host released the pool")


def test_exit_codes_of_a_process(process: Command, pool: Path) -> None:
    assert process("ls", "--pool", pool).code == 0
    process("rm", "absent", "--pool", pool).failed(1)
    process("load", "--pool", pool).failed(2)
    process("deprovision", "--pool", pool).failed(3)


def test_debug_shows_where_an_error_came_from(process: Command, tmp_path: Path) -> None:
    outcome = process("--debug", "ls", "--pool", tmp_path / "absent")
    assert outcome.code == 1
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1].startswith("engramdax: ")


def test_text_listing_is_for_people(command: Command, pool: Path) -> None:
    lines = command("ls", "--pool", pool).succeeded().out.splitlines()
    assert lines[0].split() == ["TABLE", "ROWS", "ROW", "BYTES", "SIZE", "FIELDS"]
    assert lines[1].split() == ["kept", "500", "48", "23.4", "KiB", "48", "uint8"]
    assert lines[2] == "1 table in shelf; 8.0 MiB free, the largest free extent 8.0 MiB"
    info = command("info", "--pool", pool).succeeded().out
    assert f"path        {pool}\n" in info
    assert "problems    none\n" in info
    assert "500" in command("info", "kept", "--pool", pool).succeeded().out


def test_long_names_are_not_cut_in_a_pipe(
    process: Command, pool: Path, load_array: Callable[..., object], kept: object
) -> None:
    name = "/".join(["long-component-of-a-name"] * 5)
    load_array(pool, name, kept)
    assert any(line.startswith(f"{name} ") for line in process("ls", "--pool", pool).succeeded().out.splitlines())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell(process: Command, shell: str) -> None:
    script = process(env={**os.environ, "_ENGRAMDAX_COMPLETE": f"source_{shell}"}).succeeded().out
    assert "engramdax" in script
    assert f"complete_{shell}" in script


def test_completion_script_of_the_shell_that_asks(program: Path) -> None:
    script = f"{program} --show-completion; exit $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "complete_bash" in done.stdout
    # What it printed is a script that bash can read.
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)


def test_completion_of_commands_and_options(process: Command) -> None:
    def completed(words: str, count: int) -> list[str]:
        variables = {"_ENGRAMDAX_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(count)}
        return process(env={**os.environ, **variables}).succeeded().out.split()

    assert completed("engramdax l", 1) == ["load", "ls"]
    assert "--row-bytes" in completed("engramdax load --r", 2)


def test_reader_of_the_output_that_had_enough_is_no_traceback(program: Path, pool: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [program, "ls", "--json", "--pool", pool], stdout=writing, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_output_that_cannot_be_written_is_one_line(program: Path, pool: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [program, "ls", "--json", "--pool", pool], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("engramdax: ")
    assert done.stderr.count("\n") == 1


def test_closed_output_keeps_nothing_from_being_done(program: Path, pool: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "more.npy", np.zeros((10, 64), np.uint8))
    load = [program, "load", tmp_path / "more.npy", "--name", "more", "--pool", pool]
    done = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *load], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    with engramdax.open(pool) as opened:
        assert "more" in opened.tables


def test_no_command_waits_for_the_import_of_what_only_bench_needs() -> None:
    program = "import sys, engramdax.commands.main; print([m for m in sys.modules if m.startswith('engramdax.bench')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
