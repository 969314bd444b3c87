# SPDX-License-Identifier: Apache-2.0
"""How the helper and what tests it are compiled: with sanitizers, whose findings end a program with 86."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
UDEV: Final = ROOT / "udev"
FLAGS: Final = ("-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'c'}", f"-I{UDEV}")
SANITIZERS: Final = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
ENVIRONMENT: Final = {
    "ASAN_OPTIONS": "exitcode=86",
    "UBSAN_OPTIONS": "exitcode=86:print_stacktrace=1",
    "PATH": os.environ["PATH"],
}
"""Without the LD_PRELOAD of a sanitized run of the tests: these programs have the sanitizers in them."""
