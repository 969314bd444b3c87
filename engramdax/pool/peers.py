# SPDX-License-Identifier: Apache-2.0
"""What other hosts say of a pool: which generations their readers hold, and whether a writer lives there.

Freeing space and taking a pool over need proof from every admitted host. A host that does not answer has not
answered: space stays retired, a take-over stays without effect, until it does or until an operator vouches for it.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

from engramdax.errors import EngramdaxError, ParameterError
from engramdax.fleet import SETTING, Answered, NoAnswerError, configured_fleet, nodes_of
from engramdax.warning import warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from engramdax.fleet import Fleet
    from engramdax.format.directory import Host

ENVIRONMENT: Final = "ENGRAMDAX_ASK"
TIMEOUT_SECONDS: Final = 20

_UNREADABLE: Final = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What reading something that is no answer of `engramdax info --json` ends with."""

UNASKED: Final = f'nothing says how to ask: give --hosts NODESET, or write hosts = "NODESET" into {SETTING}'


class Answer(NamedTuple):
    """What one host says. Of a pool that nobody uses there: no generations, no writer."""

    pinned: tuple[int, ...]
    """The generations that its readers hold; 0 stands for all, while a reader reads the directory."""
    writing: bool
    """Whether a process there holds the right to write."""

    def to_json(self, host: UUID) -> dict[str, Any]:
        """Give what `engramdax info --json` prints under "here"."""
        return {"host": str(host), "pinned": list(self.pinned), "writing": self.writing}


class Peers(Protocol):
    """The channel to the other admitted hosts."""

    @property
    def problems(self) -> Sequence[str]:
        """What stood in the way of answers to the last question, a line each."""

    def ask(self, hosts: Sequence[Host], pool: UUID) -> dict[Host, Answer | None]:
        """Ask these hosts, now: an answer is a fact of a moment after the question. None: one did not answer."""


class NoPeers:
    """No channel: nobody answers."""

    problems = (UNASKED,)

    def ask(self, hosts: Sequence[Host], pool: UUID) -> dict[Host, Answer | None]:
        """Give no answers."""
        del pool
        return dict.fromkeys(hosts)


class FleetPeers:
    """A channel to the hosts of a fleet: all are asked at once, and each says itself which of the pool's it is.

    EngramdaxError where there is no such set of nodes, or no ClusterShell. A node that took all its time is not asked
    again: of several questions that one command asks, a host that hangs holds up the first.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.problems: list[str] = []
        self._fleet = fleet
        self._nodes = nodes_of(fleet.hosts)
        self._slow: dict[str, str] = {}

    def ask(self, hosts: Sequence[Host], pool: UUID) -> dict[Host, Answer | None]:
        """Ask all nodes."""
        self.problems = list(self._slow.values())
        found: dict[UUID, Answer] = {}
        nodes = [node for node in self._nodes if node not in self._slow]
        try:
            outputs = self._fleet.ask(["info", "--json", "--pool", str(pool)], nodes=nodes)
        except EngramdaxError as e:  # no ssh
            self.problems.append(str(e))
            outputs = []
        for output in outputs:
            try:
                host, answer = _read(output.document("here"), pool)
            except NoAnswerError as e:  # said nothing, or what proves nothing
                problem = f"{output.host}: {e.problem}"
                self.problems.append(problem)
                if e.answered is Answered.TIMEOUT:
                    self._slow[output.host] = problem
                continue
            except _UNREADABLE as e:
                self.problems.append(f"{output.host}: what it said is no answer: {e!r}")
                continue
            # Two nodes with one id, a clone or one host by two names: what holds of one of them holds.
            before = found.get(host, Answer((), writing=False))
            found[host] = Answer((*before.pinned, *answer.pinned), before.writing or answer.writing)
        missing = [host.name for host in hosts if host.id not in found]
        if missing and not self.problems:
            self.problems.append(f"no node of {self._fleet.hosts} says that it is {' or '.join(missing)}")
        return {host: found.get(host.id) for host in hosts}


class CommandPeers:
    """A channel made of a command that runs `engramdax info --json` on the other host.

    `template` is split as a shell would, then {host}, {id} and {pool} are filled in. ParameterError where it cannot be.
    """

    def __init__(self, template: str) -> None:
        self.problems: list[str] = []
        try:
            self._words = shlex.split(template)
        except ValueError as e:  # a quotation without an end
            raise ParameterError(f"{ENVIRONMENT}={template!r} is ignored: {e}", remedy="correct or unset it") from None

    def ask(self, hosts: Sequence[Host], pool: UUID) -> dict[Host, Answer | None]:
        """Run the command for each host, at once."""
        with ThreadPoolExecutor(max_workers=max(len(hosts), 1)) as threads:
            said = dict(zip(hosts, threads.map(lambda host: self._ask(host, pool), hosts), strict=True))
        self.problems = [f"{host.name}: {one}" for host, one in said.items() if isinstance(one, str)]
        return {host: None if isinstance(one, str) else one for host, one in said.items()}

    def _ask(self, host: Host, pool: UUID) -> Answer | str:
        """Run the command, and give the answer, or say why it gave none: of another host it is none."""
        places = {"{host}": host.name, "{id}": str(host.id), "{pool}": str(pool)}
        words = []
        for word in self._words:
            for place, value in places.items():
                word = word.replace(place, value)  # noqa: PLW2901
            words.append(word)
        try:
            done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
            answering, answer = _read(json.loads(done.stdout), pool)
        except subprocess.CalledProcessError as e:
            lines = e.stderr.decode(errors="replace").strip().splitlines()
            return f"`{words[0]}` ended with {e.returncode}: {lines[-1] if lines else 'it said nothing'}"
        except (OSError, subprocess.SubprocessError, NoAnswerError) as e:
            return str(e)
        except _UNREADABLE as e:
            return f"what it said is no answer: {e!r}"
        return answer if answering == host.id else f"host {answering} answered"


def _read(value: Any, pool: UUID) -> tuple[UUID, Answer]:
    """Read what `engramdax info --json` says: which host that is, and its answer.

    NoAnswerError for what is no answer of this pool, one of _UNREADABLE for what is none at all.
    """
    if UUID(value["uuid"]) != pool:
        raise NoAnswerError(Answered.RUBBISH, f"it sees pool {value['uuid']} there")
    here = value["here"]
    if here is None:
        raise NoAnswerError(Answered.FAILED, "engramdax is not root there: nobody else sees who maps the device")
    pinned = here["pinned"]
    if (
        type(pinned) is not list
        or any(type(n) is not int or n < 0 for n in pinned)
        or type(here["writing"]) is not bool
    ):
        raise ValueError("a generation or a flag is none")
    return UUID(here["host"]), Answer(tuple(pinned), here["writing"])


def configured_peers() -> Peers:
    """Give the channel that ENGRAMDAX_ASK names (`ssh {host} engramdax info --json --pool {pool}`), or fleet.toml."""
    template = os.environ.get(ENVIRONMENT, "")
    try:
        if template.strip():
            return CommandPeers(template)
        fleet = configured_fleet()
        return NoPeers() if fleet is None else FleetPeers(fleet)
    except EngramdaxError as e:
        # Nobody answers then, which costs no data; reading goes on all the same.
        warn(str(e), RuntimeWarning)
        return NoPeers()
