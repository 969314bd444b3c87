# SPDX-License-Identifier: Apache-2.0
"""What `discover --watch` makes of two states of a host; real events are the rack's business."""

from __future__ import annotations

from dataclasses import replace

from trees import Captured

from engramdax.devices import watch
from engramdax.devices.fitness import Fitness, Verdict, assess
from engramdax.devices.tree import DaxDevice, Tree


def state(tree: Tree, found: tuple[Fitness, ...] | None = None) -> watch.State:
    return watch._state(tree, assess(tree) if found is None else found)


def names(before: watch.State, now: watch.State) -> list[tuple[str, str]]:
    return [(c.action, c.part.name) for c in watch._difference(before, now)]


def test_same_state_is_no_change(captured: Captured) -> None:
    tree = captured("devdax-h0").read()
    assert names(state(tree), state(captured("devdax-h0").read())) == []


def test_verdicts_that_are_known_are_kept_for_the_next_state(captured: Captured) -> None:
    host = captured("devdax-h0")
    before, now = host.read(), host.read()
    found = assess(before)
    assert names(state(before, found), state(now, assess(now, known=found))) == []


def test_what_a_region_brings_comes_with_it_and_goes_before_it(captured: Captured) -> None:
    tree = captured("devdax-h0").read()
    (gone,) = (d for d in tree.dax_devices if d.name == "dax2.0")
    without = replace(
        tree,
        dax_devices=tuple(d for d in tree.dax_devices if d != gone),
        dax_regions=tuple(r for r in tree.dax_regions if r != gone.region),
        cxl_regions=tuple(r for r in tree.cxl_regions if r != gone.cxl_region),
    )
    names_of_all = [p.name for p in (gone, gone.region, gone.cxl_region) if p]
    away, back = names(state(tree), state(without)), names(state(without), state(tree))
    assert [n for a, n in away if a == "removed"] == names_of_all
    assert [n for a, n in back if a == "added"] == names_of_all[::-1]


def test_another_verdict_on_the_same_device_is_a_change(captured: Captured) -> None:
    tree = captured("devdax-h0").read()
    device = tree.dax_devices[0]
    before, now = (state(tree, (Fitness(device, v, ""),)) for v in (Verdict.FIT, Verdict.POOL))
    (change,) = watch._difference(before, now)
    assert (change.action, change.part) == ("changed", device)
    assert change.fitness is not None
    assert change.fitness.verdict is Verdict.POOL


def test_namesakes_of_different_kinds_are_kept_apart(captured: Captured) -> None:
    # dax0.0 is a dax device and the nvdimm personality that is its dax region.
    tree = captured("devdax-h0").read()
    kinds = {kind for kind, name in state(tree) if name == "dax0.0"}
    assert len(kinds) == 2
    assert DaxDevice in kinds
