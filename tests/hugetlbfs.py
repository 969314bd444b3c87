# SPDX-License-Identifier: Apache-2.0
"""What is mounted of huge pages; other tests mount other things meanwhile."""

from __future__ import annotations

from pathlib import Path


def mounts() -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return sorted(line.split()[1] for line in lines if line.split()[2] == "hugetlbfs")
