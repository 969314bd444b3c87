# SPDX-License-Identifier: Apache-2.0
"""QEMU, a kernel and the tools of CXL memory, unpacked from the Debian archive into a folder of the user.

The archive is the one that apt on this machine is configured for, asked for a newer suite; proxies, credentials
and keys are apt's too. Neither root nor the machine's package database is needed or touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from tools.rack.errors import UnavailableError
from tools.rack.kernel import UNUSED_MODULES, unpack_kernel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

SUITE: Final = "trixie"
"""Has cxl, ndctl and daxctl 81 and kernel 6.12. Version 76 of the tools cannot create ram regions (and exits 0
after failing), kernel 6.1 has no volatile CXL dax."""

QEMU_SUITE: Final = "trixie-backports"
"""QEMU 11: on 10.0 a CXL ram region is 30 times slower, on 7.2 writes behind a switch are silently lost."""

PACKAGES: Final = (
    f"qemu-system-x86/{QEMU_SUITE}",
    *(f"{name}/{SUITE}" for name in ("cxl", "ndctl", "daxctl", "udev", "kmod", "e2fsprogs", "busybox-static", "zstd")),
)
KERNEL_PACKAGE: Final = "linux-image-amd64"

UNUSED: Final = ("dpkg_", "ipxe-qemu_", "libperl", "perl")
"""Packages that others want installed with them; no program used here needs a file of theirs."""

PROGRAMS: Final = {
    "cxl": "usr/bin/cxl",
    "daxctl": "usr/bin/daxctl",
    "kmod": "usr/bin/kmod",
    "mkfs.ext4": "usr/sbin/mke2fs",
    "ndctl": "usr/bin/ndctl",
    "qemu-system-x86_64": "usr/bin/qemu-system-x86_64",
    "systemd-udevd": "usr/bin/udevadm",
    "udevadm": "usr/bin/udevadm",
}
NEEDED_BYTES: Final = 1 << 30
KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
RECIPE: Final = 1
"""Counted up when what this module makes of the packages changes, so that nobody keeps an old prefix."""

VERSIONS: Final = "versions.json"


@dataclass(frozen=True, slots=True)
class Prefix:
    """A folder with everything that a rack needs; `set_up` gives it."""

    path: Path

    @property
    def root(self) -> Path:
        """All that was unpacked, as a root has it."""
        return self.path / "root"

    @property
    def bin(self) -> Path:
        """Programs that run on this machine and in its guests, whatever libraries those have."""
        return self.path / "bin"

    @property
    def busybox(self) -> Path:
        """A static busybox."""
        return self.path / "root/usr/bin/busybox"

    @property
    def udev_rules(self) -> Path:
        """The rules that come with udevd."""
        return self.path / "root/usr/lib/udev/rules.d"

    @property
    def vmlinux(self) -> Path:
        """The kernel, uncompressed."""
        return self.path / "kernel/vmlinux"

    @property
    def modules(self) -> Path:
        """The kernel's /lib/modules/RELEASE, with modules.dep."""
        return self.path / "kernel/usr/lib/modules" / self.versions["kernel"]

    @property
    def versions(self) -> dict[str, str]:
        """Version by package, and `kernel`, the kernel's release."""
        found: dict[str, str] = json.loads((self.path / VERSIONS).read_text())
        return found


