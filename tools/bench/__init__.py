# SPDX-License-Identifier: Apache-2.0
"""Benchmarks of whole commands against what a user would do without them."""
