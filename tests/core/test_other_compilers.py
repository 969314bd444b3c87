# SPDX-License-Identifier: Apache-2.0
"""The C core and the udev helper are compiled without a warning by the compilers that no wheel is built with."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

pytestmark = pytest.mark.unsanitized

CORE = Path(__file__).resolve().parents[2] / "c"
UNITS = [*sorted(CORE.glob("*.c")), *sorted((CORE.parent / "udev").glob("*.c"))]
PYTHON = sysconfig.get_path("include")  # of this machine, also for others: one unit sees Python's stable ABI
WARNINGS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{CORE}", f"-isystem{PYTHON}"]


def compile_all(compiler: str, *flags: str) -> None:
    for unit in UNITS:
        done = subprocess.run(
            [compiler, *WARNINGS, *flags, "-c", unit, "-o", "/dev/null"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{unit.name}: {done.stderr}"


@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-gcc") is None,
    reason="aarch64-linux-gnu-gcc is missing (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross)",
)
def test_gcc_compiles_the_core_for_aarch64():
    assert UNITS
    compile_all("aarch64-linux-gnu-gcc", "-fopenmp")


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is missing")
def test_clang_compiles_the_core():
    compile_all("clang", "-Wno-source-uses-openmp")


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is missing")
def test_clang_compiles_the_core_for_aarch64():
    headers = Path("/usr/aarch64-linux-gnu/include")
    if not headers.exists():
        pytest.skip("the headers of aarch64 are missing (Debian: libc6-dev-arm64-cross)")
    compile_all("clang", "-Wno-source-uses-openmp", "--target=aarch64-linux-gnu", "-isystem", str(headers))
