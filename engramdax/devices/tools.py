# SPDX-License-Identifier: Apache-2.0
"""The field's own programs, `cxl`, `ndctl` and `daxctl`: run, timed, and read with suspicion.

What one of them says is a hint: they end with 0 after doing nothing, and versions differ. Whoever runs one looks at
sysfs afterwards. `-u` is never passed, because its sizes are for people.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from engramdax.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES: Final = {"cxl": "cxl (Debian, Ubuntu) or cxl-cli", "ndctl": "ndctl", "daxctl": "daxctl"}
"""What distributions call the packages."""

SECONDS: Final = 120.0
"""Zeroing of labels and the onlining of large memory take seconds, nothing that they do minutes."""

SBIN: Final = "/usr/sbin:/sbin"
"""Which cron and systemd units have not in their PATH."""

RAM_REGIONS_SINCE: Final = 77
"""cxl 76.1 (Debian 12) cannot create volatile regions, and ends with 0 after failing to."""

MOST_BEGINNINGS: Final = 32
"""Lines of output that are tried as the beginning of JSON: each may take as long as all the rest is."""


@dataclass(frozen=True, slots=True)
class Done:
    """A run that ended. `code` is -N after signal N."""

    command: str
    code: int
    stdout: str
    stderr: str

    @property
    def problem(self) -> str:
        """Say in a few words why nothing came of it, as far as the program tells."""
        said = _last_line(self.stderr) or _last_line(self.stdout)
        how = code_text(self.code)
        if self.code == 0:
            how = "exit code 0, but nothing was done"
        return f"{how}: {said}" if said else how

    def values(self) -> list[dict[str, Any]]:
        """Give the objects that it printed."""
        return parse(self.stdout)


def command_text(arguments: Sequence[str]) -> str:
    """Give a command as one types it."""
    return shlex.join(arguments)


def run(arguments: Sequence[str], *, seconds: float = SECONDS) -> Done:
    """Run one of the programs to its end, whatever that is.

    ToolError where it is missing, cannot be started, or is not done after `seconds`, when it is killed.
    """
    program = find(arguments[0])
    command = command_text(arguments)
    # Its own session: Ctrl-C is for this process, which lets the program finish and then undoes what it did.
    with subprocess.Popen(
        [program, *arguments[1:]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C", "PAGER": "cat"},
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _kill(process)
            raise ToolError(
                f"`{command}` was not done after {seconds:g} s and was killed",
                remedy="look at the kernel's log (dmesg) for what holds it",
            ) from None
        except BaseException:
            # It is in the middle of something: let it end, so that there is one state to undo.
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=seconds)
            _kill(process)
            raise
    return Done(command, process.returncode, _text(stdout), _text(stderr))


def find(name: str) -> str:
    """Give the path of a program; ToolError with the package to install where it is missing."""
    program = shutil.which(name) or shutil.which(name, path=SBIN)
    if program is None:
        raise ToolError(f"{name} is not installed", remedy=f"install the package {PACKAGES[name]}")
    return program


def version(name: str) -> tuple[int, ...] | None:
    """Give a program's version, such as (81,) or (76, 1); None where it says none."""
    done = run([name, "--version"], seconds=20)
    found = re.search(r"(?:^|\s)v?([0-9]{1,9}(?:\.[0-9]{1,9})*)(?![0-9])", done.stdout)
    return tuple(int(part) for part in found[1].split(".")) if found else None


def require_ram_regions() -> None:
    """Raise ToolError where this `cxl` is too old to create a volatile region."""
    have = version("cxl")
    if have is not None and have < (RAM_REGIONS_SINCE,):
        text = ".".join(map(str, have))
        raise ToolError(
            f"cxl {text} cannot create volatile CXL regions, only persistent ones",
            remedy=f"install cxl {RAM_REGIONS_SINCE} or later (Debian 13 has it)",
        )


def parse(text: str) -> list[dict[str, Any]]:
    """Give the objects in what a program printed: one, an array of them, or nothing, with warnings before it.

    Numbers stay whole whatever their size. ToolError where there is something, but no JSON.
    """
    decoder = json.JSONDecoder()
    for place in itertools.islice(re.finditer(r"^[ \t]*[\[{]", text, re.MULTILINE), MOST_BEGINNINGS):
        try:
            value, _ = decoder.raw_decode(text, place.end() - 1)
        except ValueError:
            continue  # a warning may begin with a bracket, too
        except RecursionError:
            break  # each beginning below it would be as deep
        objects = value if isinstance(value, list) else [value]
        if all(isinstance(one, dict) for one in objects):
            return objects
    if re.search(r"^[ \t]*[\[{]", text, re.MULTILINE):
        raise ToolError(f"what looks like JSON is none: {text.strip()[:80]!r}")
    return []  # nothing there prints nothing


def code_text(code: int) -> str:
    """Say what an exit code means: the programs end with 256 - errno."""
    if code < 0:
        try:
            return f"killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"killed by signal {-code}"
    number = 256 - code
    if code > 128 and number in errno.errorcode:
        return f"exit code {code} ({errno.errorcode[number]}: {os.strerror(number)})"
    return f"exit code {code}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _text(data: bytes) -> str:
    return data.decode(errors="backslashreplace")


_COUNT: Final = re.compile(r"(?:\w+ )*[a-z]+ed \d+ \w+$")


def _last_line(text: str) -> str:
    """Give the last line that is no mere count of what was done."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    causes = [line for line in lines if not _COUNT.search(line) and line[0] not in '[]{}"']
    return (causes or lines or [""])[-1][:200]
