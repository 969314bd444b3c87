# SPDX-License-Identifier: Apache-2.0
"""The ways that rows may come by (`path=`), and whether a table on a GPU is given a lane for that of the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engramdax._core import lib
from engramdax.cuda.driver import attribute, uuid_of
from engramdax.cuda.lane import MOST_IDS, Lane
from engramdax.cuda.ranks import have_gpu, join
from engramdax.errors import ParameterError
from engramdax.gathering import thread_count

if TYPE_CHECKING:
    from engramdax.cuda.registration import Registration
    from engramdax.table import Table

PATHS: Final = ("auto", "direct", "mix", "staged")
MIX_BYTES: Final = 4 << 30
"""Tables below this are read directly under "auto": the GPU's address translation reaches far enough."""

MIX_THREADS: Final = 4
"""With fewer threads, "auto" does not try the CPU's way."""

SM_SHARE: Final = 1 / 20
"""Of the GPU's multiprocessors, for blocks that copy rows of a mixed call, and wait for the CPU meanwhile: the work
beside a gather keeps the rest."""


def check_path(path: str, sm_share: float) -> None:
    """Raise ParameterError for a path that there is not, or a share that is none."""
    if path not in PATHS:
        raise ParameterError(f"path={path!r} is unknown", remedy=f"say {' or '.join(PATHS)}")
    if not isinstance(sm_share, int | float) or not 0 < sm_share <= 1:
        raise ParameterError(f"sm_share={sm_share!r} is no share", remedy="give a number above 0, at most 1")


def open_lane(
    table: Table,
    device: int,
    path: str,
    *,
    threads: int | None,
    sm_share: float,
    registration: Registration | None,
) -> Lane | None:
    """Open the lane that a path asks for; None where all rows are read directly.

    threads: of the CPU, by default three quarters of the process's cores, fewer where other processes have lanes, too.
    """
    most = lane_threads(threads)
    small = table.nbytes < MIX_BYTES or most < MIX_THREADS
    if path == "direct" or (path == "auto" and (small or table.rows > MOST_IDS)):
        return None
    if table.rows > MOST_IDS:
        raise ParameterError(
            f"table {table.name} has {table.rows} rows, of which ids of 32 bits name {MOST_IDS}",
            remedy="say path='direct'",
        )
    if not have_gpu(uuid_of(device)) and path == "auto":
        return None
    join()
    return Lane(
        table,
        device,
        threads=most,
        shared=threads is None,
        blocks=max(1, int(attribute(device, "MULTIPROCESSOR_COUNT") * sm_share)),
        registration=registration,
    )


def lane_threads(threads: int | None) -> int:
    """Give how many threads of the CPU a lane may have; ParameterError for none."""
    limit = int(lib.ed_team_limit())
    return max(1, limit - limit // 4) if threads is None else min(thread_count(threads), limit)
