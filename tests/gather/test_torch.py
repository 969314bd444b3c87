# SPDX-License-Identifier: Apache-2.0
"""PyTorch in the same process: its tensors as ids and output, its threads beside the team."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path

import pytest

PEERS = Path(os.environ.get("ENGRAMDAX_PEERS", ""))

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None and not (PEERS / "torch").is_dir(),
    reason="torch is not installed, nor in the directory that ENGRAMDAX_PEERS names",
)


def test_tensors_are_filled_while_torch_computes_and_a_child_gathers_too(load: Callable, script: Callable):
    loaded = load()
    done = script(
        """
        import os, sys, threading
        sys.path.append(os.environ.get("ENGRAMDAX_PEERS", ""))
        import numpy as np, torch, engramdax
        torch.set_num_threads(2)
        table = engramdax.open(sys.argv[1])["table0"]
        ids = torch.randint(0, 20_000, (8000,))
        out = torch.empty((8000, 320), dtype=torch.uint8)
        whole = torch.from_numpy(table.gather(np.arange(20_000)))
        stop = threading.Event()
        def compute():
            a = torch.rand(200, 200)
            while not stop.is_set():
                a = torch.nn.functional.normalize(a @ a)
        threads = [threading.Thread(target=compute) for _ in range(2)]
        for thread in threads: thread.start()
        for n in range(50):
            out.zero_()
            table.gather(ids.numpy(), out=out.numpy(), engine="openmp" if n % 5 == 0 else "team")
            assert torch.equal(out, torch.index_select(whole, 0, ids))
        stop.set()
        for thread in threads: thread.join()
        pid = os.fork()
        if pid == 0:
            same = np.array_equal(table.gather(ids.numpy()), out.numpy())
            openmp = np.array_equal(table.gather(ids.numpy(), engine="openmp"), out.numpy())
            os._exit(0 if same and openmp else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        loaded.path,
    )
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr
