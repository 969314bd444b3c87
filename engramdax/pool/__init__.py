# SPDX-License-Identifier: Apache-2.0
"""Pools: attaching to one as a reader, changing one as its writer, making and unmaking them."""

from __future__ import annotations
