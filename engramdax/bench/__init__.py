# SPDX-License-Identifier: Apache-2.0
"""What `engramdax bench` measures gathers with: tables, ids, contenders, and the order in which they run.

Nothing here is needed to serve a table.
"""

from __future__ import annotations
