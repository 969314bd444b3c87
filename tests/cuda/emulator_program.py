# SPDX-License-Identifier: Apache-2.0
"""The emulator of tests/cuda/emulator, compiled: kernels.cu and c/cuda.c themselves, for the CPU that there is.

The CPU's side of a lane is either played (played_lane.cpp), so that all follows from a seed, or the real one of c/.
"""

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
C: Final = ("-std=c11", "-Wno-unknown-pragmas", "-Wno-source-uses-openmp", f"-I{ROOT / 'c'}")
OWN_DRIVER: Final = "-Ddlopen=open_this_program"
TEAM: Final = ("media", "team", "guard", "kernel", "hash", "gather", "lane")
"""Units of c/ that lanes need."""

LINK: Final = ("-rdynamic", SANITIZERS, "-ldl", "-lpthread")


def compilers() -> tuple[str, str] | None:
    """Give the names of a compiler for C++ and one for C, None where there are none."""
    for pair in COMPILERS:
        if all(map(shutil.which, pair)):
            return pair
    return None


class Emulator:
    """Its units, compiled into a folder; programs of it take a seed, a number of trials, and perhaps their kind."""

    def __init__(self, folder: Path) -> None:
        found = compilers()
        assert found is not None
        self._cpp, self._c = found
        self._folder = folder
        units = [*sorted(HERE.glob("*.cpp")), ROOT / "c" / "cuda.c"]
        objects = dict(zip((unit.stem for unit in units), self._compile(units), strict=True))
        self._kernels = objects.pop("kernels")
        self._played, self._team = objects.pop("played_lane"), objects.pop("team_lane")
        self._others = list(objects.values())

    def _compile(self, units: list[Path]) -> list[Path]:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self._compile_one, units))

    def _compile_one(self, unit: Path) -> Path:
        made = self._folder / f"{unit.stem}.o"
        language = [self._cpp, *CPP] if unit.suffix == ".cpp" else [self._c, *C]
        driver = [OWN_DRIVER] if unit.name == "cuda.c" else []
        _run([*language, *COMMON, *driver, "-Werror", "-c", str(unit), "-o", str(made)])
        return made

    def program(self) -> Path:
        """Give the program with kernels.cu as it is."""
        return self._link("emulate", self._kernels, self._played)

    def program_with_team(self) -> Path:
        """Give the program with kernels.cu and c/lane.c as they are; what happens follows from no seed there."""
        units = self._compile([ROOT / "c" / f"{name}.c" for name in TEAM])
        return self._link("emulate_team", self._kernels, self._team, *units)

    def mutant(self, source: str) -> Path:
        """Give the program with other kernels."""
        text = self._folder / "mutant.cu"
        text.write_text(source)
        made = self._folder / "mutant.o"
        unit = str(HERE / "kernels.cpp")
        _run([self._cpp, *CPP, *COMMON, "-w", f'-DKERNELS="{text}"', "-c", unit, "-o", str(made)])
        return self._link("mutant", made, self._played)

    def _link(self, name: str, *objects: Path) -> Path:
        program = self._folder / name
        _run([self._cpp, *map(str, (*self._others, *objects)), *LINK, "-o", str(program)])
        return program


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
