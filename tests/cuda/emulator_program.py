# SPDX-License-Identifier: Apache-2.0
"""The emulator of tests/cuda/emulator, compiled: kernels.cu itself and c/cuda.c, for the CPU that there is."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent / "emulator"
ROOT: Final = HERE.parents[2]
KERNELS: Final = ROOT / "engramdax" / "cuda" / "kernels.cu"

COMPILERS: Final = (("g++", "gcc"), ("clang++", "clang"), ("c++", "cc"))
"""For C++ and for C, in the order in which they are looked for."""

# GPUs refuse accesses that are not aligned, which CPUs take; kernels.cu has pragmas and casts of a GPU's compiler.
SANITIZERS: Final = "-fsanitize=alignment,bounds,shift"
COMMON: Final = ("-O1", "-Wall", "-Wextra", SANITIZERS, "-fno-sanitize-recover=all", "-U_FORTIFY_SOURCE")
CPP: Final = ("-std=c++17", "-fno-strict-aliasing", "-Wno-unknown-pragmas")
C: Final = ("-std=c11", "-Ddlopen=open_this_program")
LINK: Final = ("-rdynamic", SANITIZERS, "-ldl", "-lpthread")


def compilers() -> tuple[str, str] | None:
    """Give the names of a compiler for C++ and one for C, None where there are none."""
    for pair in COMPILERS:
        if all(map(shutil.which, pair)):
            return pair
    return None


class Emulator:
    """Its units, compiled into a folder; `program` links them with kernels."""

    def __init__(self, folder: Path) -> None:
        found = compilers()
        assert found is not None
        self._cpp, self._c = found
        self._folder = folder
        units = [*sorted(HERE.glob("*.cpp")), ROOT / "c" / "cuda.c"]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = dict(zip(units, pool.map(self._compile, units), strict=True))
        self._kernels = objects.pop(HERE / "kernels.cpp")
        self._others = list(objects.values())

    def _compile(self, unit: Path) -> Path:
        made = self._folder / f"{unit.stem}.o"
        language = [self._cpp, *CPP] if unit.suffix == ".cpp" else [self._c, *C]
        _run([*language, *COMMON, "-Werror", "-c", str(unit), "-o", str(made)])
        return made

    def program(self) -> Path:
        """Give the program with kernels.cu as it is."""
        return self._link(self._kernels, "emulate")

    def mutant(self, source: str) -> Path:
        """Give the program with other kernels."""
        text = self._folder / "mutant.cu"
        text.write_text(source)
        made = self._folder / "mutant.o"
        unit = str(HERE / "kernels.cpp")
        _run([self._cpp, *CPP, *COMMON, "-w", f'-DKERNELS="{text}"', "-c", unit, "-o", str(made)])
        return self._link(made, "mutant")

    def _link(self, kernels: Path, name: str) -> Path:
        program = self._folder / name
        _run([self._cpp, *map(str, self._others), str(kernels), *LINK, "-o", str(program)])
        return program


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
