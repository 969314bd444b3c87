# SPDX-License-Identifier: Apache-2.0
"""`engramdax load` beside `cp` of the same file to the same tmpfs, in turn, medians of several rounds.

The source is in the page cache. What bounds both is copying it once from there into tmpfs pages; cp also
has to find and clear those pages, which a pool did when it was provisioned, and load also checksums.
Prints the ratio of the medians and the largest anonymous memory (RssAnon) that the loader was seen with.

usage: python -m tools.bench.load [--size 2G] [--rounds 5] [--memory-only]
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from engramdax.backing import parse_size

ROW_BYTES = 320
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - the benchmark is about tmpfs
BLOCK = 64 << 20
COMMAND = [str(Path(sys.executable).with_name("engramdax"))]


def write_source(path: Path, size: int) -> None:
    """Write random bytes; that also brings them into the page cache."""
    with path.open("wb") as file:
        for left in range(size, 0, -BLOCK):
            file.write(os.urandom(min(BLOCK, left)))


def read_through(path: Path) -> None:
    """Have the whole file in the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(BLOCK):
            pass


def run(*arguments: str | Path) -> None:
    """Run one engramdax command quietly."""
    subprocess.run([*COMMAND, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def timed_load(source: Path, pool: Path) -> tuple[float, int]:
    """Load once; give seconds and the largest RssAnon seen, in bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, "load", source, "--row-bytes", str(ROW_BYTES), "--name", "t", "--pool", pool],
        stdout=subprocess.DEVNULL,
    )
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            break
        if found := re.search(r"RssAnon:\s+(\d+)", status):
            peak = max(peak, int(found[1]) << 10)
        time.sleep(0.01)
    if process.wait():
        sys.exit("load failed")
    return time.perf_counter() - start, peak


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--size", default="2G", help="bytes of the source")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-only", action="store_true", help="no cp beside it, for sizes that fit only once")
    options = parser.parse_args()
    size = parse_size(options.size) // ROW_BYTES * ROW_BYTES
    loads, copies, peaks = [], [], []
    with tempfile.TemporaryDirectory() as disk, tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as memory:
        source, pool, copy = Path(disk) / "source.bin", Path(memory) / "pool", Path(memory) / "copy.bin"
        write_source(source, size)
        run("provision", "--file", pool, "--size", str(size + (64 << 20)))
        try:
            for _ in range(options.rounds):
                read_through(source)
                if not options.memory_only:
                    start = time.perf_counter()
                    subprocess.run([shutil.which("cp") or "cp", source, copy], check=True)
                    copies.append(time.perf_counter() - start)
                    copy.unlink()
                seconds, peak = timed_load(source, pool)
                loads.append(seconds)
                peaks.append(peak)
                run("rm", "t", "--pool", pool)
        finally:
            run("deprovision", "--pool", pool, "--force")
    print(f"load of {size} bytes, {options.rounds} rounds: largest RssAnon {max(peaks) >> 20} MiB")
    if copies:
        ratio = median(loads) / median(copies)
        worst = max(loads) / median(copies)
        print(f"load takes {ratio:.2f} times as long as cp (medians; the slowest load {worst:.2f} times)")


if __name__ == "__main__":
    main()
