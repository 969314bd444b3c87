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
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from uuid import UUID

from engramdax.errors import ParameterError

if TYPE_CHECKING:
    from engramdax.format.directory import Host

ENVIRONMENT: Final = "ENGRAMDAX_ASK"
TIMEOUT_SECONDS: Final = 20


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

    def ask(self, host: Host, pool: UUID) -> Answer | None:
        """Ask one host, now: an answer is a fact of a moment after the question. None: it did not answer."""


class NoPeers:
    """No channel: nobody answers."""

    def ask(self, host: Host, pool: UUID) -> Answer | None:
        """Give no answer."""
        del host, pool
        return None


class CommandPeers:
    """A channel made of a command that runs `engramdax info --json` on the other host.

    `template` is split as a shell would, then {host}, {id} and {pool} are filled in. ParameterError where it cannot be.
    """

    def __init__(self, template: str) -> None:
        try:
            self._words = shlex.split(template)
        except ValueError as e:  # a quotation without an end
            raise ParameterError(f"{ENVIRONMENT}={template!r} is ignored: {e}", remedy="correct or unset it") from None

    def ask(self, host: Host, pool: UUID) -> Answer | None:
        """Run the command; whatever goes wrong with it, or an answer of another host, is no answer."""
        places = {"{host}": host.name, "{id}": str(host.id), "{pool}": str(pool)}
        words = []
        for word in self._words:
            for place, value in places.items():
                word = word.replace(place, value)  # noqa: PLW2901
            words.append(word)
        try:
            done = subprocess.run(words, capture_output=True, timeout=TIMEOUT_SECONDS, check=True)
            value = json.loads(done.stdout)
            here = value["here"]
            pinned = tuple(here["pinned"])
            right = UUID(here["host"]) == host.id and UUID(value["uuid"]) == pool
            if not right or any(type(n) is not int or n < 0 for n in pinned) or type(here["writing"]) is not bool:
                return None
            return Answer(pinned, here["writing"])
        except (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def configured_peers() -> Peers:
    """Give the channel that ENGRAMDAX_ASK names, such as `ssh {host} engramdax info --json --pool {pool}`."""
    template = os.environ.get(ENVIRONMENT, "")
    try:
        return CommandPeers(template) if template.strip() else NoPeers()
    except ParameterError as e:
        # Nobody answers then, which costs no data; reading goes on all the same.
        warnings.warn(str(e), RuntimeWarning, stacklevel=2)
        return NoPeers()
