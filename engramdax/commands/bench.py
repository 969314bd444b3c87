# SPDX-License-Identifier: Apache-2.0
"""How fast gathers are on this machine, beside other people's and beside what the machine can do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from engramdax.backing import parse_size
from engramdax.commands.output import JsonOption, print_grid, print_json, print_line, size_text
from engramdax.errors import ParameterError
from engramdax.figures import check_figure

# What measures is imported by the command that measures: every other command would wait for it.
if TYPE_CHECKING:
    from engramdax.bench.contest import Outcome, Plan

GROUP: Final = "bench"

ROW_BYTES: Final = (64, 264, 320, 640, 5120)
ROWS: Final = (1, 16, 64, 384, 1536, 4096, 24_576, 196_608)
ROUNDS: Final = 10

QUICK_ROW_BYTES: Final = (320,)
QUICK_ROWS: Final = (16, 384, 4096, 24_576)
QUICK_ROUNDS: Final = 4
QUICK_SIZE: Final = 1 << 30

QUIET: Final = 0.03
"""Share of the CPUs' time that other processes may have before figures are doubtful."""


def cpu(
    *,
    row_bytes: Annotated[
        list[int] | None,
        typer.Option("--row-bytes", metavar="N", help="Bytes of a row; repeatable. [default: 64 264 320 640 5120]"),
    ] = None,
    rows: Annotated[
        list[int] | None, typer.Option("--rows", metavar="N", help="Rows per call; repeatable. [default: 1 to 196608]")
    ] = None,
    pages: Annotated[
        list[str] | None,
        typer.Option("--pages", metavar="4k|2m", help="Pages under the pool; repeatable. [default: both]"),
    ] = None,
    ids: Annotated[
        list[str] | None,
        typer.Option("--ids", metavar="uniform|trace|cached", help="Which rows; repeatable. [default: uniform]"),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE.npz", help="Tokens of real text; implies --ids trace too.")
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="N", help="Bytes of the table. [default: 8G, at most a third of the memory]"),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", metavar="N", help="Turns of each contender. [default: 10]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases, fewer rounds, a table of 1 GiB.")] = False,
    busy_core: Annotated[
        bool, typer.Option("--busy-core", help="Instead: the tail while another process keeps a core busy.")
    ] = False,
    skip: Annotated[
        list[str] | None, typer.Option("--skip", metavar="PEER", help="Leave torch or engramdb out; repeatable.")
    ] = None,
    peers: Annotated[
        Path | None, typer.Option("--peers", metavar="DIR", help="Where torch and engramdb lie (pip install --target).")
    ] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw latency against rows (.png, .svg, .pdf).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure gathers on this CPU beside numpy, torch, EngramDB, the paper's routine and bare C.

    Makes temporary pools and removes them. Peers that are not there are installed by pip into a cache.
    """
    from engramdax.bench import contest, plot, report  # noqa: PLC0415
    from engramdax.bench.contenders import LABELS, PEER_OF  # noqa: PLC0415
    from engramdax.bench.ids import Trace  # noqa: PLC0415
    from engramdax.bench.scratch import PAGE_BYTES, default_bytes  # noqa: PLC0415

    if plot_file is not None:
        if busy_core:
            raise ParameterError("--plot does not go with --busy-core", remedy="leave one out")
        check_figure(plot_file)
    if peers is not None and not peers.is_dir():
        raise ParameterError(f"--peers {peers} is no directory", remedy="make it with pip install --target")
    if busy_core and rows:
        raise ParameterError("--rows does not go with --busy-core", remedy=f"that measures {contest.BUSY_ROWS} rows")
    for what, values in (
        ("--row-bytes", row_bytes),
        ("--rows", rows),
        ("--rounds", None if rounds is None else [rounds]),
    ):
        if any(value < 1 for value in values or ()):
            raise ParameterError(f"{what} {min(values or ())} is impossible", remedy="give 1 or more")
    skipped = _known("--skip", skip, tuple(dict.fromkeys(PEER_OF.values())))
    table_bytes = parse_size(size) if size else min(default_bytes(), QUICK_SIZE if quick else 1 << 62)
    plan = contest.Plan(
        pages=_known("--pages", pages, tuple(PAGE_BYTES)) or tuple(PAGE_BYTES),
        row_bytes=row_bytes or (QUICK_ROW_BYTES if quick or busy_core else ROW_BYTES),
        rows=rows or (QUICK_ROWS if quick else ROWS),
        ids=_id_kinds(ids, trace),
        contenders=contest.BUSY_CONTENDERS
        if busy_core
        else tuple(name for name in LABELS if PEER_OF.get(name) not in skipped),
        size=table_bytes,
        rounds=rounds or (QUICK_ROUNDS if quick else ROUNDS),
        trace=trace,
        peers=peers,
        busy_core=busy_core,
    )
    if trace is not None:
        Trace(trace, table_bytes // max(plan.row_bytes))  # a file that does not serve ends it here
    outcome = contest.hold(plan, _progress)
    _progress("")
    if plot_file is not None:
        plot.draw(outcome, plot_file)
    if as_json:
        print_json(report.as_json(plan, outcome))
        return
    _print(plan, outcome)


def _progress(text: str) -> None:
    """Show on a terminal what is being done; no spinner, which would be a thread beside what is timed."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def _print(plan: Plan, outcome: Outcome) -> None:
    from engramdax.bench import report  # noqa: PLC0415

    machine = report.as_json(plan, outcome)["machine"]
    versions = sorted(set(outcome.versions.values()))
    about = [f"{machine['cpu']}, {machine['cpus']} CPUs", f"table of {size_text(plan.size)}", *versions]
    print_line("; ".join(about))
    for heading, columns, lines in report.grids(outcome):
        print_line(f"\n{heading}")
        print_grid(columns, lines)
    if outcome.others > QUIET:
        print_line(f"note: other processes had {outcome.others:.0%} of the CPUs' time; run it on a quiet machine")
    for what, reason in outcome.absent.items():
        print_line(f"absent: {what}: {reason}")


def _id_kinds(ids: list[str] | None, trace: Path | None) -> tuple[str, ...]:
    from engramdax.bench.ids import KINDS  # noqa: PLC0415

    kinds = _known("--ids", ids, KINDS) or ("uniform",)
    if trace is not None and "trace" not in kinds:
        kinds = (*kinds, "trace")
    if trace is None and "trace" in kinds:
        raise ParameterError("--ids trace needs the trace", remedy="give --trace FILE.npz")
    return kinds


def _known(option: str, values: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    for value in values or ():
        if value not in known:
            raise ParameterError(f"{option} {value} is unknown", remedy=f"say {' or '.join(known)}")
    return tuple(dict.fromkeys(values or ()))


def gpu(
    *,
    tokens: Annotated[
        list[int] | None, typer.Option("--tokens", metavar="N", help="Tokens per call; repeatable.")
    ] = None,
    row: Annotated[
        str, typer.Option("--row", metavar="v41|paper", help="24 float8 rows of 264 bytes a token, or 16 of 320.")
    ] = "v41",
    pages: Annotated[str, typer.Option("--pages", metavar="4k|2m", help="Pages under the pool.")] = "2m",
    size: Annotated[str, typer.Option("--size", metavar="N", help="Bytes of the table.")] = "50G",
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE.npz", help="Ids of real text instead of uniform ones.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="The model whose layer the trace is hashed for: its real heads.")
    ] = None,
    hot: Annotated[
        str | None, typer.Option("--hot", metavar="N", help="Also with hot rows in so much GPU memory; needs --trace.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Calls of each contender.")] = None,
    pause_ms: Annotated[
        float,
        typer.Option("--pause", metavar="MS", min=0, max=1000, help="Do nothing for so long before each call."),
    ] = 0,
    peers: Annotated[Path | None, typer.Option("--peers", metavar="DIR", help="Where the engines' files lie.")] = None,
    plot_file: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw time against tokens, with the windows.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure gathers into GPU memory beside SGLang's and vLLM's kernels on the same memory.

    DeepSeek-V4.1's rows of 256 float8 values and 8 scales are dequantised to bf16, the paper's copied.
    """
    from engramdax.bench import gpu_report  # noqa: PLC0415  # needs torch
    from engramdax.bench.scratch import PAGE_BYTES  # noqa: PLC0415

    if trace is not None and row != "v41":
        raise ParameterError("--trace hashes for DeepSeek-V4.1's rows", remedy="leave out --row")
    if (hot is not None or config is not None) and trace is None:
        raise ParameterError("--hot and --config need ids of real text", remedy="give --trace FILE.npz")
    if plot_file is not None:
        check_figure(plot_file)
    plan = gpu_report.Plan(
        row=_known("--row", [row], tuple(gpu_report.ROWS))[0],
        tokens=tuple(tokens or gpu_report.TOKENS),
        pages=_known("--pages", [pages], tuple(PAGE_BYTES))[0],
        size=parse_size(size),
        trace=trace,
        config=config,
        hot=hot,
        rounds=rounds,
        peers=peers,
        pause_s=pause_ms / 1e3,
    )
    outcome = gpu_report.hold(plan, _progress)
    _progress("")
    if plot_file is not None:
        gpu_report.draw(outcome, plot_file)
    if as_json:
        print_json(gpu_report.as_json(outcome))
        return
    for line in gpu_report.heading(outcome):
        print_line(line)
    print_grid(gpu_report.COLUMNS, gpu_report.lines(outcome))


COMMANDS: Final = {"cpu": cpu, "gpu": gpu}
