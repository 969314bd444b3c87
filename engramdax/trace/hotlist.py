# SPDX-License-Identifier: Apache-2.0
"""Hot lists as files: what `trace` writes and `hot set` publishes with a table.

An .npz archive: `row_ids` and `counts` (both by falling count), `accesses` (reads of the trace), `rows` and
`heads` (the table's, so that a list is not published with another one).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engramdax.errors import SourceError
from engramdax.files import replace_file
from engramdax.trace.archive import array_of, opened_arrays
from engramdax.trace.counts import HotRows

if TYPE_CHECKING:
    from pathlib import Path

    from engramdax.format.directory import TableEntry

FIELDS: Final = ("row_ids", "counts", "accesses", "rows", "heads")
POINTS: Final = 24
"""How many points of the curve of shares are published with a list."""


@dataclass(frozen=True, slots=True)
class HotList:
    """The most-read rows of one table and what they are a list of."""

    hot: HotRows
    rows: int
    heads: npt.NDArray[np.int64]

    def points(self) -> list[tuple[int, float]]:
        """Give the curve of shares at lengths that double, and at the end."""
        size = self.hot.row_ids.size
        lengths = sorted({size, *(max(1, size >> shift) for shift in range(POINTS - 1))})
        return [(length, round(self.hot.share(length), 6)) for length in lengths]

    def check(self, entry: TableEntry, path: Path) -> None:
        """Raise SourceError unless this is a list of the table."""
        heads = np.array(entry.heads or (), np.int64)
        if self.rows != entry.rows or (heads.size and not np.array_equal(heads, self.heads)):
            divided = "as many" if heads.size == self.heads.size else str(heads.size or "unknown")
            raise SourceError(
                f"{path} lists rows of a table of {self.rows} rows in {self.heads.size} heads, "
                f"{entry.name} has {entry.rows} in {divided} heads{' of other sizes' if heads.size else ''}",
                remedy="make a list with `engramdax trace` for this table's model and layer",
            )


def write_hot_list(path: Path, hot_list: HotList, *, pool: Path | None = None) -> None:
    """Write a list to `path`, as a whole or not at all; errors as of `replace_file`."""
    arrays: dict[str, Any] = {
        "row_ids": hot_list.hot.row_ids,
        "counts": hot_list.hot.counts,
        "accesses": np.int64(hot_list.hot.accesses),
        "rows": np.int64(hot_list.rows),
        "heads": hot_list.heads,
    }
    replace_file(path, lambda file: np.savez(file, **arrays), pool=pool, remedy="give another --out")


def read_hot_list(path: Path) -> HotList:
    """Read and check a list; SourceError for what is none."""
    again = "make one with `engramdax trace`"
    with opened_arrays(path, "hot list, or is cut off", remedy=again) as archive:
        if isinstance(archive, np.ndarray):
            raise SourceError(f"{path} is no hot list: it holds a single array, no archive", remedy=again)
        if missing := [name for name in FIELDS if name not in archive]:
            raise SourceError(f"{path} is no hot list: it lacks {', '.join(missing)}", remedy=again)
        ids, counts, accesses, rows, heads = (array_of(archive, name) for name in FIELDS)
    vectors = ids.ndim == counts.ndim == heads.ndim == 1 and ids.size == counts.size > 0
    if (
        not vectors
        or accesses.ndim
        or rows.ndim
        or any(a.dtype != np.int64 for a in (ids, counts, accesses, rows, heads))
    ):
        raise SourceError(f"{path} holds no list of rows", remedy=again)
    if int(ids.min()) < 0 or int(ids.max()) >= rows or np.unique(ids).size != ids.size:
        raise SourceError(f"{path} lists rows twice or outside 0 to {rows - 1}", remedy="make it anew")
    if (counts[1:] > counts[:-1]).any() or counts[-1] < 1:
        raise SourceError(f"{path} is not in falling order of its counts", remedy="make it anew")
    if _total(counts) > accesses or (heads < 1).any() or _total(heads) != rows:
        raise SourceError(f"{path} counts more reads, or other rows, than it says in all", remedy="make it anew")
    return HotList(HotRows(ids, counts, int(accesses)), int(rows), heads)


def _total(values: npt.NDArray[np.int64]) -> int:
    """Give the exact sum, by halves of the numbers: numpy's own wraps around."""
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())
