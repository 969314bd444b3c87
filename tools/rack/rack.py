# SPDX-License-Identifier: Apache-2.0
"""The hosts of a rack together, and the folder that all of it lives in."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from tools.rack import pools
from tools.rack.errors import RackError, UnavailableError
from tools.rack.guest import Guest
from tools.rack.pools import Kind, Pool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tools.rack.prefix import Prefix

DESCRIPTION: Final = "rack.json"
SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - memory is the point
SOCKET_PATH_BYTES: Final = 80
"""Of the 108 that Linux allows for a socket's path, what is left for the folder of a rack."""


class Rack:
    """Hosts that share pools; `hosts[i]` is named h<i>. A context manager that takes all down at its end.

    Everything is in `folder`, media included, which is a new one in shared memory unless given. The hosts end with
    this process, unless the rack `outlives` it.
    """

    def __init__(
        self,
        prefix: Prefix,
        *,
        hosts: int = 2,
        pools: Sequence[Pool] = pools.DEFAULT,
        folder: Path | None = None,
        outlives: bool = False,
    ) -> None:
        self.folder = _new_folder(sum(pool.size for pool in pools)) if folder is None else folder
        self.pools = {pool.name: pool for pool in pools}
        self.hosts = [
            Guest(prefix, self.folder, number, hosts=hosts, pools=pools, outlives=outlives) for number in range(hosts)
        ]

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        """Make the media and boot all hosts."""
        if len(str(self.folder)) > SOCKET_PATH_BYTES:
            raise UnavailableError(f"{self.folder} is too long a path for the sockets in it")
        self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / DESCRIPTION).exists():
            raise RackError(f"there is a rack in {self.folder} already")
        description = {"hosts": len(self.hosts), "pools": [dataclasses.asdict(pool) for pool in self.pools.values()]}
        (self.folder / DESCRIPTION).write_text(json.dumps(description) + "\n")
        try:
            pools.create(list(self.pools.values()), self.folder)
            self.boot(*self.hosts)
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Pull the plug of all hosts and remove the folder with all media."""
        for host in self.hosts:
            host.crash()
        shutil.rmtree(self.folder, ignore_errors=True)

    def boot(self, *hosts: Guest, order: Sequence[str] | None = None) -> None:
        """Boot hosts at the same time and wait for them."""
        for host in hosts:
            host.boot(order)
        for host in hosts:
            host.wait_ready()

    def reboot(self, *hosts: Guest, order: Sequence[str] | None = None) -> None:
        """Shut hosts down where they run, and boot them, with CXL memdevs in another order where it is given."""
        for host in hosts:
            if host.alive:
                host.shut_down()
        self.boot(*hosts, order=order)

    def media(self, pool: str) -> Path:
        """Give the file that is a pool's memory."""
        return self.pools[pool].file(self.folder)


def find(prefix: Prefix, folder: Path) -> Rack:
    """Give the rack that another process brought up in `folder`."""
    try:
        description = json.loads((folder / DESCRIPTION).read_text())
    except FileNotFoundError:
        raise RackError("no rack is up; `python -m tools.rack up` starts one") from None
    found = [Pool(**{**pool, "kind": Kind(pool["kind"])}) for pool in description["pools"]]
    return Rack(prefix, hosts=description["hosts"], pools=found, folder=folder, outlives=True)


def _new_folder(size: int) -> Path:
    status = os.statvfs(SHARED_MEMORY) if os.access(SHARED_MEMORY, os.W_OK) else None
    roomy = status is not None and status.f_bavail * status.f_frsize > 2 * size
    return Path(tempfile.mkdtemp(prefix="engramdax-rack-", dir=SHARED_MEMORY if roomy else None))
