# SPDX-License-Identifier: Apache-2.0
"""docs/errors.md lists every error with its exit code and its other bases."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import engramdax
from engramdax import errors
from engramdax.errors import EngramdaxError

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()
LINE = re.compile(r"^\| `(\w+)` \| (?:`(\w+)`)? ?\| (\d) \| (.+) \|$", re.MULTILINE)
CLASSES = {
    name: value
    for name, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, EngramdaxError) and value is not EngramdaxError
}


def test_the_table_names_every_error_once() -> None:
    assert sorted(name for name, *_ in LINE.findall(PAGE)) == sorted(CLASSES)


def test_exit_codes_are_those_of_the_classes() -> None:
    found = {name: int(code) for name, _, code, _ in LINE.findall(PAGE)}
    assert found == {name: value.exit_code for name, value in CLASSES.items()}


def test_other_bases_are_those_of_the_classes() -> None:
    found = {name: base for name, base, *_ in LINE.findall(PAGE)}
    own = {name: [b.__name__ for b in value.__bases__ if b is not EngramdaxError] for name, value in CLASSES.items()}
    assert found == {name: "".join(bases) for name, bases in own.items()}


def test_every_error_can_be_had_from_the_package() -> None:
    for name, value in {**CLASSES, "EngramdaxError": EngramdaxError}.items():
        assert getattr(engramdax, name) is value
        assert name in engramdax.__all__


def test_every_class_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(?:engramdax\.)?(\w+(?:Error|Warning))`", PAGE))
    builtin = {"OSError", "ValueError", "IndexError", "KeyError", "RuntimeError", "MemoryError", "RuntimeWarning"}
    assert named - builtin <= set(engramdax.__all__)
