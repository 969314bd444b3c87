# SPDX-License-Identifier: Apache-2.0
"""Pack what discovery reads of this machine's sysfs, and nothing else, so that a report of a bug can become a test.

In the archive: below sys/ each attribute and link that `engramdax discover` reads; in tools/ what `cxl list`,
`ndctl list` and `daxctl list` print as JSON, where they are installed; machine.json with the kernel's release, the
versions of the tools and which device nodes are there. It holds sizes, addresses, PCI places and serial numbers of
memory devices, no contents of memory. As root it is complete; otherwise addresses are missing.

usage: python -m tools.capture_sysfs ARCHIVE.tar.gz
"""

from __future__ import annotations

import argparse
import errno
import gzip
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax.devices.reading import DEV, SYSFS, read_tree
from engramdax.devices.sysfs import read_entries
from engramdax.errors import EngramdaxError

if TYPE_CHECKING:
    from engramdax.devices.sysfs import Entry

LISTINGS: Final = {
    "cxl": ["cxl", "list", "-vvv"],
    "ndctl": ["ndctl", "list", "-vvv", "-RDNXi"],
    "daxctl": ["daxctl", "list", "-RDMi"],
}
SECONDS: Final = 60


def capture(archive: Path, sysfs: Path = SYSFS, dev: Path = DEV) -> None:
    """Write the archive."""
    pack = _Pack()
    for entry in read_entries(sysfs):
        pack.add_entry(entry)
    tools: dict[str, str] = {}
    machine = {
        "kernel": platform.release(),
        "user": os.geteuid(),
        "nodes": [d.name for d in read_tree(sysfs, dev).dax_devices if d.node_exists],
        "tools": tools,
    }
    for name, command in LISTINGS.items():
        if shutil.which(name):
            tools[name] = _output([name, "--version"]).decode().strip()
            pack.add_file(f"tools/{name}.json", _output(command))
    pack.add_file("machine.json", json.dumps(machine, indent=2).encode() + b"\n")
    archive.write_bytes(pack.end())


def _output(command: list[str]) -> bytes:
    return subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).stdout


class _Pack:
    """A tar archive in memory: the same tree gives the same bytes."""

    def __init__(self) -> None:
        self._out = io.BytesIO()
        # A gzip header of its own would hold the time.
        self._tar = tarfile.open(fileobj=self._out, mode="w:", format=tarfile.PAX_FORMAT)  # noqa: SIM115 - closed by end()
        self._names: set[str] = set()

    def add_entry(self, entry: Entry) -> None:
        """Write an object's items as the files that they came from."""
        if not entry.path:  # it could not be read at all
            return
        place = f"sys/{entry.path}"
        self._add_folder(place)
        if entry.folder.startswith("bus/"):
            self._add_link(f"sys/{entry.folder}/{entry.name}", place)
        for name, value in entry.attributes.items():
            self.add_file(f"{place}/{name}", value + b"\n")
        for name, error in entry.errors.items():
            if error in (errno.EACCES, errno.EPERM):
                self.add_file(f"{place}/{name}", b"", mode=0)
        for name, target in entry.links.items():
            self._add_link(f"{place}/{name}", f"sys/{target}")
        for folder, names in entry.listings.items():
            for name in names:
                self._add_folder(f"{place}/{folder}/{name}")

    def _add_folder(self, path: str) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        self._add(info)

    def _add_link(self, path: str, target: str) -> None:
        info = tarfile.TarInfo(path)
        info.type, info.linkname = tarfile.SYMTYPE, os.path.relpath(target, os.path.dirname(path))  # noqa: PTH120
        self._add(info)

    def add_file(self, path: str, content: bytes, mode: int = 0o644) -> None:
        """Write a file."""
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(content), mode
        self._add(info, content)

    def _add(self, info: tarfile.TarInfo, content: bytes = b"") -> None:
        if info.name not in self._names:
            self._names.add(info.name)
            self._tar.addfile(info, io.BytesIO(content))

    def end(self) -> bytes:
        """Give the whole archive, compressed."""
        self._tar.close()
        return gzip.compress(self._out.getvalue(), mtime=0)


def main() -> int:
    """Capture this machine."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.capture_sysfs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("archive", type=Path)
    options = parser.parse_args()
    try:
        capture(options.archive)
    except (OSError, subprocess.SubprocessError, EngramdaxError) as e:
        print(f"capture_sysfs: {e}", file=sys.stderr)
        return 1
    print(f"{options.archive} holds what discovery reads on {platform.node()}: look into it before you pass it on")
    return 0


if __name__ == "__main__":
    sys.exit(main())
