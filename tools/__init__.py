# SPDX-License-Identifier: Apache-2.0
"""What developers run: benchmarks, checks, preparations. Not part of the package."""
