# SPDX-License-Identifier: Apache-2.0
"""What `engramdax udev install` puts on a host, and takes away again.

The files are those of udev/, which the wheel holds in engramdax/_udev with the helper compiled. A manifest says which
files of the host are engramdax's and what they were when it wrote them: what somebody changed since, or wrote before,
is theirs. It lies below /etc and not in /var/lib/engramdax, where members of the group write. It is written before the
files it names, so that also an installation that was killed can be taken away.
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax.devices import udev
from engramdax.errors import BackingError, EngramdaxError, RefusedError
from engramdax.files import replace_file
from engramdax.host import SYSTEM_RUN, SYSTEM_STATE
from engramdax.pool.steps import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

SOURCES: Final = Path(__file__).resolve().parents[1] / "_udev"
MANIFEST: Final = Path("/etc/engramdax/udev.json")
USER: Final = "engramdax"
"""The user that loads, and the group that reads."""

RULES: Final = Path("/etc/udev/rules.d/70-engramdax.rules")
HELPER: Final = Path("/usr/lib/udev/engramdax-dax-id")
SYSUSERS: Final = Path("/etc/sysusers.d/engramdax.conf")
TMPFILES: Final = Path("/etc/tmpfiles.d/engramdax.conf")
UNIT: Final = Path("/etc/systemd/system/engramdax-join.service")
WANTED: Final = Path("/etc/systemd/system/multi-user.target.wants/engramdax-join.service")
"""What `systemctl enable` would make."""

MODPROBE: Final = Path("/etc/modprobe.d/engramdax.conf")
HEALTH_UNIT: Final = Path("/etc/systemd/system/engramdax-health.service")
HEALTH_TIMER: Final = Path("/etc/systemd/system/engramdax-health.timer")
HEALTH_WANTED: Final = Path("/etc/systemd/system/timers.target.wants/engramdax-health.timer")
HEALTH: Final = (HEALTH_UNIT, HEALTH_TIMER, HEALTH_WANTED)
SYSTEMD: Final = Path("/run/systemd/system")
"""There while systemd is the service manager (sd_booted(3))."""

PROGRAM_SECONDS: Final = 60
_PLACE_FOR_PROGRAM: Final = b"@ENGRAMDAX@"
_DIRECTORY_MODE: Final = 0o755


@dataclass(frozen=True, slots=True)
class Content:
    """What stands at a path: the bytes of a file and its permissions, or the target of a link."""

    data: bytes
    mode: int = 0o644
    link: bool = False

    @property
    def digest(self) -> str:
        """What the manifest remembers of it."""
        return f"link:{os.fsdecode(self.data)}" if self.link else f"sha256:{hashlib.sha256(self.data).hexdigest()}"


@dataclass(slots=True)
class Plan:
    """The steps, and what there is to say of them: `changed`, `same` and `kept` are paths of the host."""

    steps: list[Step] = field(default_factory=list)
    changed: list[Path] = field(default_factory=list)
    same: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)
    """Files that were changed since they were installed, and are left where they are."""
    notes: list[str] = field(default_factory=list)
    """What could not be done, and what to do about it. Steps add to it."""


def plan_install(
    root: Path, program: Sequence[str], *, keep_kmem_off: bool, force: bool, health_timer: bool = False
) -> Plan:
    """Install everything below `root`, and on the host itself (`root` is /) let it take effect.

    `program` is the command that the boot unit runs as root. Raises RefusedError for a file that is not engramdax's,
    or was changed, unless `force`; for a program that others than root can write, unless `force`.
    """
    wanted = _wanted(program, keep_kmem_off=keep_kmem_off, health_timer=health_timer)
    live = root == Path("/")
    if live and not force:
        for path in (Path(program[0]), Path(sys.executable), SOURCES):
            _check_trusted(path)
    owned, directories = read_manifest(root)
    plan = Plan()
    for place, content in wanted.items():
        found = read(_below(root, place))
        if found == content:
            plan.same.append(place)
            continue
        if found is not None and not force:
            _check_ours(place, found, owned)
        plan.changed.append(place)
    # What was there already, to the byte, and is not in the manifest is somebody else's: a package's, say.
    mine = {**owned, **{str(p): wanted[p].digest for p in wanted if p in plan.changed or str(p) in owned}}
    missing = {d for place in (MANIFEST, *plan.changed) for d in place.parents if not _below(root, d).is_dir()}
    plan.steps += _write(root, MANIFEST, _manifest(mine, directories | missing))
    for place in plan.changed:
        plan.steps += _write(root, place, wanted[place])
    if live:
        plan.steps += _activate(plan, keep_kmem_off=keep_kmem_off)
        if HEALTH_TIMER in plan.changed:
            plan.notes.append(f"`systemctl start {HEALTH_TIMER.name}` starts the timer now, the next boot does as well")
    else:
        plan.notes.append(
            f"nothing was started: {root} is not this host. There, run systemd-sysusers, systemd-tmpfiles --create, "
            "udevadm control --reload and udevadm trigger, or boot it"
        )
    return plan


def plan_remove(root: Path, *, force: bool) -> Plan:
    """Take away what `plan_install` put below `root`; what was changed since stays, unless `force`.

    EngramdaxError where nothing of it is there.
    """
    owned, directories = read_manifest(root)
    if not owned:
        raise EngramdaxError(
            f"nothing is installed below {root}: there is no {MANIFEST}", remedy="`engramdax udev install` installs it"
        )
    plan = Plan()
    left: dict[str, str] = {}
    for text, digest in owned.items():
        place = Path(text)
        found = read(_below(root, place))
        if found is None:
            continue
        if found.digest != digest and not force:
            plan.kept.append(place)
            left[text] = digest
        else:
            plan.changed.append(place)
    live = root == Path("/")
    nodes = [pool.path for pool in udev.linked_pools().values()] if live else []
    for place in plan.changed:
        plan.steps += _erase(root, place)
    if left:
        plan.steps += _write(root, MANIFEST, _manifest(left, directories))
    else:
        plan.steps += _erase(root, MANIFEST)
        plan.steps += [_remove_directory(_below(root, d)) for d in sorted(directories, reverse=True)]
    if live:
        if nodes and RULES in plan.changed:
            plan.steps.append(
                Step("give " + ", ".join(map(str, nodes)) + " back to root", lambda: _return_nodes(nodes))
            )
        plan.steps += _reload(plan)
        if HEALTH_TIMER in plan.changed:
            plan.notes.append(f"`systemctl stop {HEALTH_TIMER.name}` stops the timer now, where it still runs")
        plan.notes.append(f"user and group {USER}, {SYSTEM_STATE} and {SYSTEM_RUN} are left: they may be in use")
    return plan


def own_program() -> list[str]:
    """Give the command that runs this engramdax, by an absolute path."""
    started = Path(sys.argv[0])
    beside = Path(sys.executable).with_name("engramdax")
    if started.name == "engramdax" and os.access(started, os.X_OK):
        # Not resolved: a link in /usr/local/bin outlives the environment that it leads to today.
        return [str(started.absolute())]
    if os.access(beside, os.X_OK):
        return [str(beside)]
    return [sys.executable, "-m", "engramdax"]


def _wanted(program: Sequence[str], *, keep_kmem_off: bool, health_timer: bool) -> dict[Path, Content]:
    if not SOURCES.is_dir():
        raise BackingError(f"{SOURCES} is missing", remedy="build it with `python c/build.py`, or install the wheel")
    unit = (SOURCES / "engramdax-join.service").read_bytes()
    command = " ".join(map(_quoted, program)).encode()
    files = {
        HELPER: Content((SOURCES / HELPER.name).read_bytes(), 0o755),
        SYSUSERS: Content((SOURCES / "sysusers.conf").read_bytes()),
        TMPFILES: Content((SOURCES / "tmpfiles.conf").read_bytes()),
        RULES: Content((SOURCES / RULES.name).read_bytes()),
        UNIT: Content(unit.replace(_PLACE_FOR_PROGRAM, command)),
        WANTED: Content(os.fsencode(UNIT), link=True),
    }
    if keep_kmem_off:
        files[MODPROBE] = Content((SOURCES / "modprobe.conf").read_bytes())
    if health_timer:
        health = (SOURCES / HEALTH_UNIT.name).read_bytes()
        files[HEALTH_UNIT] = Content(health.replace(_PLACE_FOR_PROGRAM, command))
        files[HEALTH_TIMER] = Content((SOURCES / HEALTH_TIMER.name).read_bytes())
        files[HEALTH_WANTED] = Content(os.fsencode(HEALTH_TIMER), link=True)
    return files


def _quoted(word: str) -> str:
    """Write a word of ExecStart= as systemd reads it back."""
    if not word.isprintable():
        raise BackingError(f"{word!r} cannot stand in a unit of systemd", remedy="install engramdax elsewhere")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word or "'" in word else word


def read_manifest(root: Path) -> tuple[dict[str, str], frozenset[Path]]:
    """Give path and digest of each file that engramdax wrote below `root`, and the directories that it made for them.

    BackingError for a damaged manifest. A path that no version installs is damage, too: removal must not be told to
    remove anything else.
    """
    path = _below(root, MANIFEST)
    places = (MANIFEST, RULES, HELPER, SYSUSERS, TMPFILES, UNIT, WANTED, MODPROBE, *HEALTH)
    try:
        value = json.loads(path.read_text())
        files, directories = dict(value["files"]), frozenset(map(Path, value["directories"]))
        unknown = {str(p) for p in directories - {d for place in places for d in place.parents}}
        unknown |= files.keys() - {str(place) for place in places}
        if unknown or not all(isinstance(digest, str) for digest in files.values()):
            raise ValueError(f"it names {sorted(unknown)}")
    except FileNotFoundError:
        return {}, frozenset()
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise BackingError(f"{path} is damaged: {e}", remedy="look at it, and remove it to install anew") from None
    return files, directories


def _manifest(files: dict[str, str], directories: Iterable[Path]) -> Content:
    value = {"files": files, "directories": sorted(map(str, directories))}
    return Content((json.dumps(value, indent=2) + "\n").encode())


def _below(root: Path, place: Path) -> Path:
    return root / place.relative_to("/")


def read(path: Path) -> Content | None:
    """Give what stands at a path, None for nothing; RefusedError where it is neither a file nor a link."""
    try:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            return Content(os.fsencode(path.readlink()), link=True)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(f"{path} is neither a file nor a link", remedy="look at it, and move it away")
        return Content(path.read_bytes(), stat.S_IMODE(status.st_mode))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as e:
        raise BackingError(f"cannot read {path}: {e.strerror}", remedy="run as root, or give --root") from None


def _check_ours(place: Path, found: Content, owned: dict[str, str]) -> None:
    if str(place) not in owned:
        raise RefusedError(
            f"{place} is there already, and not by engramdax", remedy="look at it, and say --force to replace it"
        )
    if owned[str(place)] != found.digest:
        raise RefusedError(
            f"{place} was changed since engramdax wrote it", remedy="keep it elsewhere, and say --force to replace it"
        )


def _check_trusted(path: Path) -> None:
    """Refuse what the boot unit would run as root, where somebody else could change it."""
    path = Path(os.path.realpath(path))
    for part in (path, *path.parents):
        status = part.stat()
        writable = status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and status.st_gid != 0)
        if status.st_uid != 0 or (writable and not status.st_mode & stat.S_ISVTX):
            raise RefusedError(
                f"root would run {path} at each boot, but {part} can be changed by others",
                remedy="install engramdax as root, into /opt/engramdax say, or say --force",
            )


def _write(root: Path, place: Path, content: Content) -> list[Step]:
    change = _Change(_below(root, place), content)
    return [Step(f"write {place}", change.do, change.undo)]


def _erase(root: Path, place: Path) -> list[Step]:
    change = _Change(_below(root, place), None)
    return [Step(f"remove {place}", change.do, change.undo)]


def _remove_directory(path: Path) -> Step:
    def do() -> None:
        with suppress(OSError):  # it is gone already, or somebody else has files there by now
            path.rmdir()

    return Step(f"remove directory {path} if it is empty", do, lambda: path.mkdir(_DIRECTORY_MODE, exist_ok=True))


class _Change:
    """One file or link made, replaced or removed, with the directories that it needs; or back to what was there."""

    def __init__(self, path: Path, content: Content | None) -> None:
        self._path = path
        self._content = content
        self._before: Content | None = None
        self._made: list[Path] = []

    def do(self) -> None:
        """Bring it about, and look whether it is so."""
        self._before = read(self._path)
        try:
            self._put(self._content)
            if (found := read(self._path)) != self._content:
                raise BackingError(
                    f"{self._path} is not what was written: {'gone' if found is None else found.digest}",
                    remedy="look who else changes it",
                )
        except BaseException:
            self.undo()
            raise

    def undo(self) -> None:
        """Put back what was there."""
        if read(self._path) != self._before:
            self._put(self._before)
        for directory in reversed(self._made):
            with suppress(OSError):  # somebody else uses it by now
                directory.rmdir()

    def _put(self, content: Content | None) -> None:
        path = self._path
        try:
            if content is None:
                path.unlink(missing_ok=True)
                return
            self._make_directories()
            if path.is_symlink() or content.link:
                path.unlink(missing_ok=True)
            if content.link:
                path.symlink_to(os.fsdecode(content.data))
                return
        except OSError as e:
            raise BackingError(f"cannot write {path}: {e.strerror}", remedy="run as root, or give --root") from None
        remedy = "run as root, or give --root"
        replace_file(path, lambda file: file.write(content.data), mode=content.mode, remedy=remedy)

    def _make_directories(self) -> None:
        for directory in reversed([p for p in self._path.parents if not p.is_dir()]):
            directory.mkdir(_DIRECTORY_MODE)
            directory.chmod(_DIRECTORY_MODE)  # past the umask
            self._made.append(directory)


def _activate(plan: Plan, *, keep_kmem_off: bool) -> list[Step]:
    steps = []
    if sysusers := shutil.which("systemd-sysusers"):
        # No undo: a user without files is in nobody's way, and one that is removed may leave files behind.
        steps.append(_program_step([sysusers, str(SYSUSERS)], _check_user))
    else:
        steps.append(Step(f"look for user {USER}", lambda: _note_missing_user(plan)))
    if tmpfiles := shutil.which("systemd-tmpfiles"):
        steps.append(_program_step([tmpfiles, "--create", str(TMPFILES)], _check_directories))
    else:
        plan.notes.append(
            f"there is no systemd-tmpfiles here: make {SYSTEM_RUN} (at each boot) and {SYSTEM_STATE}, "
            f"owner and group {USER}, mode 2775"
        )
    steps.append(Step(f"let group {USER} use what is in {SYSTEM_STATE}", _hand_over))
    steps += _reload(plan)
    if not SYSTEMD.is_dir():
        plan.notes.append("systemd does not run here: nothing runs `engramdax provision --join --known` at boot")
    if keep_kmem_off:
        plan.notes += _kmem_notes()
    return steps


def _reload(plan: Plan) -> list[Step]:
    """Let udevd and systemd read what changed; give the steps, and say in the plan what cannot be."""
    steps = []
    program = udev.udevadm()
    if program is None or not udev.running():
        why = "there is no udevadm here" if program is None else "udevd does not run here"
        plan.notes.append(f"{why}: links and access of devices change once udev looks at them")
    else:
        steps.append(_program_step([program, "control", "--reload"]))
        trigger = [program, "trigger", "--settle", "--action=change", "--subsystem-match=dax"]
        steps.append(Step(f"run {' '.join(trigger)}", lambda: _run_or_note(plan, trigger)))
    if (systemctl := shutil.which("systemctl")) and SYSTEMD.is_dir():
        steps.append(_program_step([systemctl, "daemon-reload"]))
    return steps


def _program_step(command: list[str], check: Callable[[], None] | None = None) -> Step:
    def do() -> None:
        if problem := _run(command):
            raise BackingError(f"`{' '.join(command)}` failed: {problem}", remedy="run it by hand to see why")
        if check:
            check()

    return Step(f"run {' '.join(command)}", do)


def _run(command: list[str]) -> str:
    """Run a program; give what went wrong, "" if nothing did."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROGRAM_SECONDS} s"
    except OSError as e:
        return str(e.strerror)
    if done.returncode == 0:
        return ""
    said = " ".join((done.stderr or done.stdout).split())
    return said or f"exit code {done.returncode}"


