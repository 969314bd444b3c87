# SPDX-License-Identifier: Apache-2.0
"""Rows of the pool in GPU memory: read by the GPU itself, copied by way of the CPU, or hot in its own memory.

From below: driver, memory and streams; arrays of other libraries; registration and kernels; hot, lane, mix and
calibration; part, formats, plans, routes, forms and calls, which make a launch of a call; table, which has them all,
and host_rounds for ids on the host; prefetcher above tables. ranks and paths say who may have a lane.

Needs `pip install 'engramdax[cuda]'` and an NVIDIA driver; nothing here is imported before it is asked for.
"""

from __future__ import annotations
