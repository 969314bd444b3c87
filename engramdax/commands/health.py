# SPDX-License-Identifier: Apache-2.0
"""`health`: whether a pool is whole and healthy, on this host or on all hosts of a switch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from engramdax.commands.fleet import HostsOption, ProgramOption, SshOption, TimeoutOption
from engramdax.commands.output import (
    JsonOption,
    PoolOption,
    count_text,
    print_grid,
    print_json,
    print_line,
    printable,
    size_text,
)
from engramdax.commands.show import share_of
from engramdax.errors import ParameterError
from engramdax.fleet import chosen_fleet
from engramdax.health.finding import EXIT_CODES, Finding, State
from engramdax.health.hosts import Answer, Comparison, examine_hosts
from engramdax.health.report import PROBES, Report, examine

SkipOption = Annotated[
    list[str] | None,
    typer.Option("--skip", metavar="PROBE", help="Leave a probe out, such as memdev.health, or a group. Repeatable."),
]


def health(
    *,
    pool: PoolOption = None,
    verify: Annotated[bool, typer.Option("--verify", help="Compare every byte with its checksum, too.")] = False,
    sample: Annotated[
        str | None, typer.Option("--sample", metavar="SHARE", help="With --verify: of the blocks, such as 5%.")
    ] = None,
    skip: SkipOption = None,
    hosts: HostsOption = None,
    timeout: TimeoutOption = None,
    program: ProgramOption = None,
    ssh_options: SshOption = None,
    prometheus: Annotated[
        Path | None,
        typer.Option("--prometheus", metavar="FILE", help="Write metrics for node_exporter's textfile collector."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Tell whether a pool is whole and healthy, and what to do where it is not.

    Ends with 0 ok, 1 warning, 2 critical, 3 unknown: something could not be asked, or the command itself failed.
    """
    share = _share(sample, verify=verify)
    skipped = check_skipped(skip)
    if hosts is None and any(option is not None for option in (timeout, program, ssh_options)):
        # What a file names is not asked by a check of this host.
        raise ParameterError("--timeout, --program and --ssh-options go with --hosts", remedy="give --hosts, too")
    fleet = chosen_fleet(hosts, timeout=timeout, program=program, ssh_options=ssh_options) if hosts else None
    if fleet is not None:
        if prometheus is not None:
            raise ParameterError("--prometheus is for one host", remedy="let each host write its own file")
        options = [*_option("--pool", pool), *_option("--sample", sample), *(["--verify"] if verify else [])]
        for name in skipped:
            options += ["--skip", name]
        comparison = examine_hosts(fleet, options)
        if as_json:
            print_json(comparison.to_json())
        else:
            _print_comparison(comparison)
        return EXIT_CODES[comparison.state]
    report = examine(pool, share=share, skip=skipped)
    if prometheus is not None:
        from engramdax.health.metrics import write_metrics  # noqa: PLC0415 - an extra, which only this needs

        write_metrics(report, prometheus)
    if as_json:
        print_json(report.to_json())
    elif prometheus is None:
        _print_report(report)
    return EXIT_CODES[report.state]


def check_skipped(skip: list[str] | None) -> tuple[str, ...]:
    """Give the probes that --skip names; ParameterError for what is none."""
    for name in skip or ():
        if name.partition(".")[0] not in PROBES:
            raise ParameterError(f"--skip {name} is no probe", remedy=f"they begin with {', '.join(PROBES)}")
    return tuple(skip or ())


def _share(sample: str | None, *, verify: bool) -> float | None:
    if sample is not None and not verify:
        raise ParameterError("--sample is a share of what --verify compares", remedy="give --verify, too")
    return (1.0 if sample is None else share_of(sample)) if verify else None


def _option(name: str, value: str | None) -> list[str]:
    return [] if value is None else [name, value]


def _print_comparison(comparison: Comparison) -> None:
    columns = ("HOST", "STATE", "POOL", ">GENERATION", ">TABLES", ">READERS", ">GATHER", ">ROW", ">TOOK")
    print_grid(columns, [_host_row(answer) for answer in comparison.answers])
    for answer in comparison.answers:
        for finding in answer.report.findings if answer.report else ():
            if finding.state is not State.OK:
                print_line(printable(f"{answer.host}: {_text(finding)}"))
    for finding in comparison.findings:
        if finding.state is not State.OK:
            print_line(printable(f"{finding.object}: {finding.state}: {finding.found}; {finding.remedy}"))
    states = [answer.state for answer in comparison.answers]
    told = ", ".join(f"{states.count(state)} {state}" for state in State if state in states)
    print_line(f"{count_text(len(states), 'host')}: {told}; together {comparison.state}")


def _host_row(answer: Answer) -> tuple[str, ...]:
    took = f"{answer.seconds:.1f} s"
    report = answer.report
    if report is None:
        return (answer.host, str(answer.answered), "", "", "", "", "", "", took)
    pool = report.pool
    return (
        answer.host,
        str(report.state),
        printable(pool.name) if pool else "none",
        str(pool.generation) if pool and pool.generation is not None else "",
        str(len(pool.tables)) if pool else "",
        str(len(report.readers)),
        f"{report.bandwidth / 1e9:.3g} GB/s" if report.bandwidth else "",
        f"{report.latency * 1e6:.3g} us" if report.latency else "",
        took,
    )


def _text(finding: Finding) -> str:
    name = f"{finding.probe} of {finding.object}" if finding.object else finding.probe
    return f"{finding.state}: {name}: {finding.found}" + (f"; {finding.remedy}" if finding.remedy else "")


def _print_report(report: Report) -> None:
    rows = [(f.probe, printable(f.object), str(f.state), _figure(f), printable(f.found)) for f in report.findings]
    print_grid(("PROBE", "OBJECT", "STATE", ">FIGURE", "FOUND"), rows)
    for finding in report.findings:
        if finding.state is not State.OK and finding.remedy:
            name = f"{finding.probe} of {finding.object}" if finding.object else finding.probe
            print_line(printable(f"{name}: {finding.remedy}"))
    counts = {state: sum(f.state is state for f in report.findings) for state in State}
    told = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    pool = f"pool {report.pool.name} on " if report.pool else ""
    print_line(f"{pool}{report.host} is {report.state}: {told or 'nothing was asked'}")


def _figure(finding: Finding) -> str:
    figure, unit = finding.figure, finding.unit
    if figure is None:
        return ""
    if unit == "bytes":
        return size_text(int(figure))
    if unit == "seconds":
        return f"{figure * 1e6:.3g} us"
    if unit == "celsius":
        return f"{figure:g} C"
    if unit == "ratio":
        return f"{figure * 100:g} %"
    return count_text(int(figure), unit.removesuffix("s")) if unit.endswith("s") else f"{figure:g}"


COMMANDS = (health,)
