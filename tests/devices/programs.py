# SPDX-License-Identifier: Apache-2.0
"""Programs called cxl, ndctl and daxctl that do to a sysfs written by hand what the real ones have the kernel do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

FAILURES = {
    "busy": "echo 'error: Device or resource busy' >&2; exit 240",
    "no such device": "echo 'failed: No such device or address' >&2; exit 250",
    "nothing done": "echo 'reconfigured 0 devices' >&2; exit 0",
    "killed": "kill -9 $$",
}
"""Ways to fail, as shell scripts: exit codes are 256 - errno."""


class Programs:
    """A folder to be all of PATH, with a script per program; `log` has every command that was run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "bin"
        self.folder.mkdir()
        self.log = folder / "commands"
        self.log.touch()
        for name in ("cp", "rm", "ln", "sleep", "cat"):
            (self.folder / name).symlink_to(shutil.which(name) or name)
        self._verbs: dict[str, dict[str, str]] = {"cxl": {}, "ndctl": {}, "daxctl": {}}
        for program in self._verbs:
            self.says(program, "--version", "echo 81")

    def says(self, program: str, verb: str, script: str) -> None:
        """Set what a program does for its first argument."""
        self._verbs[program][verb] = script
        cases = "\n".join(f"{verb}) {text} ;;" for verb, text in self._verbs[program].items())
        path = self.folder / program
        path.write_text(f'#!/bin/sh\necho "{program} $*" >>{self.log}\ncase $1 in\n{cases}\n*) exit 99 ;;\nesac\n')
        path.chmod(0o755)

    def uninstall(self, program: str) -> None:
        (self.folder / program).unlink()

    def commands(self) -> list[str]:
        """Give what was run, without questions for versions."""
        return [line for line in self.log.read_text().splitlines() if "--version" not in line]


def picture(root: Path) -> dict[str, str]:
    """Give all that a folder holds: files with their contents, links with their targets."""
    found = {}
    for folder, names, files in os.walk(root):
        for name in [*names, *files]:
            path = Path(folder) / name
            text = f"-> {path.readlink()}" if path.is_symlink() else path.read_text() if path.is_file() else "a folder"
            found[str(path.relative_to(root))] = text
    return found


def change(before: Path, after: Path) -> tuple[str, str]:
    """Give scripts that make a sysfs at `before` the one at `after`, and back."""
    old, new = picture(before), picture(after)
    kept = before.parent / f"{after.name}-kept"
    shutil.copytree(before, kept, symlinks=True)
    for name, text in old.items():  # what is the same is left to whoever else writes it
        if new.get(name) == text and (after / name).is_file() and not (after / name).is_symlink():
            (after / name).unlink()
            (kept / name).unlink()
    added = " ".join(f"'{before / name}'" for name in new if name not in old)
    gone = " ".join(f"'{before / name}'" for name in old if name not in new)
    there = f"rm -rf {gone}; cp -a '{after}/.' '{before}/'" if gone else f"cp -a '{after}/.' '{before}/'"
    back = f"rm -rf {added}; cp -a '{kept}/.' '{before}/'" if added else f"cp -a '{kept}/.' '{before}/'"
    return there, back
