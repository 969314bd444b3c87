# SPDX-License-Identifier: Apache-2.0
"""Engram memory tables in a rack's shared CXL memory."""

from __future__ import annotations
