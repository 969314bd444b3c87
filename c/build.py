# SPDX-License-Identifier: Apache-2.0
"""Builds what is written in C into the package: the wheel's build hook, and `python c/build.py`.

engramdax/_core.abi3.so is the core, by cffi in API mode: the declarations in core.cdef, the code in the .c files beside
it; plain.c is a second module in the same file (engramdax/plain.py). Both use Python's stable ABI, so that one wheel
serves CPython 3.11 and later.

engramdax/_udev is what `engramdax udev install` installs: the files of udev/ and the helper, a program that
needs libc alone.

Environment: ENGRAMDAX_WERROR=1 makes warnings errors (CI); ENGRAMDAX_SANITIZE=address,undefined builds
with sanitizers, for a run under LD_PRELOAD of their library.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cffi

if TYPE_CHECKING:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    Hook = BuildHookInterface[Any]
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface as Hook
    except ImportError:  # `python c/build.py` needs cffi alone
        Hook = object

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TARGET = ROOT / "engramdax" / "_core.abi3.so"
UDEV = ROOT / "udev"
UDEV_TARGET = ROOT / "engramdax" / "_udev"
HELPER = "engramdax-dax-id"
UNITS = (
    "media",
    "mapping",
    "interleave",
    "team",
    "guard",
    "kernel",
    "gather",
    "hash",
    "count",
    "lane",
    "cuda",
    "sysfs",
)


def ffi_builder() -> cffi.FFI:
    """Give the FFI with declarations, sources and compiler flags set."""
    flags = ["-std=c11", "-O3", "-g1", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra"]
    if os.environ.get("ENGRAMDAX_WERROR") == "1":
        flags.append("-Werror")
    links = ["-fopenmp"]
    if sanitizers := os.environ.get("ENGRAMDAX_SANITIZE"):
        flags += [f"-fsanitize={sanitizers}", "-fno-omit-frame-pointer", "-fno-sanitize-recover=all"]
        links.append(f"-fsanitize={sanitizers}")
    ffi = cffi.FFI()
    ffi.cdef((HERE / "core.cdef").read_text())
    ffi.set_source(
        "engramdax._core",
        "".join(f'#include "{unit}.h"\n' for unit in UNITS),
        sources=[str(HERE / f"{unit}.c") for unit in (*UNITS, "plain")],
        include_dirs=[str(HERE)],
        extra_compile_args=flags,
        extra_link_args=links,
    )
    return ffi


def build() -> Path:
    """Compile the core and put it into the package."""
    work = ROOT / "build" / "core"
    shutil.rmtree(work, ignore_errors=True)
    made = ffi_builder().compile(tmpdir=str(work), target=TARGET.name)
    # A running process may have the old file mapped: replace it, never write into it.
    fresh = TARGET.with_suffix(".new")
    shutil.copy(made, fresh)
    fresh.replace(TARGET)
    return TARGET


def build_udev() -> Path:
    """Compile the helper and put it into the package, beside the files that are installed with it."""
    fresh = ROOT / "build" / "udev"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    flags = ["-std=c11", "-O2", "-Wall", "-Wextra", "-D_FORTIFY_SOURCE=2", "-fstack-protector-strong", "-fPIE"]
    if os.environ.get("ENGRAMDAX_WERROR") == "1":
        flags.append("-Werror")
    links = ["-pie", "-s", "-Wl,-z,relro,-z,now"]
    # The core's own way to forget what a cache holds; nothing else of it.
    sources = [*sorted(UDEV.glob("*.c")), HERE / "media.c"]
    subprocess.run([*compiler, *flags, f"-I{HERE}", *sources, *links, "-o", fresh / HELPER], check=True)
    for file in sorted(UDEV.iterdir()):
        if file.suffix not in (".c", ".h"):
            shutil.copy(file, fresh)
    shutil.rmtree(UDEV_TARGET, ignore_errors=True)
    shutil.copytree(fresh, UDEV_TARGET)
    return UDEV_TARGET


class CoreBuildHook(Hook):
    """hatchling's side: build before the wheel is packed, and tag it for the stable ABI."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it is the source archive that is being made."""
        del version
        if self.target_name != "wheel":
            return
        build()
        build_udev()
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"cp311-abi3-{platform}"

    def clean(self, versions: list[str]) -> None:
        """Take what was built away again."""
        del versions
        TARGET.unlink(missing_ok=True)
        shutil.rmtree(UDEV_TARGET, ignore_errors=True)


if __name__ == "__main__":
    print(build())
    print(build_udev())
