# SPDX-License-Identifier: Apache-2.0
"""The pool's own metadata: copies of the superblock, slots of the directory, generation, owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engramdax.errors import EngramdaxError, FormatError, RefusedError
from engramdax.health.finding import Finding, critical, ok, unknown, warning
from engramdax.host import host_id
from engramdax.pool.volume import read_slot

if TYPE_CHECKING:
    from collections.abc import Iterator

    from engramdax.format.directory import Directory
    from engramdax.format.superblock import Superblock
    from engramdax.health.subject import Subject
    from engramdax.media import Media

WRITE_REPAIRS: Final = (
    "the owner's next command that writes repairs it; see that the memory is sound (`engramdax verify`)"
)
PROVISION: Final = "restore the pool, or provision it anew"


def probe(subject: Subject) -> Iterator[Finding]:
    """Look at superblock and directory."""
    if subject.opened is None:
        if subject.path is not None and subject.problem is not None:
            # What cannot be opened may be whole.
            yield unknown("pool.superblock", subject.problem.problem, remedy=subject.problem.remedy)
        return
    if subject.superblock is None:
        yield _unreadable("pool.superblock", subject.problem)
        return
    superblock = subject.superblock.value
    yield _superblock(superblock, subject.superblock.problems)
    yield from _slots(subject.opened.media, superblock, subject.directory.value if subject.directory else None)
    if subject.directory is None:
        yield _unreadable("pool.directory", subject.problem)
        return
    directory = subject.directory.value
    yield _generation(subject, directory)
    yield _owner(superblock, directory)
    yield from _admission(subject, superblock, directory)


def _unreadable(probe_name: str, problem: EngramdaxError | None) -> Finding:
    if problem is None:
        return unknown(probe_name, "it could not be read")
    found, remedy = problem.problem, problem.remedy
    if isinstance(problem, FormatError):
        return critical(probe_name, found, remedy=remedy)
    return unknown(probe_name, found, remedy=remedy)


def _superblock(superblock: Superblock, problems: tuple[str, ...]) -> Finding:
    copies = len(superblock.geometry.superblocks)
    good = copies - len(problems)
    text = f"{good} of {copies} copies are good"
    if not problems:
        return ok("pool.superblock", text, figure=good, unit="copies")
    return warning(
        "pool.superblock",
        f"{text}: {'; '.join(problems)}",
        figure=good,
        unit="copies",
        remedy=WRITE_REPAIRS,
    )


def _slots(media: Media, superblock: Superblock, current: Directory | None) -> Iterator[Finding]:
    for index in (0, 1):
        name = f"slot {index}"
        try:
            slot = read_slot(media, superblock, index)
        except FormatError as e:
            if current is None:
                yield critical("pool.directory", e.problem, object=name, remedy=PROVISION)
            else:
                text = f"{e.problem}; the other slot serves"
                yield warning("pool.directory", text, object=name, remedy=WRITE_REPAIRS)
            continue
        text = f"generation {slot.generation}, epoch {slot.epoch}"
        if current is not None and slot.age < current.age:
            text = f"{text}, the other slot holds {current.generation}, epoch {current.epoch}"
            yield warning("pool.directory", text, object=name, figure=slot.generation, remedy=WRITE_REPAIRS)
        else:
            yield ok("pool.directory", text, object=name, figure=slot.generation)


def _generation(subject: Subject, directory: Directory) -> Finding:
    seen = subject.history.age
    age = directory.epoch, directory.generation
    text = f"generation {directory.generation}, epoch {directory.epoch}, {len(directory.published())} tables"
    if seen is not None and age < seen:
        text = f"the directory went back from epoch {seen[0]}, generation {seen[1]} to {age[0]}, {age[1]}"
        remedy = "compare with other hosts (`engramdax health --hosts`); what was published since is lost"
        return critical("pool.generation", text, figure=directory.generation, remedy=remedy)
    subject.history.age = age
    return ok("pool.generation", text, figure=directory.generation)


def _owner(superblock: Superblock, directory: Directory) -> Finding:
    name = next((host.name for host in directory.hosts if host.id == directory.owner), "")
    if superblock.shared and not name and all(host.id != directory.owner for host in directory.hosts):
        text = f"the owner {directory.owner} is not among the admitted hosts"
        return warning("pool.owner", text, figure=directory.epoch, remedy="`engramdax hosts` lists them")
    return ok("pool.owner", f"{name or 'the owner'} ({directory.owner})", figure=directory.epoch)


def _admission(subject: Subject, superblock: Superblock, directory: Directory) -> Iterator[Finding]:
    if not superblock.shared:
        return
    try:
        here = host_id()
    except EngramdaxError as e:
        yield unknown("pool.admission", e.problem, remedy=e.remedy)
        return
    if here in {host.id for host in directory.hosts}:
        yield ok("pool.admission", f"this host ({here}) is one of {len(directory.hosts)} admitted")
    else:
        remedy = subject.problem.remedy if isinstance(subject.problem, RefusedError) else "`engramdax hosts admit`"
        yield critical("pool.admission", f"this host ({here}) is not admitted", remedy=remedy)
