# SPDX-License-Identifier: Apache-2.0
"""`engramdax udev install` and `remove` below a directory: what they write, keep and put back."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from engramdax.commands.main import run
from engramdax.devices import installation
from engramdax.devices.installation import HELPER, MANIFEST, MODPROBE, RULES, SYSUSERS, TMPFILES, UNIT, WANTED
from engramdax.errors import BackingError, RefusedError
from engramdax.pool.steps import Step, carry_out

Command = Callable[..., tuple[int, str, str]]
FILES = (HELPER, SYSUSERS, TMPFILES, RULES, UNIT, WANTED)
PROGRAM = ["/opt/engramdax/bin/engramdax"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Give the root of a system with some files in it."""
    root = tmp_path / "root"
    for folder in ("etc/udev/rules.d", "etc/systemd/system", "usr/lib/udev"):
        (root / folder).mkdir(parents=True)
    (root / "etc/udev/rules.d/60-other.rules").write_text("# somebody's\n")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:\n")
    return root


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str], root: Path) -> Command:
    """Give a function that runs `engramdax udev` on `root`."""

    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["udev", *arguments, "--root", str(root)])
        return code, *capfd.readouterr()

    return call


def at(root: Path, place: Path) -> Path:
    return root / place.relative_to("/")


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Give mode and content of everything below a directory."""
    found = {}
    for path in sorted(root.rglob("*")):
        status = path.lstat()
        content = b""
        if stat.S_ISLNK(status.st_mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (status.st_mode, content)
    return found


def test_install_writes_everything_and_remove_leaves_what_was_there(command: Command, root: Path) -> None:
    before = snapshot(root)
    code, out, err = command("install", "--keep-kmem-off")
    assert (code, err) == (0, "")
    for place in (*FILES, MODPROBE):
        assert f"wrote {place}\n" in out
        assert at(root, place).is_symlink() == (place == WANTED)
    assert "nothing was started" in out
    assert os.access(at(root, HELPER), os.X_OK)
    assert at(root, RULES).read_bytes() == (installation.SOURCES / RULES.name).read_bytes()
    code, out, err = command("remove")
    assert (code, err) == (0, "")
    assert snapshot(root) == before


def test_a_second_install_changes_nothing(command: Command, root: Path) -> None:
    command("install")
    before = snapshot(root)
    code, out, _ = command("install", "--json")
    assert code == 0
    value = json.loads(out)
    assert (value["changed"], value["same"]) == ([], [str(place) for place in FILES])
    assert snapshot(root) == before


def test_kmem_is_touched_only_when_asked_and_stays_as_it_was_asked(command: Command, root: Path) -> None:
    command("install")
    assert not at(root, MODPROBE).exists()
    command("install", "--keep-kmem-off")
    assert "\nblacklist kmem\n" in at(root, MODPROBE).read_text()
    command("install")
    assert at(root, MODPROBE).exists()
    command("remove")
    assert not at(root, MODPROBE).exists()


def test_dry_run_changes_nothing(command: Command, root: Path) -> None:
    before = snapshot(root)
    code, out, _ = command("install", "--dry-run", "--keep-kmem-off")
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("would ")] == [
        f"would write {place}" for place in (MANIFEST, *FILES, MODPROBE)
    ]
    assert snapshot(root) == before
    command("install")
    before = snapshot(root)
    code, out, _ = command("remove", "--dry-run", "--json")
    value = json.loads(out)
    assert (code, value["done"], value["changed"]) == (0, False, [str(place) for place in FILES])
    assert snapshot(root) == before


@pytest.mark.parametrize("place", FILES)
def test_somebody_else_s_file_is_refused_unless_forced(command: Command, root: Path, place: Path) -> None:
    path = at(root, place)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("somebody's\n")
    before = snapshot(root)
    code, out, err = command("install")
    assert (code, out) == (3, "")
    assert f"{place} is there already, and not by engramdax" in err
    assert "--force" in err
    assert snapshot(root) == before
    assert command("install", "--force")[0] == 0
    assert path.is_symlink() or path.read_bytes() != b"somebody's\n"


def test_a_masked_unit_stays_masked_unless_forced(command: Command, root: Path) -> None:
    at(root, UNIT).symlink_to("/dev/null")
    assert command("install")[0] == 3
    assert at(root, UNIT).readlink() == Path("/dev/null")
    assert command("install", "--force")[0] == 0
    assert not at(root, UNIT).is_symlink()


@pytest.mark.parametrize("place", [RULES, HELPER, UNIT])
def test_a_directory_is_never_replaced(command: Command, root: Path, place: Path) -> None:
    at(root, place).mkdir()
    for arguments in (["install"], ["install", "--force"]):
        code, _, err = command(*arguments)
        assert (code, "neither a file nor a link" in err) == (3, True)


def test_a_file_that_is_the_same_already_is_used_and_left(command: Command, root: Path) -> None:
    path = at(root, SYSUSERS)
    path.parent.mkdir()
    shutil.copy(installation.SOURCES / "sysusers.conf", path)
    path.chmod(0o644)
    command("install")
    assert command("remove")[0] == 0
    assert path.exists()
    assert not at(root, RULES).exists()


def test_files_changed_since_are_kept_and_named_unless_forced(command: Command, root: Path) -> None:
    command("install")
    at(root, RULES).write_text("# mine\n")
    code, _, err = command("install")
    assert (code, f"{RULES} was changed since engramdax wrote it" in err) == (3, True)
    code, out, _ = command("remove")
    assert code == 0
    assert f"{RULES} was changed since it was installed and is kept; --force removes it" in out
    assert at(root, RULES).read_text() == "# mine\n"
    assert not at(root, HELPER).exists()
    # It is still known as what was installed once.
    assert command("remove", "--force")[0] == 0
    assert not at(root, RULES).exists()
    assert not at(root, MANIFEST).parent.exists()


def test_a_file_of_an_older_version_is_replaced(command: Command, root: Path) -> None:
    command("install")
    older = b"# of an older version\n"
    at(root, RULES).write_bytes(older)
    manifest = json.loads(at(root, MANIFEST).read_text())
    manifest["files"][str(RULES)] = installation.Content(older).digest
    at(root, MANIFEST).write_text(json.dumps(manifest))
    code, out, _ = command("install")
    assert (code, f"wrote {RULES}" in out) == (0, True)
    assert command("remove")[0] == 0
    assert not at(root, RULES).exists()


def test_files_that_are_gone_already_are_no_error(command: Command, root: Path) -> None:
    command("install")
    at(root, HELPER).unlink()
    shutil.rmtree(at(root, SYSUSERS).parent)
    assert command("remove")[0] == 0
    assert not at(root, MANIFEST).exists()


def test_removal_without_an_installation_says_so(command: Command) -> None:
    code, out, err = command("remove")
    assert (code, out) == (1, "")
    assert "nothing is installed" in err


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"files": [], "directories": 3}',
        '{"files": {"/etc/passwd": "sha256:0"}, "directories": []}',
        '{"files": {"/etc/engramdax/../passwd": "sha256:0"}, "directories": []}',
        '{"files": {}, "directories": ["/home"]}',
        f'{{"files": {{"{RULES}": 5}}, "directories": []}}',
        "\x00\xff",
    ],
)
def test_a_manifest_that_names_anything_else_is_refused(command: Command, root: Path, text: str) -> None:
    command("install")
    at(root, MANIFEST).write_bytes(text.encode("latin-1"))
    before = snapshot(root)
    for verb in ("remove", "install"):
        code, out, err = command(verb)
        assert (code, out) == (1, "")
        assert "is damaged" in err
    assert snapshot(root) == before


def steps_of(root: Path, verb: str) -> list[Step]:
    if verb == "install":
        return installation.plan_install(root, PROGRAM, keep_kmem_off=True, force=True).steps
    return installation.plan_remove(root, force=True).steps


@pytest.mark.parametrize("verb", ["install", "upgrade", "remove"])
def test_a_failure_at_any_step_leaves_what_was_there(command: Command, root: Path, verb: str) -> None:
    if verb != "install":
        command("install")
        at(root, RULES).write_text("# mine\n")
        at(root, RULES).chmod(0o600)
    before = snapshot(root)
    verb = "install" if verb == "upgrade" else verb
    count = len(steps_of(root, verb))
    assert count >= 3
    for n in range(count):
        steps = steps_of(root, verb)

        def fail(what: str = steps[n].what) -> None:
            raise BackingError(f"cannot {what}")

        steps[n] = Step(steps[n].what, fail, steps[n].undo)
        with pytest.raises(BackingError, match="cannot"):
            carry_out(steps)
        assert snapshot(root) == before
    carry_out(steps_of(root, verb))
    assert snapshot(root) != before


def test_a_write_that_fails_half_way_leaves_what_was_there(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command("install")
    at(root, HELPER).write_text("older\n")
    at(root, UNIT).unlink()
    before = snapshot(root)
    real = installation.replace_file
    for failing in (1, 2, 3):
        calls = itertools.count(1)

        def replace(path: Path, *arguments: object, **options: object) -> None:
            if next(calls) == failing:  # noqa: B023 - called before they change
                raise BackingError(f"cannot write {path}: No space left on device")
            real(path, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(installation, "replace_file", replace)
        code, out, err = command("install", "--force")
        assert (code, out) == (1, "")
        assert "No space left on device" in err
        assert snapshot(root) == before


def test_a_file_that_is_not_what_was_written_is_an_error(
    command: Command, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = snapshot(root)
    real = installation.replace_file

    def replace(path: Path, *arguments: object, **options: object) -> None:
        real(path, *arguments, **options)  # type: ignore[arg-type]
        if path.name == RULES.name:
            path.write_text("somebody was faster\n")

    monkeypatch.setattr(installation, "replace_file", replace)
    code, _, err = command("install")
    assert (code, "is not what was written" in err) == (1, True)
    assert snapshot(root) == before


def test_the_unit_runs_the_program_that_installed_it(root: Path, tmp_path: Path) -> None:
    odd = tmp_path / 'with "quotes" and 100%' / "engramdax"
    carry_out(installation.plan_install(root, [str(odd)], keep_kmem_off=False, force=False).steps)
    folder = str(tmp_path) + '/with \\"quotes\\" and 100%%'
    assert f'ExecStart="{folder}/engramdax" provision --join --known\n' in at(root, UNIT).read_text()
    with pytest.raises(BackingError, match="cannot stand in a unit"):
        installation.plan_install(root, ["/a\nExecStart=/b"], keep_kmem_off=False, force=False)


def test_the_program_is_named_by_an_absolute_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("engramdax", "other"):
        (tmp_path / name).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["engramdax"])
    assert installation.own_program() == [str(tmp_path / "engramdax")]
    monkeypatch.setattr(sys, "argv", ["other"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert installation.own_program() == [str(tmp_path / "engramdax")]
    (tmp_path / "engramdax").unlink()
    assert installation.own_program() == [str(tmp_path / "python"), "-m", "engramdax"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to somebody else")
def test_root_s_boot_runs_nothing_that_others_can_change(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "engramdax"
    program.parent.mkdir()
    program.touch(0o755)
    installation._check_trusted(program)
    for path, owner, mode in ((program, 1000, 0o755), (program, 0, 0o757), (program.parent, 0, 0o777)):
        os.chown(path, owner, 0)
        path.chmod(mode)
        with pytest.raises(RefusedError, match=f"{path} can be changed by others"):
            installation._check_trusted(program)
        os.chown(path, 0, 0)
        path.chmod(0o755)
    link = tmp_path / "link"
    link.symlink_to(program)
    os.chown(program.parent, 1000, 0)
    with pytest.raises(RefusedError, match="can be changed by others"):
        installation._check_trusted(link)


def test_only_root_changes_this_host(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for verb in ("install", "remove"):
        assert run(["udev", verb]) == 1
        assert "only root may change this host; run it with sudo, or give --root DIR" in capfd.readouterr().err


def test_a_root_that_is_not_there_is_a_usage_error(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["udev", "install", "--root", "/no/such"]) == 2
    assert "--root /no/such is no directory" in capfd.readouterr().err


def tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="users and directories of a root need root")
def test_user_and_directories_come_from_systemd_s_tools(command: Command, root: Path) -> None:
    sysusers, tmpfiles = tool("systemd-sysusers"), tool("systemd-tmpfiles")
    command("install")
    subprocess.run([sysusers, f"--root={root}", at(root, SYSUSERS)], check=True, capture_output=True)
    user = next(line for line in (root / "etc/passwd").read_text().splitlines() if line.startswith("engramdax:"))
    assert user.split(":")[5:] == ["/var/lib/engramdax", "/usr/sbin/nologin"]
    uid, gid = map(int, user.split(":")[2:4])
    subprocess.run([tmpfiles, f"--root={root}", "--create", at(root, TMPFILES)], check=True, capture_output=True)
    for folder in ("run/engramdax", "var/lib/engramdax"):
        status = (root / folder).stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (uid, gid, 0o2775)


def test_systemd_takes_the_unit(command: Command, root: Path) -> None:
    analyze = tool("systemd-analyze")
    command("install")
    # Units of the machine that tests run on are none of its business.
    done = subprocess.run(
        [analyze, "verify", "--recursive-errors=no", at(root, UNIT)], capture_output=True, text=True, check=False
    )
    problems = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert problems == []


def test_helper_needs_nothing_but_libc() -> None:
    readelf = tool("readelf")
    shown = subprocess.run(
        [readelf, "-d", installation.SOURCES / HELPER.name], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split("[")[1].rstrip("]") for line in shown.splitlines() if "(NEEDED)" in line] == ["libc.so.6"]
