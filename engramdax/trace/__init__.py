# SPDX-License-Identifier: Apache-2.0
"""From a token trace to the rows that are worth keeping close: reading, counting, hot lists, reports."""

from __future__ import annotations
