# SPDX-License-Identifier: Apache-2.0
"""The devices of a host: what is there, and whether a pool can live on it."""

from __future__ import annotations
