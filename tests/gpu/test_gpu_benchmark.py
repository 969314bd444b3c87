# SPDX-License-Identifier: Apache-2.0
"""What the GPU benchmark measures with."""

from __future__ import annotations

import numpy as np
import pytest

from engramdax.bench.gpu_report import FreshIds
from engramdax.errors import ParameterError

torch = pytest.importorskip("torch")

HEADS, TOKENS = 3, 10_000


def ids_of_a_trace() -> FreshIds:
    """Ids that tell the place in the trace that they come from."""
    return FreshIds(torch, TOKENS, HEADS, np.repeat(np.arange(TOKENS), HEADS).reshape(TOKENS, HEADS))


def test_few_calls_have_ids_of_all_documents_of_a_trace():
    ids = ids_of_a_trace()
    firsts = []
    for _ in range(60):
        found = ids(16)
        assert (found.shape, found.dtype, found.device.type) == ((16, HEADS), torch.int32, "cuda")
        assert (found.diff(dim=0) == 1).all()  # tokens that follow each other
        firsts.append(int(found[0, 0]))
    assert min(firsts) < TOKENS // 5
    assert max(firsts) > TOKENS - TOKENS // 5
    # Contenders take turns: each of them has all of it, too.
    assert max(firsts[::3]) - min(firsts[::3]) > TOKENS // 2


def test_a_call_may_have_the_whole_trace_and_no_more():
    assert ids_of_a_trace()(TOKENS)[:, 0].tolist() == list(range(TOKENS))
    with pytest.raises(ParameterError, match="10000 tokens to gather"):
        ids_of_a_trace()(TOKENS + 1)
