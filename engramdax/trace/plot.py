# SPDX-License-Identifier: Apache-2.0
"""The picture of `trace --plot`: share of reads served against the memory that the hot rows take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from engramdax.figures import save_figure

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


def plot_shares(path: Path, curves: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Draw `(bytes, share)` curves into a file whose suffix says the format."""
    from matplotlib.figure import Figure  # noqa: PLC0415  # optional

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot([nbytes / 2**30 for nbytes, _ in points], [100 * share for _, share in points], "o-", label=name)
    axes.set(xscale="log", xlabel="hot rows, GiB", ylabel="reads served, %", ylim=(0, 100))
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    save_figure(figure, path)
