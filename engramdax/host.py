# SPDX-License-Identifier: Apache-2.0
"""Who this host is, and where it keeps what belongs to it alone.

/var/lib/engramdax holds what outlives a boot (host id, records of what provisioning made, writer locks),
/run/engramdax what must not (pins of readers, counters of what they gather). Root makes both at first need;
whoever may write there uses them, too. A user without access to them, on a laptop say, has the XDG directories
instead; such a user can have only pools in files, whose locks lie on the file itself. ENGRAMDAX_STATE_DIR and
ENGRAMDAX_RUN_DIR override.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
from pathlib import Path
from typing import Final
from uuid import UUID, uuid4

from engramdax.backing import NETWORK_MAGICS, file_system
from engramdax.errors import BackingError
from engramdax.files import replace_file

SYSTEM_STATE: Final = Path("/var/lib/engramdax")
SYSTEM_RUN: Final = Path("/run/engramdax")
DIRECTORY_MODE: Final = 0o2775
OVERRIDE: Final = Path("/etc/engramdax/host-id")
DMI_UUID: Final = Path("/sys/class/dmi/id/product_uuid")
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - tmpfs is the point


def state_dir() -> Path:
    """Where this user's engramdax keeps what outlives a boot."""
    if chosen := os.environ.get("ENGRAMDAX_STATE_DIR"):
        return Path(chosen)
    if os.geteuid() == 0 or os.access(SYSTEM_STATE, os.W_OK):
        return SYSTEM_STATE
    return Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state") / "engramdax"


def run_dir() -> Path:
    """Where this user's engramdax keeps what ends with the boot."""
    if chosen := os.environ.get("ENGRAMDAX_RUN_DIR"):
        return Path(chosen)
    if os.geteuid() == 0 or os.access(SYSTEM_RUN, os.W_OK):
        return SYSTEM_RUN
    return Path(os.environ.get("XDG_RUNTIME_DIR") or state_dir()) / "engramdax"


def cache_dir() -> Path:
    """Where this user's engramdax keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "engramdax"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise BackingError(
            "this user has no home directory", remedy="set ENGRAMDAX_STATE_DIR and ENGRAMDAX_RUN_DIR"
        ) from None


def make_dir(path: Path) -> Path:
    """Make one of these directories where it is missing: the group may write, the world only look.

    Everybody has to find the pools that root provisioned.
    """
    try:
        path.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        status = path.stat()
        # A container may have it read-only, as it should be.
        if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != DIRECTORY_MODE:
            path.chmod(DIRECTORY_MODE)  # past the umask
    except OSError as e:
        raise BackingError(
            f"cannot make {path}: {e.strerror}",
            remedy="run as root once, or set ENGRAMDAX_STATE_DIR and ENGRAMDAX_RUN_DIR",
        ) from None
    return path


def host_name() -> str:
    """Give the name that operators know this host by."""
    return socket.gethostname()


def host_id() -> UUID:
    """Give this host's id, made at the first call and kept in the state directory.

    The machine's DMI product uuid stands beside it: where it differs, the disk is a clone of another
    host's, and the clone gets an id of its own. Refused on a network file system, where two hosts would
    read one id. /etc/engramdax/host-id overrides all that.
    """
    if OVERRIDE.exists():
        try:
            return UUID(OVERRIDE.read_text().strip())
        except (OSError, ValueError) as e:
            raise BackingError(f"{OVERRIDE} holds no uuid: {e}", remedy="correct or remove it") from None
    directory = make_dir(state_dir())
    path = directory / "host-id"
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        magic, _ = file_system(fd)
        if magic in NETWORK_MAGICS:
            raise BackingError(
                f"{directory} is on a network file system ({NETWORK_MAGICS[magic]}): hosts would share one id",
                remedy=f"put a uuid of this host alone into {OVERRIDE}",
            )
        machine = _machine()
        if known := _known(path, machine):
            return known
        fcntl.flock(fd, fcntl.LOCK_EX)  # of two processes that find none, one makes it
        if known := _known(path, machine):
            return known
        fresh = uuid4()
        text = json.dumps({"id": str(fresh), "machine": machine}) + "\n"
        replace_file(path, lambda file: file.write(text.encode()), mode=0o644, remedy="run as root once")
        return fresh
    finally:
        os.close(fd)


def _machine() -> str | None:
    try:
        return DMI_UUID.read_text().strip().lower()
    except OSError:  # only root may read it, and virtual machines may have none
        return None


def _known(path: Path, machine: str | None) -> UUID | None:
    found = _read(path)
    return found[0] if found and (machine is None or found[1] in (None, machine)) else None


def _read(path: Path) -> tuple[UUID, str | None] | None:
    try:
        value = json.loads(path.read_text())
        machine = value["machine"]
        if machine is not None and type(machine) is not str:
            raise TypeError("the machine is no text")
        return UUID(value["id"]), machine
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise BackingError(
            f"{path} is damaged: {e}", remedy="remove it: this host gets a new id and must be admitted again"
        ) from None
