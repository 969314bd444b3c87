# SPDX-License-Identifier: Apache-2.0
"""What stands on the media of a rack, labels included: all of it compared, or made as it was at first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from devices import POOLS

from tools.rack.pools import LABEL_BYTES, Kind
from tools.rack.rack import Rack

CHUNK = 1 << 20


def as_new(rack: Rack) -> None:
    """Boot both hosts with media, labels and disks as they were at first."""
    for host in rack.hosts:
        host.crash()
        (host.folder / "disk").unlink(missing_ok=True)
    for pool in rack.pools.values():
        blank(pool.file(rack.folder), pool.size)
        if pool.kind is Kind.CXL_PMEM:
            blank(pool.labels(rack.folder), LABEL_BYTES)
    rack.boot(*rack.hosts)


def blank(file: Path, size: int) -> None:
    with file.open("r+b") as media:
        media.truncate(0)
        media.truncate(size)


def digests(rack: Rack) -> dict[str, str]:
    """Give what stands on all media, labels included."""
    files = [rack.media(name) for name in POOLS]
    files += [pool.labels(rack.folder) for pool in rack.pools.values() if pool.kind is Kind.CXL_PMEM]
    with ThreadPoolExecutor(2) as threads:
        return dict(zip((f.name for f in files), threads.map(digest, files), strict=True))


def digest(file: Path) -> str:
    """Give a checksum of the places and bytes that are not zero: most of the media are holes."""
    found = hashlib.sha256()
    zeros = bytes(CHUNK)
    with file.open("rb") as media:
        at, end = 0, media.seek(0, os.SEEK_END)
        while at < end:
            try:
                at = os.lseek(media.fileno(), at, os.SEEK_DATA) // CHUNK * CHUNK
            except OSError:  # only a hole is left
                break
            data = os.pread(media.fileno(), CHUNK, at)
            if data != zeros:
                found.update(at.to_bytes(8, "little") + data)
            at += CHUNK
    return found.hexdigest()


@contextmanager
def unchanged(rack: Rack) -> Iterator[None]:
    before = digests(rack)
    yield
    assert digests(rack) == before


@contextmanager
def unchanged_but_labels(rack: Rack) -> Iterator[None]:
    """Check the media; a label area that was never used is initialised by the first namespace, and stays so."""
    before = {name: text for name, text in digests(rack).items() if not name.endswith(".labels")}
    yield
    assert {name: text for name, text in digests(rack).items() if not name.endswith(".labels")} == before
