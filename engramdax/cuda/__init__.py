# SPDX-License-Identifier: Apache-2.0
"""Rows of the pool in GPU memory: registration, kernels, hot rows, and the arrays of other libraries.

Needs `pip install 'engramdax[cuda]'` and an NVIDIA driver; nothing here is imported before it is asked for.
"""

from __future__ import annotations
