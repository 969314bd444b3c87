# SPDX-License-Identifier: Apache-2.0
"""Peers: other people's gathers, found or installed when a benchmark runs; never a dependency."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from engramdax import host

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

REQUIREMENTS: Final = {"torch": "torch==2.13.0", "engramdb": "engramdb-python==0.3.0"}
"""What pip installs for each module. A peer that is there already is taken in the version it has."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A module that can be imported once `path`, if there is one, is in sys.path; or why there is none."""

    path: Path | None = None
    absent: str = ""


def find_peer(module: str, directory: Path | None, say: Callable[[str], None]) -> Peer:
    """Find a peer in `directory`, else where Python finds it, else in the cache, where pip puts it first."""
    if directory is not None and (directory / module).is_dir():
        return Peer(directory)
    if importlib.util.find_spec(module) is not None:
        return Peer()
    requirement = REQUIREMENTS[module]
    cached = cache_dir() / f"{requirement}-{sys.implementation.cache_tag}"
    if (cached / module).is_dir():
        return Peer(cached)
    say(f"installing {requirement} into {cached}")
    return _install(requirement, cached)


def cache_dir() -> Path:
    """Where this user's peers are kept."""
    return host.cache_dir() / "peers"


def _install(requirement: str, target: Path) -> Peer:
    fresh = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        fresh.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "--no-input", "--disable-pip-version-check", "install", "--quiet"]
        done = subprocess.run([*pip, "--target", fresh, requirement], capture_output=True, text=True, check=False)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.strip()]
            return Peer(absent=f"pip cannot install {requirement}: {errors[-1] if errors else 'no reason given'}")
        fresh.rename(target)
    except OSError as e:
        return Peer(absent=f"{target} cannot be written: {e.strerror}")
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Peer(target)
