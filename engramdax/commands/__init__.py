# SPDX-License-Identifier: Apache-2.0
"""The command line, one module per group of commands."""

from __future__ import annotations
