# SPDX-License-Identifier: Apache-2.0
"""Huge pages of the kernel's reserve, and the hugetlbfs that hands them out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

from engramdax.backing import HUGETLBFS_MAGIC, file_system
from engramdax.errors import BackingError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

RESERVES: Final = Path("/sys/kernel/mm/hugepages")
PAGE_SIZES: Final = {"2M": 2 << 20, "1G": 1 << 30}


def reserve_dir(page_bytes: int, reserves: Path = RESERVES) -> Path:
    """Where the kernel counts pages of this size; BackingError if it has none such."""
    path = reserves / f"hugepages-{page_bytes >> 10}kB"
    if not path.is_dir():
        raise BackingError(
            f"this kernel has no huge pages of {page_bytes} bytes",
            remedy="use another size, or a CPU with pdpe1gb for 1G",
        )
    return path


def available(page_bytes: int) -> int:
    """Pages of the reserve that nobody has or was promised."""
    path = reserve_dir(page_bytes)
    return int((path / "free_hugepages").read_text()) - int((path / "resv_hugepages").read_text())


def add_pages(page_bytes: int, count: int) -> None:
    """Grow the reserve by `count` pages; BackingError, and nothing grown, where fewer were to be had."""
    if count == 0:
        return
    path = reserve_dir(page_bytes) / "nr_hugepages"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if count * page_bytes > memory:  # the kernel would take what there is from everybody before it said so
        raise BackingError(
            f"{count} more huge pages of {page_bytes} bytes are more than this machine's memory of {memory} bytes",
            remedy="ask for less",
        )
    try:
        before = int(path.read_text())
        path.write_text(str(before + count))
        granted = int(path.read_text()) - before
        if granted < count:
            path.write_text(str(before))
    except PermissionError:
        raise RefusedError(
            f"{count} more huge pages of {page_bytes} bytes are needed, which only root may reserve",
            remedy=f"run as root, or let root write {count} more to {path}",
        ) from None
    except OSError as e:
        raise BackingError(
            f"cannot reserve {count} more huge pages of {page_bytes} bytes: {path}: {e.strerror}",
            remedy="a container has to be given them by its host; pages of 1G may have to be reserved at boot",
        ) from None
    if granted < count:
        raise BackingError(
            f"the kernel granted {max(granted, 0)} of {count} huge pages of {page_bytes} bytes, "
            f"{(count - max(granted, 0)) * page_bytes} bytes are missing",
            remedy="free memory, reserve at boot (hugepagesz=, hugepages=), or ask for less",
        )


def drop_pages(page_bytes: int, count: int) -> None:
    """Shrink the reserve by `count` pages again."""
    path = reserve_dir(page_bytes) / "nr_hugepages"
    path.write_text(str(max(0, int(path.read_text()) - count)))


def find_mount(page_bytes: int) -> Path | None:
    """Give a hugetlbfs of this page size where this user may make files."""
    for place in _hugetlbfs_mounts():
        try:
            fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # another user's, or out of reach of this container
            continue
        try:
            magic, block = file_system(fd)
        finally:
            os.close(fd)
        if magic == HUGETLBFS_MAGIC and block == page_bytes and os.access(place, os.W_OK):
            return place
    return None


def _hugetlbfs_mounts() -> Iterator[Path]:
    for line in Path("/proc/self/mounts").read_text().splitlines():
        words = line.split()
        if words[2] == "hugetlbfs":
            yield Path(words[1].encode().decode("unicode_escape"))  # the kernel writes a space as \040


def is_mount(place: Path) -> bool:
    """Tell whether a hugetlbfs is mounted there."""
    return place in _hugetlbfs_mounts()


def mount(place: Path, page_bytes: int) -> None:
    """Mount a hugetlbfs of this page size at `place`."""
    place.mkdir(mode=0o750, parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "hugetlbfs", "-o", f"pagesize={page_bytes},mode=0750", "none", place],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise BackingError(f"cannot mount hugetlbfs at {place}: {done.stderr.strip()}", remedy="run as root")


def unmount(place: Path) -> None:
    """Undo `mount`; stays where somebody else uses it.

    The kernel unmounts a hugetlbfs with files in it, whose contents are gone then, so it is looked into.
    """
    if not place.is_dir() or any(place.iterdir()):
        return
    if subprocess.run(["umount", place], capture_output=True, check=False).returncode == 0:
        place.rmdir()
