# SPDX-License-Identifier: Apache-2.0
"""The kernels of kernels.cu, compiled by NVRTC for one architecture and kept on disk.

The cache is keyed by architecture, source and compiler version, written beside and renamed, so any number of
processes may fill it at once.
"""

from __future__ import annotations

import hashlib
import os
import threading
from functools import cache
from importlib import resources
from typing import Any, Final

from engramdax.cuda.driver import attribute, bindings, checked, use
from engramdax.errors import CudaError
from engramdax.host import cache_dir

OPTIONS: Final = ("--std=c++17", "-default-device")
"""No --use_fast_math and no -ftz: bits count."""

MOST_SHARED_BYTES: Final = 96 << 10
"""Of a block of `mixed_...`, where the GPU has as much: 16 warps have room for 16 rows each, of up to 384 bytes."""

OWN_SHARED_BYTES: Final = 4 << 10
"""Left for what such a block has in any case, which is less."""

_mutex = threading.Lock()


def source() -> bytes:
    """Give the kernels' source."""
    return (resources.files(__package__) / "kernels.cu").read_bytes()


def compile_kernels(architecture: str) -> bytes:
    """Compile for an architecture such as "sm_90" and give the cubin; needs NVRTC, no GPU."""
    try:
        from cuda.bindings import nvrtc  # noqa: PLC0415  # optional
    except ImportError:
        raise CudaError(
            "the Python package cuda-python is not installed", remedy="pip install 'engramdax[cuda]'"
        ) from None
    try:
        version = _nvrtc(nvrtc.nvrtcVersion(), "NVRTC does not tell its version")
    except RuntimeError as e:  # cuda-python's own for a library that it cannot find
        raise CudaError(f"NVRTC is not installed: {e}", remedy="pip install 'engramdax[cuda]'") from None
    text = source()
    digest = hashlib.sha256(b"\0".join([text, repr((version, OPTIONS)).encode()])).hexdigest()[:24]
    path = cache_dir() / "kernels" / f"{architecture}-{digest}.cubin"
    try:
        return path.read_bytes()
    except OSError:
        pass
    program = _nvrtc(nvrtc.nvrtcCreateProgram(text, b"kernels.cu", 0, [], []), "NVRTC takes no program")
    options = [f"--gpu-architecture={architecture}".encode(), *(o.encode() for o in OPTIONS)]
    (result,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(result):
        size = _nvrtc(nvrtc.nvrtcGetProgramLogSize(program), "NVRTC has no log")
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CudaError(
            f"the kernels do not compile for {architecture}: {' '.join(log.decode(errors='replace').split())[:400]}"
        )
    size = _nvrtc(nvrtc.nvrtcGetCUBINSize(program), "NVRTC made no code")
    cubin: bytes = b" " * int(size)
    _nvrtc(nvrtc.nvrtcGetCUBIN(program, cubin), "NVRTC does not give its code")
    nvrtc.nvrtcDestroyProgram(program)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        temporary.write_bytes(cubin)
        temporary.replace(path)
    except OSError:
        pass  # a cache that cannot be written costs a second at the next start
    return cubin


@cache
def capability(device: int) -> tuple[int, int]:
    """Give the compute capability of a device: (9, 0) for sm_90."""
    return attribute(device, "COMPUTE_CAPABILITY_MAJOR"), attribute(device, "COMPUTE_CAPABILITY_MINOR")


@cache
def _module(device: int) -> Any:
    major, minor = capability(device)
    cubin = compile_kernels(f"sm_{major}{minor}")
    return checked(bindings().cuModuleLoadData(cubin), "the driver does not load the kernels")


def shared_bytes(device: int) -> int:
    """Give how many bytes of shared memory a block of `mixed_...` may be launched with, beside its own."""
    return min(MOST_SHARED_BYTES, attribute(device, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") - OWN_SHARED_BYTES)


def function(device: int, name: str) -> int:
    """Give the handle of a kernel, loaded into the device's primary context. Thread-safe.

    One of `mixed_...` may be launched with `shared_bytes` of shared memory.
    """
    use(device)
    driver = bindings()
    with _mutex:
        module = _module(device)
    found = checked(driver.cuModuleGetFunction(module, name.encode()), f"there is no kernel {name}")
    if name.startswith("mixed_"):
        most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        checked(driver.cuFuncSetAttribute(found, most, shared_bytes(device)), f"no shared memory for {name}")
    return int(found)


def _nvrtc(returned: tuple[Any, ...], what: str) -> Any:
    result, *values = returned
    if int(result):
        raise CudaError(f"{what}: {result.name}")
    return values[0] if len(values) == 1 else tuple(values)