def _run_or_note(plan: Plan, command: list[str]) -> None:
    if problem := _run(command):
        plan.notes.append(f"`{' '.join(command)}` failed: {problem}; links and access of devices may be old")


def _ids() -> tuple[int, int] | None:
    try:
        return pwd.getpwnam(USER).pw_uid, grp.getgrnam(USER).gr_gid
    except KeyError:
        return None


def _check_user() -> None:
    if _ids() is None:
        raise BackingError(
            f"systemd-sysusers made no user and group {USER}", remedy=f"make them: `useradd --system -U {USER}`"
        )


def _note_missing_user(plan: Plan) -> None:
    if _ids() is None:
        plan.notes.append(
            f"there is no systemd-sysusers here and no user {USER}: make it with `useradd --system -U {USER}`, "
            "then run this again"
        )


def _check_directories() -> None:
    remedy = f"look at {TMPFILES} and its neighbours"
    for directory in (SYSTEM_RUN, SYSTEM_STATE):
        if not directory.is_dir():
            raise BackingError(f"systemd-tmpfiles did not make {directory}", remedy=remedy)
        status = directory.stat()
        if (status.st_uid, status.st_gid) != _ids() or status.st_mode & stat.S_IWOTH:
            mode = stat.S_IMODE(status.st_mode)
            raise BackingError(
                f"systemd-tmpfiles left {directory} to uid {status.st_uid} with mode {mode:o}", remedy=remedy
            )


