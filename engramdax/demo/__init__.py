# SPDX-License-Identifier: Apache-2.0
"""What `engramdax demo` puts the package to work on: a small checkpoint, real text, an independent check.

Nothing here is needed to serve a table.
"""

from __future__ import annotations
