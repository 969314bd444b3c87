# SPDX-License-Identifier: Apache-2.0
"""What `cxl` prints, as reports of its issues and its source show it, and a program of that name that prints it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

HEALTHY: Final[dict[str, Any]] = {
    "maintenance_needed": False,
    "performance_degraded": False,
    "hw_replacement_needed": False,
    "media_normal": True,
    "media_not_ready": False,
    "media_persistence_lost": False,
    "media_data_lost": False,
    "media_powerloss_persistence_loss": False,
    "media_shutdown_persistence_loss": False,
    "media_persistence_loss_imminent": False,
    "media_powerloss_data_loss": False,
    "media_shutdown_data_loss": False,
    "media_data_loss_imminent": False,
    "ext_life_used": "normal",
    "ext_temperature": "normal",
    "ext_corrected_volatile": "normal",
    "ext_corrected_persistent": "normal",
    "life_used_percent": 15,
    "temperature": 25,
    "dirty_shutdowns": 10,
    "volatile_errors": 20,
    "pmem_errors": 30,
}
"""As of `cxl list -H` in the manual page of cxl-list."""

OTHER_VERSIONS: Final = {
    "nothing at all": "",
    "an empty list": "[\n]\n",
    "brackets on one line": "[]",
    "no health object": '[{"memdev":"mem1","serial":225}]',
    "serial as a negative int64": '[{"memdev":"mem0","serial":-81985529216486896}]',
    "serial in hexadecimal": '[{"memdev":"mem1","serial":"0xe1"}]',
    "health that is no object": '[{"memdev":"mem1","serial":225,"health":null},{"memdev":"mem0","health":[]}]',
    "health without any key": '[{"memdev":"mem1","serial":225,"health":{}},{"memdev":"mem0","health":{}}]',
    "control characters": '[{"memdev":"mem1","serial":225,"health":"\\u001b[2J\\r\\n"}]',
    "another memdev's serial": '[{"memdev":"mem1","serial":7,"health":{"media_normal":true}}]',
    "names without memdevs": '[{"memdev":null},{"anon memdev":[1,2]},{"memdevs":{"memdev":"mem1"}}]',
    "half a document": '[{"memdev":"mem1","serial":',
    "text": "cxl: command not found in this build\n",
    "a number": "7\n",
    "deep nesting": "[" * 5000,
}
"""None of these says that a device is well."""


class Cxl:
    """A folder to be first in PATH, with a `cxl` that prints what a test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()

    def prints(self, health: str, media_errors: str = "", *, code: int = 0, stderr: str = "") -> None:
        """Set what both questions are answered with."""
        for name, text in (("health", health), ("media-errors", media_errors), ("stderr", stderr)):
            (self.folder / name).write_text(text)
        script = self.folder / "cxl"
        script.write_text(
            "#!/bin/sh\n"
            f"cd {self.folder}\n"
            'case "$*" in *-L*) cat media-errors ;; *-H*) cat health ;; *) echo 81 ;; esac\n'
            f"cat stderr >&2; exit {code}\n"
        )
        script.chmod(0o755)
