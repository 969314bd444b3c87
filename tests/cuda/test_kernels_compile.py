# SPDX-License-Identifier: Apache-2.0
"""The GPU kernels compile, without a GPU, for every architecture that is served, and are kept on disk."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest

from engramdax.cuda.kernels import OWN_SHARED_BYTES, compile_kernels
from engramdax.errors import CudaError

pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-python is not installed")

ELF = b"\x7fELF"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that compiled kernels go to, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return sorted(path for path in cache.rglob("*") if path.is_file())


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_the_kernels_compile(architecture: str, cache: Path) -> None:
    cubin = compile_kernels(architecture)
    assert cubin.startswith(ELF)
    (path,) = kept(cache)
    assert path.name.startswith(f"{architecture}-")
    assert path.read_bytes() == cubin


def section_sizes(elf: bytes) -> dict[str, int]:
    headers_at, size, count, names_index = struct.unpack_from("<40xQ10xHHH", elf)
    headers = [struct.unpack_from("<I20xQQ", elf, headers_at + n * size) for n in range(count)]
    names = elf[headers[names_index][1] :]
    return {names[name : names.index(b"\0", name)].decode(): bytes_ for name, _, bytes_ in headers}


def test_blocks_that_copy_have_less_shared_memory_of_their_own_than_is_left_for_it() -> None:
    sizes = section_sizes(compile_kernels("sm_90"))
    own = {name: bytes_ for name, bytes_ in sizes.items() if name.startswith(".nv.shared.mixed_")}
    assert len(own) == sum(name.startswith(".text.mixed_") for name in sizes) > 0
    assert max(own.values()) < OWN_SHARED_BYTES


def test_a_second_call_takes_what_the_first_one_kept(cache: Path) -> None:
    compile_kernels("sm_90")
    (path,) = kept(cache)
    path.write_bytes(ELF + b"kept")
    assert compile_kernels("sm_90") == ELF + b"kept"


def test_a_cache_that_cannot_be_written_costs_only_time(cache: Path) -> None:
    cache.touch()
    assert compile_kernels("sm_90").startswith(ELF)


def test_two_processes_may_compile_at_once(cache: Path) -> None:
    source = "from engramdax.cuda.kernels import compile_kernels; print(len(compile_kernels('sm_90')))"
    both = [
        subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [process.communicate() for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    (path,) = kept(cache)
    assert {out for out, _ in said} == {f"{path.stat().st_size}\n"}


def test_an_architecture_that_does_not_exist_is_an_error(cache: Path) -> None:
    with pytest.raises(CudaError, match="sm_1"):
        compile_kernels("sm_1")
    assert kept(cache) == []
