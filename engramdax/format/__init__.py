# SPDX-License-Identifier: Apache-2.0
"""The on-media format, version 1: pure functions between bytes and dataclasses, no I/O."""

from __future__ import annotations
