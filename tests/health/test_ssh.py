# SPDX-License-Identifier: Apache-2.0
"""`health --hosts` over real ssh: each host is an sshd of its own on a port of the loopback."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engramdax.errors import BackingError
from engramdax.health.report import examine

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
SECONDS = 60

pytestmark = pytest.mark.skipif(
    SSHD is None or shutil.which("ssh") is None, reason="openssh-server or openssh-client is not installed"
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Network:
    """Hosts that ssh knows by a configuration and keys of its own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
        (folder / "authorized").write_bytes((folder / "user.pub").read_bytes())
        config = folder / "config" / "clustershell"
        config.mkdir(parents=True)
        (config / "groups.conf").write_text('[Main]\ndefault: test\n[test]\nmap: [ "$GROUP" = rack ] && echo "a,b"\n')
        self._ports: dict[str, int] = {}

    def knows(self, host: str, port: int) -> None:
        """Let ssh find a host at a port."""
        self._ports[host] = port
        lines = [f"Host {name}\n Port {number}\n" for name, number in self._ports.items()]
        common = (
            f"Host *\n HostName 127.0.0.1\n User {getpass.getuser()}\n IdentityFile {self.folder}/user\n"
            f" IdentitiesOnly yes\n StrictHostKeyChecking no\n UserKnownHostsFile /dev/null\n LogLevel ERROR\n"
        )
        (self.folder / "ssh_config").write_text("".join(lines) + common)

    def sshd(self, host: str, command: str) -> subprocess.Popen[bytes]:
        """Start an sshd that answers every question with a command; "$SSH_ORIGINAL_COMMAND" is what was asked."""
        port = free_port()
        script = self.folder / f"{host}.sh"
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
        config = self.folder / f"{host}.conf"
        config.write_text(
            f"Port {port}\nListenAddress 127.0.0.1\nHostKey {self.folder}/host\nPidFile none\nUsePAM no\n"
            f"AuthorizedKeysFile {self.folder}/authorized\nStrictModes no\nPasswordAuthentication no\n"
            f"PermitRootLogin yes\nForceCommand {script}\n"
        )
        if os.geteuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # of its privilege separation
        assert SSHD is not None
        log = self._stack.enter_context((self.folder / f"{host}.log").open("wb"))
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", config], stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        self.knows(host, port)
        end = time.monotonic() + 20
        while time.monotonic() < end:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as one:
                if one.recv(4) == b"SSH-":
                    return process
            assert process.poll() is None, (self.folder / f"{host}.log").read_text()
            time.sleep(0.05)
        raise BackingError(f"sshd of {host} does not answer")

    def speaks(self, host: str, text: bytes) -> None:
        """Let something that is no sshd listen there, and say a text to everybody."""
        server = self._stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.knows(host, server.getsockname()[1])

        def serve() -> None:
            with ExitStack() as kept, suppress(OSError):
                while True:
                    one = kept.enter_context(server.accept()[0])
                    one.sendall(text)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(server.shutdown, socket.SHUT_RDWR)

    def health(self, hosts: str, *options: str) -> tuple[int, Any]:
        """Give exit code and JSON."""
        command = [
            sys.executable,
            "-m",
            "engramdax",
            "health",
            "--hosts",
            hosts,
            "--json",
            "--ssh-options",
            f"-F {self.folder}/ssh_config",
            *options,
        ]
        environment = {**os.environ, "XDG_CONFIG_HOME": str(self.folder / "config")}
        environment["CLUSTERSHELL_CFGDIR"] = str(self.folder / "config" / "clustershell")
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    (tmp_path / "network").mkdir()
    with ExitStack() as stack:
        yield Network(tmp_path / "network", stack)


@pytest.fixture
def answer(make_pool: Callable[..., Path], load_array: Callable[..., Any], tmp_path: Path) -> str:
    """Give the command of a good host: engramdax is not in the PATH of an ssh login here."""
    pool = make_pool()
    load_array(pool, "words", np.zeros((1000, 64), np.uint8))
    program = f"{shlex.quote(sys.executable)} -m engramdax"
    state = {n: f"{tmp_path}/{n}" for n in ("ENGRAMDAX_STATE_DIR", "ENGRAMDAX_RUN_DIR")}
    exports = " ".join(f"{name}={shlex.quote(value)}" for name, value in state.items())
    root = shlex.quote(str(Path(__file__).parents[2]))
    return f"cd {root}; export {exports} ENGRAMDAX_POOL={pool}; exec {program} ${{SSH_ORIGINAL_COMMAND#engramdax}}"


def answered(document: Any) -> dict[str, str]:
    return {h["host"]: h["answered"] for h in document["hosts"]}


def test_hosts_of_a_group_answer_over_ssh(network: Network, answer: str) -> None:
    for host in ("a", "b"):
        network.sshd(host, answer)
    code, document = network.health("@rack", "--skip", "pool.bandwidth", "--timeout", str(SECONDS))
    assert answered(document) == {"a": "report", "b": "report"}, document["hosts"]
    assert (code, document["state"]) == (0, "ok"), document["findings"]
    assert {h["report"]["pool"]["tables"][0]["name"] for h in document["hosts"]} == {"words"}


def test_each_way_not_to_answer_is_told_and_a_hang_costs_its_timeout_once(
    network: Network, make_pool: Callable[..., Path], tmp_path: Path
) -> None:
    (tmp_path / "report").write_text(json.dumps(examine(str(make_pool())).to_json()))
    # What the real program says, at once: the ones that hang have their whole timeout, which can be short then.
    network.sshd("good", f"cat {tmp_path}/report")
    network.sshd("garbage", "head -c 3000 /dev/urandom")
    network.sshd("hangs", "exec sleep 60")
    network.sshd("missing", "exec engramdax-is-not-here")
    network.knows("stopped", free_port())
    network.speaks("nobanner", b"")
    network.speaks("notssh", b"HTTP/1.1 400 Bad Request\r\n" * 2000)  # more lines than ssh reads
    hosts = "good,garbage,hangs,missing,stopped,nobanner,notssh"
    code, document = network.health(hosts, "--timeout", "8")
    assert code == 3
    assert answered(document) == {
        "good": "report",
        "garbage": "rubbish",
        "hangs": "timeout",
        "missing": "failed",
        "stopped": "failed",
        "nobanner": answered(document)["nobanner"],
        "notssh": "failed",
    }
    assert answered(document)["nobanner"] in ("timeout", "failed")  # ssh gives up itself after the same time
    problems = {h["host"]: h["problem"] for h in document["hosts"]}
    reports = {h["host"]: h["report"] for h in document["hosts"]}
    assert "Connection refused" in problems["stopped"]
    assert "not found" in problems["missing"]
    assert reports["good"]["state"] == "ok"


def test_sshd_that_dies_meanwhile_is_a_failure(network: Network, answer: str) -> None:
    network.sshd("good", answer)
    network.sshd("dies", "kill $PPID; exec sleep 60")
    code, document = network.health("good,dies", "--skip", "pool.bandwidth", "--timeout", "30")
    assert code == 3
    assert answered(document)["good"] == "report"
    assert answered(document)["dies"] in ("failed", "rubbish")