def cache_dir() -> Path:
    """Where the prefix and what `up` starts are kept; ENGRAMDAX_RACK_DIR overrides."""
    if chosen := os.environ.get("ENGRAMDAX_RACK_DIR"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engramdax" / "rack"


def set_up() -> Prefix:
    """Give the prefix, made first where it is missing or was made by another recipe.

    UnavailableError where that cannot be. Two at once are safe: the second waits for the first. What is there is
    whole, because it gets its name last.
    """
    check_machine()
    recipe = hashlib.sha256(
        json.dumps([RECIPE, PACKAGES, KERNEL_PACKAGE, UNUSED, PROGRAMS, UNUSED_MODULES]).encode()
    ).hexdigest()
    parent = cache_dir()
    path = parent / f"prefix-{recipe[:12]}"
    if (path / VERSIONS).exists():
        return Prefix(path.resolve())
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with _locked(parent / "lock"):
            if not (path / VERSIONS).exists():
                _make(path)
    except OSError as e:
        raise UnavailableError(f"cannot make {path}: {e.strerror or e}; ENGRAMDAX_RACK_DIR names another place") from e
    return Prefix(path.resolve())


def check_machine() -> None:
    """Raise UnavailableError on a machine that cannot have a rack, whatever is set up."""
    if (system := platform.system()) != "Linux":
        raise UnavailableError(f"this is {system}; guests share the root of a Linux machine")
    if (machine := platform.machine()) != "x86_64":
        raise UnavailableError(f"this machine is {machine}; guests run its programs, and CXL needs x86-64 there")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(path: Path) -> None:
    missing = [name for name in ("apt-get", "apt-cache", "dpkg-deb", "tar") if shutil.which(name) is None]
    if missing:
        raise UnavailableError(f"no {', '.join(missing)} here; the rack's programs come from a Debian archive")
    if (free := shutil.disk_usage(path.parent).free) < NEEDED_BYTES:
        raise UnavailableError(
            f"{path.parent} has {free >> 20} MiB free, set-up needs {NEEDED_BYTES >> 20}; "
            "ENGRAMDAX_RACK_DIR names another place"
        )
    with tempfile.TemporaryDirectory(prefix="unpacking-", dir=path.parent) as name:
        new = Path(name) / "prefix"
        apt = _Apt(Path(name) / "apt", archive())
        debs = apt.download()
        for deb in debs:
            if not deb.name.startswith(UNUSED):
                _unpack(deb, new / "root")
        (image,) = apt.download_alone(apt.newest_kernel())
        _unpack(image, new / "kernel", excluded=[f"./usr/lib/modules/*/kernel/{name}" for name in UNUSED_MODULES])
        versions = dict(unquote(deb.name).split("_")[:2] for deb in [*debs, image] if not deb.name.startswith(UNUSED))
        versions["kernel"] = image.name.split("_")[0].removeprefix("linux-image-")
        # The wrappers name the place where all this will lie; until it lies there they would find nothing.
        _write_wrappers(new / "bin", root=path / "root")
        unpack_kernel(
            new / "kernel",
            versions["kernel"],
            zstd=[*libraries(new / "root"), str(new / "root/usr/bin/zstd")],
            depmod=[*libraries(new / "root"), "--argv0", "depmod", str(new / "root/usr/bin/kmod")],
        )
        (new / VERSIONS).write_text(json.dumps(versions, indent=2, sort_keys=True) + "\n")
        if path.exists():
            shutil.rmtree(path)
        new.rename(path)


def archive() -> str:
    """Give the URI of the Debian archive that apt is configured for."""
    known = _index_targets("--format", "$(REPO_URI)", "Origin: Debian")
    # Where nobody ran `apt-get update`, as in a fresh container, apt knows the sources but not whose they are.
    known = known or [
        uri
        for uri in _index_targets("--no-release-info", "--format", "$(REPO_URI)")
        if PurePosixPath(uri).stem == "debian"
    ]
    # The security archive has the same origin, but not these suites.
    found = sorted({uri for uri in known if "security" not in uri})
    if not found:
        raise UnavailableError(
            "apt on this machine is not configured for a Debian archive, where QEMU and cxl come from"
        )
    return found[0]


def _index_targets(*arguments: str) -> list[str]:
    result = subprocess.run(["apt-get", "indextargets", *arguments], capture_output=True, text=True, check=False)
    return result.stdout.split()


class _Apt:
    """apt with lists, caches and an empty status of its own, below `path`."""

    def __init__(self, path: Path, archive: str) -> None:
        self._path = path
        for folder in ("lists/partial", "cache/archives/partial", "alone"):
            (path / folder).mkdir(parents=True)
        signed_by = f" signed-by={KEYRING}" if KEYRING.exists() else ""
        (path / "sources.list").write_text(
            "".join(f"deb [arch=amd64{signed_by}] {archive} {suite} main\n" for suite in (SUITE, QEMU_SUITE))
        )
        (path / "status").touch()
        # Given with -c, this is read after the machine's configuration: it keeps proxies and credentials, but not
        # the hooks (a container's would empty the machine's own cache).
        (path / "apt.conf").write_text(f"""\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear DPkg::Post-Invoke;
#clear APT::Default-Release;
Dir::Etc::sourcelist "{path}/sources.list";
Dir::Etc::sourceparts "-";
Dir::Etc::preferences "-";
Dir::Etc::preferencesparts "-";
Dir::State::lists "{path}/lists";
Dir::State::status "{path}/status";
Dir::State::extended_states "{path}/extended_states";
Dir::Cache "{path}/cache";
Dir::Cache::archives "archives";
Dir::Log "{path}/log";
APT::Architecture "amd64";
APT::Install-Recommends "false";
APT::Update::Error-Mode "any";
APT::Sandbox::User "";
Debug::NoLocking "true";
Acquire::Languages "none";
Acquire::http::Timeout "30";
Acquire::https::Timeout "30";
""")
        self._run("apt-get", "-qq", "update")

    def download(self) -> list[Path]:
        """Download PACKAGES and all that they depend on."""
        self._run("apt-get", "-qq", "-y", "--download-only", "-t", QEMU_SUITE, "install", *PACKAGES)
        return sorted((self._path / "cache/archives").glob("*.deb"))

    def download_alone(self, package: str) -> list[Path]:
        """Download one package without what it depends on."""
        self._run("apt-get", "-qq", "download", package)
        return list((self._path / "alone").glob("*.deb"))

    def newest_kernel(self) -> str:
        """Give the package that KERNEL_PACKAGE stands for."""
        lines = self._run("apt-cache", "depends", f"{KERNEL_PACKAGE}/{SUITE}").splitlines()
        return next(line.split()[-1] for line in lines if line.strip().startswith("Depends: linux-image-"))

    def _run(self, program: str, *arguments: str) -> str:
        result = subprocess.run(
            [program, "-c", self._path / "apt.conf", *arguments],
            cwd=self._path / "alone",
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"},
        )
        if result.returncode:
            problems = [line for line in result.stderr.splitlines() if line.startswith(("E:", "W:"))]
            reason = problems[0] if problems else result.stderr.strip()
            raise UnavailableError(f"`{program} {shlex.join(arguments[:2])} ...` failed: {reason}")
        return result.stdout


def _unpack(deb: Path, folder: Path, excluded: Sequence[str] = ()) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    excluded = [*excluded, *(f"./usr/share/{name}" for name in ("doc", "doc-base", "info", "locale", "man"))]
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as source:
        # Several packages ship what is a link to a folder in others (/lib).
        options = ["--keep-directory-symlink", "--no-same-owner", *(f"--exclude={name}" for name in excluded)]
        result = subprocess.run(
            ["tar", "-x", "-C", folder, *options], stdin=source.stdout, capture_output=True, text=True, check=False
        )
    if result.returncode or source.returncode:
        raise UnavailableError(f"cannot unpack {deb.name}: {result.stderr.strip()}")


def libraries(root: Path) -> Sequence[str]:
    """Give the command that runs a program of `root` with the libraries of `root`."""
    folder = root / "usr/lib/x86_64-linux-gnu"
    return (str(folder / "ld-linux-x86-64.so.2"), "--library-path", f"{folder}:{folder}/systemd")


def _write_wrappers(folder: Path, *, root: Path) -> None:
    folder.mkdir()
    extra = {"qemu-system-x86_64": ["-L", str(root / "usr/share/qemu"), "-L", str(root / "usr/share/seabios")]}
    for name, program in PROGRAMS.items():
        # By its name udevadm knows that it is to be udevd, and kmod that it is to be depmod.
        command = [*libraries(root), "--argv0", name, str(root / program), *extra.get(name, [])]
        _write_wrapper(folder / name, command)
    # For a program of the machine, such as Python, that is to load the libraries beside cxl and daxctl: they need a
    # newer libc than an older Debian has.
    _write_wrapper(folder / "with-libraries", [*libraries(root), "--argv0"], '"$1" "$@"')


def _write_wrapper(path: Path, command: Sequence[str], arguments: str = '"$@"') -> None:
    path.write_text(f"#!/bin/sh\nexec {shlex.join(command)} {arguments}\n")
    path.chmod(0o755)
