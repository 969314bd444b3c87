# SPDX-License-Identifier: Apache-2.0
"""Which tests every run has: in emulated hosts some take longer than all others together, and `make rack` has them."""

from __future__ import annotations

import os

import pytest

ALL = bool(os.environ.get("ENGRAMDAX_ALL"))
LONG = pytest.mark.skipif(not ALL, reason="takes minutes in emulated hosts; `make rack` (ENGRAMDAX_ALL=1) runs it")
