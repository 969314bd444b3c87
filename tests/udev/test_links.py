# SPDX-License-Identifier: Apache-2.0
"""Pools found by the links that udev makes, and udev asked to look at a device. The real udevd is in tests/rack."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest

import engramdax
from engramdax.devices import udev
from engramdax.devices.udev import LinkedPool, linked_pools
from engramdax.errors import BackingError, ParameterError
from engramdax.pool.records import read_records, resolve, write_record


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that stands for /dev/engramdax."""
    folder = tmp_path / "links"
    for name in ("by-name", "by-id"):
        (folder / name).mkdir(parents=True)
    monkeypatch.setattr(udev, "LINKS", folder)
    return folder


def link(links: Path, path: Path, uuid: UUID, name: str) -> None:
    (links / "by-id" / f"pool-{uuid}").symlink_to(path)
    if name:
        (links / "by-name" / name).symlink_to(path)


def uuid_of(path: Path) -> UUID:
    with engramdax.open(path) as pool:
        return pool.uuid


def test_links_tell_uuid_name_and_device(links: Path, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("dax0.0", "dax1.0")]
    uuids = [uuid4(), uuid4()]
    for path, uuid, name in zip(paths, uuids, ("first", ""), strict=True):
        path.touch()
        link(links, path, uuid, name)
    assert linked_pools() == {uuids[0]: LinkedPool("first", paths[0]), uuids[1]: LinkedPool("", paths[1])}


def test_links_that_lead_nowhere_or_are_not_udev_s_are_passed_over(links: Path, tmp_path: Path) -> None:
    path, uuid = tmp_path / "dax0.0", uuid4()
    path.touch()
    link(links, path, uuid, "here")
    link(links, tmp_path / "gone", uuid4(), "gone")
    (links / "by-id" / "cxl-0xe1").symlink_to(path)
    (links / "by-id" / "pool-junk").symlink_to(path)
    (links / "by-id" / f"pool-{uuid4()}").touch()
    assert linked_pools() == {uuid: LinkedPool("here", path)}


def test_a_host_without_links_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(udev, "LINKS", tmp_path / "nowhere")
    assert linked_pools() == {}


def test_a_recorded_pool_is_found_where_udev_says_it_is_now(
    links: Path, make_pool: Callable[..., Path], tmp_path: Path
) -> None:
    path, other = make_pool(name="alpha"), make_pool(name="beta")
    uuid = uuid_of(path)
    # After a boot the device that was alpha's may be beta's.
    record = next(r for r in read_records() if r.uuid == str(uuid))
    write_record(dataclasses.replace(record, path=str(other)))
    with pytest.raises(BackingError):
        resolve("alpha")
    link(links, path, uuid, "alpha")
    assert resolve("alpha") == resolve(str(uuid)) == path
    assert resolve("beta") == other


def test_a_pool_that_this_user_cannot_read_is_found_by_its_links(links: Path, tmp_path: Path) -> None:
    path, uuid = tmp_path / "dax0.0", uuid4()
    path.touch()  # nothing that could be read as a pool, as for a user without permission
    link(links, path, uuid, "hidden")
    assert resolve("hidden") == resolve(str(uuid)) == resolve(None) == path


def test_a_link_to_what_is_another_pool_by_now_is_not_believed(links: Path, make_pool: Callable[..., Path]) -> None:
    path = make_pool(name="alpha")
    link(links, path, uuid4(), "former")
    assert resolve(None) == path
    with pytest.raises(BackingError, match="there is no pool former"):
        resolve("former")


def test_two_pools_of_one_name_are_ambiguous_whatever_the_link_says(
    links: Path, make_pool: Callable[..., Path], tmp_path: Path
) -> None:
    path = make_pool(name="same")
    link(links, path, uuid_of(path), "same")
    moved = path.rename(tmp_path / "first")
    second = make_pool(name="same")
    (links / "by-id" / f"pool-{uuid_of(moved)}").unlink()
    link(links, moved, uuid_of(moved), "")
    (links / "by-name" / "same").unlink()
    (links / "by-name" / "same").symlink_to(second)
    record = next(r for r in read_records() if r.uuid == str(uuid_of(moved)))
    assert record.name == "same"
    with pytest.raises(ParameterError, match="2 pools are named same"):
        resolve("same")
    assert resolve(str(uuid_of(moved))) == moved


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a udevadm in place, and a socket as if udevd ran."""
    (tmp_path / "udevadm").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "udevadm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "control").touch()
    monkeypatch.setattr(udev, "CONTROL", tmp_path / "control")


def test_udev_that_is_not_there_or_does_not_answer_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, "exit 0")
    assert udev.trigger(Path("/dev/dax0.0"))
    program(tmp_path, monkeypatch, "echo 'Failed to open the device' >&2; exit 1")
    assert not udev.trigger(Path("/dev/dax0.0"))
    monkeypatch.setattr(udev, "SETTLE_SECONDS", 0.2)
    program(tmp_path, monkeypatch, "exec sleep 60")
    assert not udev.trigger(Path("/dev/dax0.0"))
    (tmp_path / "control").unlink()
    assert not udev.trigger(Path("/dev/dax0.0"))
    monkeypatch.setattr(udev, "udevadm", lambda: None)
    assert not udev.trigger(Path("/dev/dax0.0"))
