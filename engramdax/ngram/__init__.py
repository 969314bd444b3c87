# SPDX-License-Identifier: Apache-2.0
"""Engram addressing: from token ids to the rows of the n-gram tables, bit for bit as the models do it."""

from __future__ import annotations

from engramdax.ngram.hasher import Hasher
from engramdax.ngram.layout import Layout
from engramdax.ngram.token_map import build_token_map

__all__ = ["Hasher", "Layout", "build_token_map"]
