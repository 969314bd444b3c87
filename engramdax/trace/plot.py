# SPDX-License-Identifier: Apache-2.0
"""The picture of `trace --plot`: share of reads served against the memory that the hot rows take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engramdax.errors import EngramdaxError, ParameterError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

REMEDY: Final = "give a file such as shares.png"


def check_plot(path: Path) -> None:
    """Raise what `plot_shares` would, as far as that can be told before there is anything to draw."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415  # optional
    except ImportError:
        raise EngramdaxError(
            "the Python package matplotlib is not installed", remedy="pip install 'engramdax[plot]'"
        ) from None
    formats = Figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise ParameterError(f"cannot draw into {path}: its suffix is none of {', '.join(formats)}", remedy=REMEDY)
    if not path.parent.is_dir():
        raise ParameterError(f"cannot draw into {path}: there is no directory {path.parent}", remedy=REMEDY)


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
    try:
        figure.savefig(path)
    except (OSError, ValueError) as e:
        raise ParameterError(f"cannot draw into {path}: {e}", remedy=REMEDY) from None
