# SPDX-License-Identifier: Apache-2.0
"""This host's id: kept, renewed on a clone, never guessed from a damaged file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from engramdax.errors import BackingError
from engramdax.host import host_id, run_dir, state_dir


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that holds the machine's product uuid; /etc holds no override."""
    path = tmp_path / "product_uuid"
    path.write_text("4C4C4544-0042-3510-8043-B4C04F4A3132\n")
    monkeypatch.setattr("engramdax.host.DMI_UUID", path)
    monkeypatch.setattr("engramdax.host.OVERRIDE", tmp_path / "override")
    return path


def kept() -> Path:
    return state_dir() / "host-id"


def test_the_id_is_made_once_and_kept() -> None:
    first = host_id()
    assert first.version == 4
    assert host_id() == first
    assert json.loads(kept().read_text()) == {"id": str(first), "machine": "4c4c4544-0042-3510-8043-b4c04f4a3132"}


def test_a_cloned_disk_gets_an_id_of_its_own(machine: Path) -> None:
    first = host_id()
    machine.write_text("another machine")
    second = host_id()
    assert second != first
    assert host_id() == second


def test_a_machine_that_does_not_tell_its_uuid_keeps_the_id(machine: Path) -> None:
    first = host_id()
    machine.unlink()
    assert host_id() == first


def test_an_id_made_without_a_product_uuid_stays(machine: Path) -> None:
    text = machine.read_text()
    machine.unlink()
    first = host_id()
    machine.write_text(text)
    assert host_id() == first


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        b"[]",
        b"5",
        b"null",
        b'{"id": "x", "machine": null}',
        b'{"id": 5, "machine": null}',
        b'{"machine": null}',
        b'{"id": "00000000-0000-0000-0000-000000000001"}',
        b"\xff\xfe",
        b'{"id": "00000000-0000-0000-0000-000000000001", "machine": 5}',
        b'{"id": "00000000-0000-0000-0000-000000000001", "machine": {}}',
        b"[" * 5000,
    ],
)
def test_a_damaged_file_is_told_and_not_replaced(content: bytes) -> None:
    host_id()
    kept().write_bytes(content)
    with pytest.raises(BackingError, match="host-id is damaged"):
        host_id()
    assert kept().read_bytes() == content


def test_the_override_counts_before_all(tmp_path: Path) -> None:
    chosen = uuid4()
    (tmp_path / "override").write_text(f"{chosen}\n")
    assert host_id() == chosen
    assert not kept().exists()


@pytest.mark.parametrize("content", [b"", b"alpha", b"\xff"])
def test_an_override_that_is_no_uuid_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "override").write_bytes(content)
    with pytest.raises(BackingError, match="override holds no uuid"):
        host_id()


def test_a_network_file_system_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engramdax.host.file_system", lambda _: (0x6969, 4096))
    with pytest.raises(BackingError, match=r"is on a network file system \(nfs\)"):
        host_id()


def test_a_place_that_cannot_be_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGRAMDAX_STATE_DIR", "/proc/none")
    with pytest.raises(BackingError, match="cannot make /proc/none"):
        host_id()


def test_processes_that_start_together_agree_on_one_id() -> None:
    script = "import sys; sys.stdin.readline(); from engramdax.host import host_id; print(host_id())"
    processes = [
        subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(6)
    ]
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    said = {UUID(process.communicate()[0].strip()) for process in processes}
    assert len(said) == 1


def test_directories_come_from_the_environment_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ENGRAMDAX_STATE_DIR", "/a")
    monkeypatch.setenv("ENGRAMDAX_RUN_DIR", "/b")
    assert (state_dir(), run_dir()) == (Path("/a"), Path("/b"))
    monkeypatch.delenv("ENGRAMDAX_STATE_DIR")
    monkeypatch.delenv("ENGRAMDAX_RUN_DIR")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr("os.access", lambda *_: False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    assert (state_dir(), run_dir()) == (tmp_path / "engramdax", Path("/run/user/1000/engramdax"))


def test_read_only_state_directory_gives_the_id_that_is_in_it() -> None:
    """A container has the host's directory that way."""
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        pytest.skip("only root can mount")
    known = host_id()
    program = f'mount --bind {state_dir()} {state_dir()} && mount -o remount,bind,ro {state_dir()} && exec "$@"'
    code = "from engramdax import host; host.DMI_UUID /= 'none'; print(host.host_id())"
    command = [unshare, "-m", "sh", "-c", program, "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    assert (done.stdout.strip(), done.stderr) == (str(known), "")
