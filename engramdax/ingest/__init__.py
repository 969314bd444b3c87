# SPDX-License-Identifier: Apache-2.0
"""Readers of table files: .bin, .npy, .safetensors and DeepSeek-V4.1 checkpoints."""

from __future__ import annotations
