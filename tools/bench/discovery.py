# SPDX-License-Identifier: Apache-2.0
"""Discovery beside a bare walk of the same files in C, in turn, on a tree with 64 devices.

The tree is CXL: 64 memdevs, each with its endpoint and decoder, a region and a dax device. The walk is
tools/bench/bare_walk.c, compiled here; it opens, reads and closes what discovery opens and reads, and keeps nothing.
Each round times both and whatever else the machine does meets both. Prints medians and the median of the ratios, for
reading a tree and for all that `engramdax discover --json` does in a process that runs already.

usage: python -m tools.bench.discovery [--rounds 200] [--devices 64]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import cffi
import numpy as np

from engramdax.commands.discover import document
from engramdax.devices.fitness import assess
from engramdax.devices.libraries import cross_check
from engramdax.devices.reading import read_tree
from engramdax.devices.sysfs import read_entries
from tests.devices.trees import Sysfs

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE: Final = Path(__file__).with_name("bare_walk.c")


def build(folder: Path, devices: int) -> Sysfs:
    """Write the tree."""
    sysfs = Sysfs(folder)
    for number in range(devices):
        decoder = sysfs.memdev(number, hex(0xA000 + number), firmware_version="1.0")
        region = sysfs.cxl_region(f"region{number}", [decoder], resource=hex((16 + number) << 30))
        sysfs.device("cxl", region, "cxl_dax_region", devtype="cxl_dax_region")
        sysfs.dax(f"dax{number}.0", region, resource=hex((16 + number) << 30))
        sysfs.dax_region(region, id=number, size=256 << 20, align=2 << 20, available_size=0)
    return sysfs


class Walk:
    """The bare walk over what discovery reads of a tree."""

    def __init__(self, sysfs: Path, folder: Path) -> None:
        library = folder / "bare_walk.so"
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, SOURCE], check=True)
        ffi = cffi.FFI()
        ffi.cdef("long bare_walk(const char *kinds, const char *const *names, long count);")
        self._library: Any = ffi.dlopen(str(library))
        steps = list(_steps(sysfs))
        self.files = sum(kind == "F" for kind, _ in steps)
        self.links = sum(kind == "L" for kind, _ in steps)
        self._kinds = ffi.new("char[]", "".join(kind for kind, _ in steps).encode())
        self._kept = [ffi.new("char[]", str(name).encode()) for _, name in steps]
        self._names = ffi.new("char *[]", self._kept)

    def __call__(self) -> None:
        """Walk once."""
        if self._library.bare_walk(self._kinds, self._names, len(self._kept)) < 0:
            raise SystemExit("the walk failed")


def _steps(sysfs: Path) -> Any:
    entries = read_entries(sysfs)
    for bus in sorted({e.folder for e in entries if e.folder.startswith("bus/")}):
        yield "D", sysfs / bus
        yield "R", ""
        yield from (("L", e.name) for e in entries if e.folder == bus)
    for entry in entries:
        yield "D", sysfs / entry.path
        yield from (("F", name) for name in entry.attributes)
        yield from (("L", name) for name in entry.links)


def nanoseconds(call: Callable[[], Any]) -> int:
    """Time one call."""
    start = time.perf_counter_ns()
    call()
    return time.perf_counter_ns() - start


def discover(sysfs: Sysfs) -> None:
    """Do what the command does."""
    tree = sysfs.read()
    with redirect_stdout(StringIO()) as out:
        out.write(json.dumps(document(tree, assess(tree), cross_check(tree)), indent=2))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--devices", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        sysfs = build(Path(name), options.devices)
        walk = Walk(sysfs.root, Path(name))
        tree = sysfs.read()
        if len(tree.dax_devices) != options.devices or any(len(d.memdevs) != 1 for d in tree.dax_devices):
            raise SystemExit("the tree is not what was written")
        calls: dict[str, Callable[[], Any]] = {
            "bare walk in C": walk,
            "the core's reading": lambda: read_entries(sysfs.root),
            "read_tree": lambda: read_tree(sysfs.root, sysfs.dev),
            "all of discover": lambda: discover(sysfs),
        }
        times: dict[str, list[int]] = {name: [] for name in calls}
        for number in range(options.rounds + options.rounds // 10):
            for what, call in calls.items():
                taken = nanoseconds(call)
                if number >= options.rounds // 10:
                    times[what].append(taken)
    bare = np.array(times["bare walk in C"])
    print(f"{options.devices} devices: {walk.files} files and {walk.links} links, {options.rounds} rounds")
    for what, taken_ns in times.items():
        ratio = np.median(np.array(taken_ns) / bare)
        print(f"  {what:<19} {np.median(taken_ns) / 1e6:7.2f} ms, {ratio:5.2f} times the bare walk")


if __name__ == "__main__":
    main()
