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
PYTHON = Path(sysconfig.get_path("include"))  # of this machine, also for others: one unit sees Python's stable ABI
WARNINGS = ["-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", f"-I{CORE}", f"-isystem{PYTHON}"]


@pytest.fixture
def as_aarch64(tmp_path: Path) -> str:
    """Give the option that finds what Debian's Python.h includes by architecture: of this machine, as wide as that."""
    here = sysconfig.get_config_var("MULTIARCH") or ""
    link = tmp_path / "aarch64-linux-gnu" / PYTHON.name
    link.parent.mkdir()
    link.symlink_to(PYTHON.parent / here / PYTHON.name)
    return f"-isystem{tmp_path}"


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
def test_gcc_compiles_the_core_for_aarch64(as_aarch64: str):
    assert UNITS
    compile_all("aarch64-linux-gnu-gcc", "-fopenmp", as_aarch64)


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is missing")
def test_clang_compiles_the_core():
    compile_all("clang", "-Wno-source-uses-openmp")


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is missing")
def test_clang_compiles_the_core_for_aarch64(as_aarch64: str):
    headers = Path("/usr/aarch64-linux-gnu/include")
    if not headers.exists():
        pytest.skip("the headers of aarch64 are missing (Debian: libc6-dev-arm64-cross)")
    compile_all("clang", "-Wno-source-uses-openmp", "--target=aarch64-linux-gnu", f"-isystem{headers}", as_aarch64)
