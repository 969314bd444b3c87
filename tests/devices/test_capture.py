# SPDX-License-Identifier: Apache-2.0
"""`python -m tools.capture_sysfs`: what is in the archive, and what is not."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

from trees import Captured, Sysfs

from tools.capture_sysfs import capture

ROOT = Path(__file__).parents[2]


def test_archive_holds_what_is_read_and_nothing_beside(sysfs: Sysfs, tmp_path: Path) -> None:
    place = sysfs.dax("dax0.0")
    for name in ("uevent", "modalias", "secret"):
        (place / name).write_text("not read\n")
    (sysfs.root / "class").mkdir()
    (sysfs.root / "class/secret").write_text("not read\n")
    capture(tmp_path / "host.tar.gz", sysfs.root, sysfs.dev)
    with tarfile.open(tmp_path / "host.tar.gz") as file:
        names = {m.name for m in file.getmembers() if m.isfile() and m.name.startswith("sys/")}
    below = "sys/devices/platform/hmem.0/dax0.0"
    assert names == {f"{below}/{name}" for name in ("dev", "size", "align", "target_node", "numa_node", "resource")}


def test_same_host_gives_the_same_archive(captured: Captured, tmp_path: Path) -> None:
    host = captured("sliced-h0")
    for name in ("one", "two"):
        capture(tmp_path / name, host.sysfs, host.dev)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_place_that_cannot_be_written_is_one_line_and_no_archive(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tools.capture_sysfs", tmp_path / "nowhere" / "host.tar.gz"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "nowhere" in done.stderr
