# SPDX-License-Identifier: Apache-2.0
"""The reports of many hosts: asked for, read with suspicion, and compared."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from engramdax.fleet import Answered, NoAnswerError
from engramdax.health.finding import Finding, State, critical, ok, unknown, warning, worst
from engramdax.health.report import FORMAT, PoolSeen, Report

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from engramdax.fleet import Fleet, Output

T = TypeVar("T", bound="Hashable")

SLOWER: Final = 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of asking one host."""

    host: str
    answered: Answered
    seconds: float
    report: Report | None = None
    problem: str = ""
    """Why there is no report."""

    @property
    def state(self) -> State:
        """That of its report; unknown without one."""
        return self.report.state if self.report else State.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        """Give the form that `--json` prints."""
        return {
            "host": self.host,
            "answered": str(self.answered),
            "seconds": self.seconds,
            "problem": self.problem,
            "report": self.report.to_json() if self.report else None,
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """All answers, and what differs between them."""

    answers: tuple[Answer, ...]
    findings: tuple[Finding, ...]
    """Objects are hosts, as they were named in the question."""

    @property
    def state(self) -> State:
        """The worst of all hosts and of the comparison."""
        return worst([*(a.state for a in self.answers), *(f.state for f in self.findings)])

    def to_json(self) -> dict[str, Any]:
        """Give the form that `--json` prints."""
        return {
            "format": FORMAT,
            "state": str(self.state),
            "hosts": [a.to_json() for a in self.answers],
            "findings": [f.to_json() for f in self.findings],
        }


def examine_hosts(fleet: Fleet, options: Sequence[str]) -> Comparison:
    """Ask all hosts at once for their reports, and compare them; `options` are those of `health`.

    A host that saw an older directory than others is asked again: a table may have been published meanwhile.
    """
    arguments = ["health", "--json", *options]
    answers = {output.host: _answer(output) for output in fleet.ask(arguments)}
    if behind := _behind(list(answers.values())):
        answers |= {output.host: _answer(output) for output in fleet.ask(arguments, nodes=behind)}
    listed = tuple(answers.values())
    return Comparison(listed, tuple(compare(listed)))


def _answer(output: Output) -> Answer:
    try:
        report = Report.from_json(output.document("findings"))
    except NoAnswerError as e:
        return Answer(output.host, e.answered, output.seconds, problem=e.problem)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        problem = f"what it said is no report of format {FORMAT}: {type(e).__name__}: {e}"
        return Answer(output.host, Answered.RUBBISH, output.seconds, problem=problem)
    return Answer(output.host, Answered.REPORT, output.seconds, report)


def compare(answers: Sequence[Answer]) -> list[Finding]:
    """Name the hosts that do not answer, and those whose answer is not that of the others."""
    findings = [
        unknown("hosts.answer", f"{a.answered}: {a.problem}", object=a.host, remedy=f"look at it: `ssh {a.host}`")
        for a in answers
        if a.report is None
    ]
    reports = {a.host: a.report for a in answers if a.report is not None}
    if not reports:
        return findings
    if len(reports) == len(answers):
        findings.append(ok("hosts.answer", f"{len(answers)} hosts answered", figure=len(answers)))
    pools = {host: r.pool for host, r in reports.items() if r.pool is not None}
    findings += _pools(reports, pools)
    if pools:
        uuid = _common({h: p.uuid for h, p in pools.items()})
        same = {h: p for h, p in pools.items() if uuid is None or p.uuid == uuid}
        findings += _generations(same)
        findings += _tables(same)
    findings += _versions(reports)
    findings += _links(reports)
    findings += _speeds(reports)
    return findings


def _common(values: Mapping[str, T]) -> T | None:
    """Give what most hosts have; None where no value has more hosts than any other."""
    counts = Counter(values.values()).most_common(2)
    return counts[0][0] if len(counts) == 1 or counts[0][1] > counts[1][1] else None


def _odd(values: Mapping[str, T]) -> tuple[T | None, list[str]]:
    """Give what most have, and the hosts that have something else: all of them where it cannot be told who is right."""
    if len(set(values.values())) <= 1:
        return next(iter(values.values()), None), []
    common = _common(values)
    return common, [host for host, value in values.items() if common is None or value != common]


def _others(values: Mapping[str, Any], host: str, common: Any, text: Callable[[Any], str]) -> str:
    if common is not None:
        return f"{text(common)} on the others"
    return ", ".join(f"{text(v)} on {h}" for h, v in values.items() if h != host and v != values[host])


def _pools(reports: Mapping[str, Report], pools: Mapping[str, PoolSeen]) -> list[Finding]:
    found = [
        critical("hosts.pool", "sees no pool", object=host, remedy=f"`engramdax discover` on {host}")
        for host in reports
        if host not in pools and pools
    ]
    values = {h: f"{p.name} ({p.uuid})" for h, p in pools.items()}
    common, odd = _odd(values)
    for host in odd:
        text = f"sees pool {values[host]}, {_others(values, host, common, str)}"
        found.append(critical("hosts.pool", text, object=host, remedy="give --pool, or look what it is attached to"))
    if not found and pools:
        found.append(ok("hosts.pool", f"{len(pools)} hosts see pool {next(iter(values.values()))}"))
    return found


def _age(pool: PoolSeen) -> tuple[int, int] | None:
    return (pool.epoch, pool.generation) if pool.epoch is not None and pool.generation is not None else None


def _behind(answers: Sequence[Answer]) -> set[str]:
    """Give the hosts that see an older directory than others see of the same pool."""
    seen = {a.host: a.report.pool for a in answers if a.report and a.report.pool}
    uuid = _common({h: p.uuid for h, p in seen.items()}) if seen else None
    ages = {h: age for h, p in seen.items() if p.uuid == uuid and (age := _age(p)) is not None}
    newest = max(ages.values(), default=None)
    return {host for host, age in ages.items() if age != newest}


def _generations(pools: Mapping[str, PoolSeen]) -> list[Finding]:
    ages = {h: age for h, p in pools.items() if (age := _age(p)) is not None}
    if not ages:
        return []
    epoch, generation = newest = max(ages.values())
    found = [
        critical(
            "hosts.generation",
            f"sees generation {age[1]}, epoch {age[0]}, where others see {generation}, epoch {epoch}",
            object=host,
            figure=age[1],
            remedy="it reads stale or other memory: compare the devices behind both pools",
        )
        for host, age in ages.items()
        if age != newest
    ]
    return found or [ok("hosts.generation", f"generation {generation}, epoch {epoch}", figure=generation)]


def _tables(pools: Mapping[str, PoolSeen]) -> list[Finding]:
    ages = {h: age for h, p in pools.items() if (age := _age(p)) is not None}
    newest = max(ages.values(), default=None)
    # Of another generation other tables are no news.
    level = {h: pools[h] for h, age in ages.items() if age == newest}
    lists = {h: tuple((t.name, t.load, t.checksums) for t in p.tables) for h, p in level.items()}
    common, odd = _odd(lists)
    found = [
        critical(
            "hosts.tables",
            f"sees other tables or loads: {_names(lists[host])}; {_others(lists, host, common, _names)}",
            object=host,
            remedy="it reads stale or other memory: compare the devices behind both pools",
        )
        for host in odd
    ]
    if not found and lists:
        found.append(ok("hosts.tables", f"{len(next(iter(lists.values())))} tables with the same loads and checksums"))
    return found + _bytes(level)


def _names(tables: Sequence[tuple[str, str, int]]) -> str:
    return ", ".join(f"{name} ({load[:8]})" for name, load, _ in tables) or "none"


def _bytes(pools: Mapping[str, PoolSeen]) -> list[Finding]:
    loads: dict[tuple[str, str], dict[str, str]] = {}
    for host, pool in pools.items():
        for table in pool.tables:
            if table.digest is not None:
                loads.setdefault((table.name, table.load), {})[host] = table.digest
    found = []
    for (name, _), digests in loads.items():
        common, odd = _odd(digests)
        for host in odd:
            text = f"sees other bytes of table {name}: {digests[host]}, {_others(digests, host, common, str)}"
            remedy = "see whether its memory is encrypted by the host (SME, TME), and `engramdax verify` there"
            found.append(critical("hosts.bytes", text, object=host, remedy=remedy))
    if not found and loads:
        found.append(ok("hosts.bytes", f"the blocks looked at of {len(loads)} tables are the same"))
    return found


def _versions(reports: Mapping[str, Report]) -> list[Finding]:
    found = []
    for component in sorted({c for r in reports.values() for c in r.versions}):
        values = {h: r.versions.get(component, "none") for h, r in reports.items()}
        common, odd = _odd(values)
        for host in odd:
            text = f"{component} {values[host]}, {_others(values, host, common, str)}"
            found.append(
                warning("hosts.versions", text, object=host, remedy=f"install the same {component} everywhere")
            )
    return found or [ok("hosts.versions", "the same versions of engramdax, kernel and tools")]


def _links(reports: Mapping[str, Report]) -> list[Finding]:
    found = []
    serials = sorted({s for r in reports.values() for s in r.links})
    for serial in serials:
        values = {h: r.links[serial] for h, r in reports.items() if serial in r.links}
        common, odd = _odd(values)
        for host in odd:
            text = f"memdev {serial}: {values[host]}, {_others(values, host, common, str)}"
            found.append(
                warning("hosts.links", text, object=host, remedy="reseat card and cable, and look at the slot")
            )
    return found or ([ok("hosts.links", "the same links")] if serials else [])


def _speeds(reports: Mapping[str, Report]) -> list[Finding]:
    found = []
    bandwidths = {h: r.bandwidth for h, r in reports.items() if r.bandwidth}
    latencies = {h: r.latency for h, r in reports.items() if r.latency}
    if len(bandwidths) > 1:
        usual = statistics.median_high(bandwidths.values())
        for host, bandwidth in bandwidths.items():
            if bandwidth * SLOWER < usual:
                text = f"gathers {bandwidth / 1e9:.3g} GB/s, others {usual / 1e9:.3g}"
                found.append(warning("hosts.speed", text, object=host, figure=bandwidth, unit="bytes", remedy=_SLOW))
    if len(latencies) > 1:
        usual = statistics.median_low(latencies.values())
        for host, latency in latencies.items():
            if latency > usual * SLOWER:
                text = f"takes {latency * 1e6:.3g} us for a row, others {usual * 1e6:.3g}"
                found.append(warning("hosts.speed", text, object=host, figure=latency, unit="seconds", remedy=_SLOW))
    return found or ([ok("hosts.speed", "no host is much slower than others")] if len(bandwidths) > 1 else [])


_SLOW: Final = "see what else uses its memory and CPUs; look at its link (pcie.link)"
