# SPDX-License-Identifier: Apache-2.0
"""Steps that are all done or all undone: what `--dry-run` prints and a failure rolls back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclass(frozen=True, slots=True)
class Step:
    """One change to the host or the media. `undo` is called if a later step fails."""

    what: str
    do: Callable[[], object]
    undo: Callable[[], object] | None = None


def carry_out(steps: Sequence[Step]) -> None:
    """Do all steps in order; at an error undo those done, the last first, and raise it."""
    done: list[Step] = []
    try:
        for step in steps:
            done.append(step)
            step.do()
    except BaseException as e:
        # The step that failed has cleaned up after itself.
        for problem in undo(done[:-1]):
            e.add_note(problem)
        raise


def undo(steps: Sequence[Step]) -> list[str]:
    """Undo steps that were done, the last first; says what could not be undone."""
    problems = []
    for step in reversed(steps):
        if step.undo is None:
            continue
        try:
            step.undo()
        except Exception as undoing:  # noqa: BLE001 - the others are to be undone all the same
            problems.append(f"undoing «{step.what}» failed too: {undoing}")
    return problems
