# SPDX-License-Identifier: Apache-2.0
"""Forms of calls: what a plain call's launch has in common with others', found by all that it depends on."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from engramdax import plain
from engramdax._core import ffi
from engramdax.cuda.forms import Launch, form_key, form_of, launch_as

PEERS = Path(os.environ.get("ENGRAMDAX_PEERS", ""))


def launch(out: int) -> Launch:
    """A launch of no rows, which no driver is needed for."""
    plan, route = ffi.new("struct ed_cuda_gather *"), ffi.new("struct ed_cuda_route *")
    return Launch(plan, route, 1 << 20, True, 3, 0, out, 528, 264, 7)


@pytest.mark.parametrize(("out", "align"), [(0, 16), (1 << 40, 16), (48, 16), (40, 8), (36, 4), (34, 2), (33, 1)])
def test_a_form_is_for_outputs_that_are_aligned_alike(out: int, align: int) -> None:
    first = launch(out)
    form = form_of(first)
    for shift in range(1, 33):
        at = (1 << 30) + shift
        assert launch_as(form, 1 << 20, at, 0) == (None if at % align else 0)


def test_a_form_has_all_of_a_launch_but_addresses_and_stream() -> None:
    first = launch(1 << 30)
    form = ffi.from_buffer("struct ed_cuda_form *", form_of(first))
    assert (form.plan, form.route, form.ids_64) == (first.plan, first.route, 1)
    assert (form.ids_stride, form.outer, form.out_stride, form.out_column_stride) == (3, 0, 528, 264)


def test_other_arrays_than_tensors_have_no_form() -> None:
    for array in (np.zeros(3), None, 3, "rows", [1]):
        assert form_key(array, array, "raw", False) is None
        assert plain.cuda_gather({}, array, array, None, "raw", False) is None


class Stream:
    """A stream of Python's, in whose code something comes up."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    @property
    def cuda_stream(self) -> int:
        raise self.error


def test_an_interrupt_while_a_stream_is_asked_for_its_number_is_not_lost() -> None:
    with pytest.raises(KeyboardInterrupt):
        plain.cuda_gather({}, None, None, Stream(KeyboardInterrupt), "raw", False)
    for error in (AttributeError, ValueError):  # which Python meets again, and tells
        assert plain.cuda_gather({}, None, None, Stream(error), "raw", False) is None
    for number in (-1, 1 << 64, True, "7"):
        assert plain.cuda_gather({}, None, None, number, "raw", False) is None


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and not (PEERS / "torch").is_dir(),
    reason="torch is not installed, nor in the directory that ENGRAMDAX_PEERS names",
)
def test_tensors_have_one_form_when_all_but_their_addresses_is_alike() -> None:
    source = """
        import os, sys
        sys.path.append(os.environ.get("ENGRAMDAX_PEERS", ""))
        import torch
        from engramdax import plain
        from engramdax._core import ffi
        from engramdax.cuda.forms import Launch, form_key, form_of

        def tensors(ids=(5, 3), out=(5, 3, 264), ids_type=torch.int32, out_type=torch.uint8, device="cpu"):
            return torch.zeros(ids, dtype=ids_type, device=device), torch.zeros(out, dtype=out_type, device=device)

        def key(ids, out, *rest):
            found = form_key(ids, out, *(rest or ("raw", False)))
            assert found is not None and found == form_key(ids, out, *(rest or ("raw", False)))
            assert isinstance(found, bytes) == hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), found
            return found

        ids, out = tensors()
        assert key(ids, out) == key(*tensors()) == key(ids, torch.zeros(5, 3, 265 + 264)[..., 1:265].to(torch.uint8))
        others = [
            key(*tensors(ids=(3, 5))),
            key(*tensors(ids=(15,))),
            key(*tensors(ids=(1, 5, 3))),
            key(*tensors(out=(3, 5, 264))),
            key(*tensors(out=(15, 264))),
            key(*tensors(ids_type=torch.int64)),
            key(*tensors(out_type=torch.int8)),
            key(*tensors(out_type=torch.bool)),
            key(*tensors(out_type=torch.float8_e4m3fn)),
            key(*tensors(out_type=torch.bfloat16)),
            key(*tensors(out_type=torch.float16)),
            key(*tensors(out_type=torch.uint16)),
            key(torch.zeros((3, 5), dtype=torch.int32).t(), out),
            key(ids, torch.zeros((5, 3, 272), dtype=torch.uint8)[..., :264]),
            key(ids, torch.zeros((5, 4, 264), dtype=torch.uint8)[:, :3]),
            key(ids, out, "raw", True),
            key(ids, out, "bf16", False),
            key(ids, out, "fp16", False),
            key(out, ids),
        ]
        assert len({key(ids, out), *others}) == len(others) + 1

        # A launch of no rows needs no driver.
        plan, route = ffi.new("struct ed_cuda_gather *"), ffi.new("struct ed_cuda_route *")
        forms = {key(ids, out): form_of(Launch(plan, route, 0, False, 3, 0, 1 << 30, 792, 264, 0))}
        def call(ids, out, stream=None, format="raw", per_head=False):
            return plain.cuda_gather(forms, ids, out, stream, format, per_head)
        class Stream:
            def __init__(self, number): self.cuda_stream = number
        if hasattr(torch.Tensor, "__dlpack_c_exchange_api__"):
            assert [call(ids, out, stream) for stream in (None, 0, 7, Stream(7))] == [0] * 4
        for stream in (-1, 1 << 64, True, "7", 7.0, Stream("7"), Stream(None), Stream(lambda: 7)):
            assert call(ids, out, stream) is None, stream
        assert call(ids, torch.zeros(5 * 3 * 264 + 8, dtype=torch.uint8)[8:].view(5, 3, 264)) is None
        assert call(ids.long(), out) is call(ids, out, None, "bf16") is call(ids, out, None, "raw", True) is None
        forms[key(ids, out)] = b""
        assert call(ids, out) is None

        # Memory under a tensor changes, and so may its shape.
        before = key(ids, out)
        out.set_(torch.zeros((5, 3, 264), dtype=torch.uint8))
        assert key(ids, out) == before
        out.resize_((5, 3, 272))
        assert key(ids, out) != before

        # Types made from Tensor are looked at in Python; what has no memory is refused there.
        class Other(torch.Tensor):
            pass
        assert plain.form_key(ids.as_subclass(Other), out, "raw", False) is None
        assert plain.form_key(ids, torch.nn.Parameter(out, requires_grad=False), "raw", False) is None
        assert plain.form_key(ids, out.to_sparse(), "raw", False) is None
        assert plain.form_key(ids, out, "none", False) is None
        assert plain.form_key(ids, out, "raw", 1) is None
        assert plain.cuda_gather({}, ids, out, None, "raw", False) is None
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
