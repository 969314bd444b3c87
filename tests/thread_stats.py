# SPDX-License-Identifier: Apache-2.0
"""The threads of this process as the kernel tells of them, by name; one that ends meanwhile is none."""

from __future__ import annotations

from pathlib import Path

WORKER, POLLER = "engramdax", "engramdax-lanes"


def thread_stats(*names: str) -> dict[int, list[str]]:
    """Give the fields of /proc/self/task/TID/stat from the state on (proc_pid_stat(5), field 3), by thread id.

    Of the threads of these names.
    """
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(") ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in names:
            found[int(task.name)] = rest.split()
    return found


def ticks(*names: str) -> int:
    """Give the CPU time that these threads have used, in clock ticks."""
    return sum(int(fields[11]) + int(fields[12]) for fields in thread_stats(*names).values())
