# SPDX-License-Identifier: Apache-2.0
"""Latency against rows, drawn: a panel for each kind of pool, row and ids, a line for each contender."""

from __future__ import annotations

import importlib
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from engramdax.bench.contenders import LABELS, OURS
from engramdax.bench.report import figures
from engramdax.figures import save_figure

if TYPE_CHECKING:
    from pathlib import Path

    from engramdax.bench.contest import Outcome
    from engramdax.bench.report import Figure

MOST_COLUMNS: Final = 3


def draw(outcome: Outcome, path: Path) -> None:
    """Write the figure; log-log, since both axes span five decades."""
    matplotlib: Any = importlib.import_module("matplotlib")
    matplotlib.use("agg")
    pyplot: Any = importlib.import_module("matplotlib.pyplot")
    panels = [(key, list(group)) for key, group in groupby(figures(outcome), _panel)]
    columns = min(MOST_COLUMNS, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = pyplot.subplots(lines, columns, figsize=(5.5 * columns, 4.2 * lines), squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, ((pages, row_bytes, ids), found) in zip(axes.flat, panels, strict=False):
        for name in LABELS:
            points = sorted((f.case.rows, f.median_us) for f in found if f.contender == name)
            if points:
                axis.loglog(*zip(*points, strict=True), label=LABELS[name], marker="o", lw=2.5 if name == OURS else 1.2)
        axis.set(title=f"{row_bytes} bytes, {pages} pages, {ids} ids", xlabel="rows per call", ylabel="median, us")
        axis.grid(visible=True, which="major", alpha=0.3)
    axes[0, 0].legend(fontsize="x-small")
    figure.tight_layout()
    try:
        save_figure(figure, path)
    finally:
        pyplot.close(figure)


def _panel(figure: Figure) -> tuple[str, int, str]:
    return figure.case.pages, figure.case.row_bytes, figure.case.ids
