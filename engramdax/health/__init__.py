# SPDX-License-Identifier: Apache-2.0
"""Whether a pool is whole and healthy, as one host sees it, and whether all hosts see the same."""

from __future__ import annotations
