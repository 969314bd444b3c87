# SPDX-License-Identifier: Apache-2.0
"""Why a machine cannot have a rack, in the words that a skipped test gives."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from tools.rack.errors import UnavailableError
from tools.rack.prefix import cache_dir, set_up


def test_other_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    with pytest.raises(UnavailableError, match="this machine is aarch64"):
        set_up()


def test_missing_apt_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGRAMDAX_RACK_DIR", str(tmp_path / "rack"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="no apt-get, apt-cache, dpkg-deb, tar here"):
        set_up()
    assert [path.name for path in (tmp_path / "rack").iterdir()] == ["lock"]


def test_apt_without_a_debian_archive_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGRAMDAX_RACK_DIR", str(tmp_path / "rack"))
    for name in ("apt-get", "apt-cache", "dpkg-deb", "tar"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnavailableError, match="not configured for a Debian archive"):
        set_up()


def test_place_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENGRAMDAX_RACK_DIR", str(tmp_path / "file" / "rack"))
    with pytest.raises(UnavailableError, match=r"cannot make .*Not a directory; ENGRAMDAX_RACK_DIR names another"):
        set_up()


def test_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ENGRAMDAX_RACK_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "engramdax" / "rack"
