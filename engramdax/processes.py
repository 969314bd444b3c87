# SPDX-License-Identifier: Apache-2.0
"""What /proc tells of the processes of this host, as far as this user may see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def shared_mappings(process: Path) -> Iterator[Path]:
    """Give the links to the files that the process at /proc/PID maps shared; OSError where its maps cannot be read.

    Only shared mappings can be of a devdax device, and to follow the link of each of a large process takes long. The
    device column of maps is that of the file system under a node: what the node stands for, its st_rdev, is behind the
    link, which only root may follow.
    """
    # Names of files are any bytes but a line break and NUL.
    for line in (process / "maps").read_bytes().split(b"\n"):
        words = line.split(maxsplit=5)
        if len(words) > 5 and words[1].endswith(b"s") and words[4] != b"0":
            # What a mapping is called there has no leading zeros.
            yield process / "map_files" / "-".join(f"{int(part, 16):x}" for part in words[0].split(b"-"))
