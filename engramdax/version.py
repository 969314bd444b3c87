# SPDX-License-Identifier: Apache-2.0
"""The version, in the one place that the package, the command line and the build read it from."""

from __future__ import annotations

__version__ = "0.1.0"