def _hand_over() -> None:
    """Give the group what root's commands made before there was one: locks and records, which stay root's own."""
    if (ids := _ids()) is None:
        return
    for directory in (SYSTEM_STATE, SYSTEM_STATE / "pools", SYSTEM_RUN):
        if not directory.is_dir():
            continue
        for entry in directory.iterdir():
            fd = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC) if _plain(entry) else -1
            if fd < 0:
                continue
            try:
                status = os.fstat(fd)
                # In a directory where the group writes: nothing that is also somewhere else, nothing of others.
                if status.st_uid == 0 and (stat.S_ISDIR(status.st_mode) or status.st_nlink == 1):
                    os.fchown(fd, -1, ids[1])
                    if stat.S_ISDIR(status.st_mode):
                        os.fchmod(fd, 0o2775)
            finally:
                os.close(fd)


def _plain(path: Path) -> bool:
    mode = path.lstat().st_mode
    return stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and path.name == "pools")


def _return_nodes(nodes: list[Path]) -> None:
    """Make pools' devices root's alone, as they were before the rules: without them udev leaves nodes as they are."""
    for node in nodes:
        with suppress(FileNotFoundError):
            os.chown(node, 0, 0)
            node.chmod(0o600)


def _kmem_notes() -> list[str]:
    release = os.uname().release
    notes = ["kmem stays off from the next boot on, for every dax device of this host"]
    if list(Path("/boot").glob("init*")):
        notes.append(
            f"make the initramfs anew (update-initramfs -u, or dracut -f), so that {MODPROBE} holds there, too"
        )
    builtin = Path(f"/lib/modules/{release}/modules.builtin")
    with suppress(OSError):
        if any(line.endswith("/kmem.ko") for line in builtin.read_text().splitlines()):
            notes.append(
                f"kmem is built into kernel {release}, so {MODPROBE} cannot keep it off: boot with "
                "memhp_default_state=offline, and give devices back with `daxctl reconfigure-device -m devdax`"
            )
    if Path("/sys/module/kmem").exists():
        notes.append("kmem is loaded now; devices that it holds already stay system RAM until `daxctl` takes them back")
    return notes
