# SPDX-License-Identifier: Apache-2.0
"""One host of a rack: a QEMU process, the agent in it, and what belongs to this host alone."""

from __future__ import annotations

import base64
import compileall
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.rack import kernel, network
from tools.rack.errors import CommandError, CommandTimeoutError, GuestGoneError, RackError
from tools.rack.initramfs import initramfs
from tools.rack.pools import Pool, device_id, kernel_parameters, machine_arguments
from tools.rack.qmp import Qmp

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tools.rack.prefix import Prefix

BOOT_SECONDS: Final = 120.0
COMMAND_SECONDS: Final = 60.0
BUTTON_SECONDS: Final = 60.0
DISK_BYTES: Final = 64 << 20
CHECKOUT: Final = Path(__file__).resolve().parents[2]

PROCESSOR: Final = ",".join(
    (
        "Haswell-noTSX",
        # With it Linux refuses to commit a region (ENXIO: cannot synchronize CPU caches).
        "-hypervisor",
        # What servers with CXL have: the product's own cache handling takes the same paths as there.
        *("+clflushopt", "+clwb"),
        # What emulation has not.
        *("-pcid", "-tsc-deadline", "-invpcid"),
    )
)


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that ended; `code` is -N after signal N."""

    code: int
    stdout: str
    stderr: str


class Guest:
    """A host; its methods may be called from several threads, one command runs at a time.

    Commands are a list of arguments, or a line for bash. They run as root in / with the checkout's environment and
    the rack's tools on their PATH.
    """

    def __init__(
        self, prefix: Prefix, folder: Path, number: int, *, hosts: int, pools: Sequence[Pool], outlives: bool
    ) -> None:
        self.name = f"h{number}"
        self.number = number
        self.folder = folder / self.name
        """Of this host alone: disk, console, sockets."""
        self._prefix = prefix
        self._rack = folder
        self._hosts = hosts
        self._outlives = outlives
        self._pools = {pool.name: pool for pool in pools}
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._connection: _Connection | None = None

    # Life and death.

    def boot(self, order: Sequence[str] | None = None, *, systemd: Path | None = None) -> None:
        """Switch the machine on and return at once; `wait_ready` waits for its agent.

        `order` names the CXL pools in the order of the ports that they are plugged into. Unless the rack outlives
        this process, the guest ends with the thread that boots it.

        With `systemd` that is process 1, and udev loads the drivers of the memory, as on a real host; the agent may
        answer before. The files in this folder lie over the guest's root.
        """
        if self.alive:
            raise RackError(f"{self.name} is running already")
        self.folder.mkdir(exist_ok=True)
        if not self._disk.exists():
            self._make_disk()
        # A guest cannot keep what it compiles, and would take seconds for that in every process.
        compileall.compile_dir(CHECKOUT / "engramdax", quiet=2)
        (self.folder / "initramfs").write_bytes(initramfs(self._prefix, udev=systemd is not None))
        for name in ("agent", "qmp", "shell"):
            (self.folder / name).unlink(missing_ok=True)
        with (self.folder / "qemu.log").open("wb") as log:
            self._process = subprocess.Popen(
                self._command(order, systemd), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        (self.folder / "pid").write_text(str(self._process.pid))

    def wait_ready(self) -> None:
        """Wait until the booted guest takes commands, and connect it to its network."""
        self._ask(BOOT_SECONDS, do="put", path="/etc/hostname", content=_encode(f"{self.name}\n".encode()))
        self.run(network.set_up_script(self.number, self._hosts, self._prefix.busybox))

    def shut_down(self) -> None:
        """End all processes, write the disk out and switch off."""
        try:
            self._ask(30, do="shut_down")
        except GuestGoneError:
            pass
        else:
            raise RackError(f"{self.name} does not switch off")
        self._wait_gone()

    def crash(self) -> None:
        """Pull the plug: what the guest had not written to its disk or into a pool is lost. Nothing if it is off."""
        if (pid := self.pid) is not None:
            os.kill(pid, signal.SIGKILL)
        self._wait_gone()

    @property
    def pid(self) -> int | None:
        """Of QEMU; None while the machine is off."""
        if self._process is not None:
            return self._process.pid if self._process.poll() is None else None
        try:
            pid = int((self.folder / "pid").read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        # A process that got the number since has another command line, one that is a zombie none.
        return pid if str(self.folder).encode() in command else None

    @property
    def alive(self) -> bool:
        """Tell whether the machine is on."""
        return self.pid is not None

    @property
    def console(self) -> str:
        """What the kernel printed since the boot."""
        return (self.folder / "console.log").read_text(errors="replace")

    # Commands.

    def run(
        self,
        command: str | Sequence[str],
        *,
        timeout: float = COMMAND_SECONDS,
        check: bool = True,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command to its end.

        CommandError where it fails and `check` is set; CommandTimeoutError after `timeout` seconds, when it is killed.
        """
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        return self._run(argv, _shown(command), timeout, check=check, stdin=stdin, environment=environment)

    def python(self, code: str, *, timeout: float = COMMAND_SECONDS, check: bool = True) -> Completed:
        """Run a Python program with the standard library alone, without an interpreter's start."""
        return self._run(code, "Python snippet", timeout, check=check)

    def start(self, command: str | Sequence[str], *, environment: Mapping[str, str] | None = None) -> Process:
        """Start a command that runs on in the background."""
        argv = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        return self._start(argv, _shown(command), environment)

    def start_python(self, code: str) -> Process:
        """Do the same with a Python program as in `python`."""
        return self._start(code, "Python snippet")

    def put(self, path: str, content: bytes) -> None:
        """Write a file in the guest."""
        self._ask(COMMAND_SECONDS, do="put", path=path, content=_encode(content))

    def get(self, path: str) -> bytes:
        """Read a file of the guest."""
        return base64.b64decode(self._ask(COMMAND_SECONDS, do="get", path=path)["content"])

    def start_udevd(self, rules: Sequence[str] = ("50-udev-default.rules",)) -> None:
        """Start udevd with these of Debian's rules and whatever lies in the guest's own folders of rules."""
        names = " ".join(shlex.quote(str(self._prefix.udev_rules / name)) for name in rules)
        self.run(f"mkdir -p /run/udev/rules.d; cp {names} /run/udev/rules.d/; systemd-udevd --daemon")

    # Devices.

    def qmp(self) -> Qmp:
        """Connect to QEMU's control socket."""
        return Qmp(self.folder / "qmp")

    def unplug(self, pool: str) -> None:
        """Take a CXL memdev out, in good order, and wait until the guest has let go of it.

        Its dax device vanishes, and who reads a mapping of it then dies of SIGBUS. It is in again after a boot.
        """
        self._press_button(pool, there=False)

    def plug(self, pool: str) -> None:
        """Put a CXL memdev that is out in again, and wait until the guest has found it.

        The region that it was in stays behind without it and may keep decoders of the switch, so that a new region
        cannot be made before the guest boots again.
        """
        self._press_button(pool, there=True)

    def inject_poison(self, pool: str, offset: int, length: int = 64) -> None:
        """Put poison on a CXL memdev's list; offset and length in bytes, multiples of 64.

        `cxl list --media-errors` shows it and the kernel traces it, but loads of the memory go on: QEMU poisons none.
        """
        with self.qmp() as qmp:
            path = f"/machine/peripheral/{device_id(self._cxl(pool))}"
            qmp.execute("cxl-inject-poison", path=path, start=offset, length=length)

    def inject_media_event(self, pool: str, offset: int) -> None:
        """Make a CXL memdev report an uncorrectable error of its media at this offset."""
        path = f"/machine/peripheral/{device_id(self._cxl(pool))}"
        with self.qmp() as qmp:
            # descriptor: uncorrectable. type 0, sub-type 0: ECC error. transaction-type 1: read by the host.
            event = {"log": "fatal", "flags": 1, "dpa": offset, "descriptor": 1, "type": 0, "sub-type": 0}
            qmp.execute("cxl-inject-general-media-event", path=path, **event, transaction_type=1)

    def _cxl(self, name: str) -> Pool:
        pool = self._pools[name]
        if not pool.kind.is_cxl:
            raise RackError(f"{name} is {pool.kind}; only CXL memdevs can be plugged and report errors")
        return pool

    def _press_button(self, pool: str, *, there: bool) -> None:
        # device_del presses the attention button of the slot. The guest's kernel waits 5 s for a second thought and
        # then switches off what is on, and on what is off. QEMU would delete the device when the slot's power goes,
        # but gives the ports of its CXL switches no power controller: the device stays, and can be switched on again.
        if self._sees(pool) is there:
            raise RackError(f"{self.name}: {pool} is {'in' if there else 'out'} already")
        with self.qmp() as qmp:
            qmp.execute("device_del", id=device_id(self._cxl(pool)))
        end = time.monotonic() + BUTTON_SECONDS
        while self._sees(pool) is not there:
            if time.monotonic() > end:
                raise RackError(f"{self.name}: {pool} is not {'in' if there else 'out'} after {BUTTON_SECONDS:g} s")
            time.sleep(0.2)

    def _sees(self, pool: str) -> bool:
        """Tell whether the guest has bound its driver to this memdev."""
        pattern = f"grep -lx {self._cxl(pool).serial:#x} /sys/bus/cxl/devices/mem*/serial"
        # cxl_mem binds when the ports above are there; a region cannot be made before.
        return self.run(f'test -e "$(dirname "$({pattern})")/driver"', check=False).code == 0

    # How all that is done.

    @property
    def _disk(self) -> Path:
        return self.folder / "disk"

    def _make_disk(self) -> None:
        with self._disk.open("xb") as file:
            file.truncate(DISK_BYTES)
        subprocess.run(
            [self._prefix.bin / "mkfs.ext4", "-q", "-F", "-m", "0", self._disk], check=True, capture_output=True
        )

    def _command(self, order: Sequence[str] | None, systemd: Path | None) -> list[str]:
        pools = list(self._pools.values())
        if order is None:
            # Each host finds them in another order, as real ones do: nothing may rely on names like mem0.
            memdevs = [pool.name for pool in pools if pool.kind.is_cxl]
            turn = self.number % max(len(memdevs), 1)
            order = memdevs[turn:] + memdevs[:turn]
        python = Path(sys.executable).resolve()
        parameters = [
            *kernel.PARAMETERS,
            *kernel_parameters(pools),
            f"hostname={self.name}",
            f"rack.modules={self._prefix.modules}",
            f"rack.python={python}",
            f"rack.agent={Path(__file__).with_name('agent.py').resolve()}",
            *([f"rack.layer={systemd.resolve()}"] if systemd else ()),
        ]
        return [
            str(self._prefix.bin / "qemu-system-x86_64"),
            # The uuid is the machine's for life, as firmware keeps it.
            *("-name", self.name, "-uuid", str(uuid.uuid5(uuid.NAMESPACE_URL, self.folder.as_uri()))),
            *("-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *(() if self._outlives else ("-run-with", "exit-with-parent=on")),
            # Emulation also where the machine has KVM, so that every test sees the same machine everywhere.
            *("-accel", "tcg,thread=multi", "-cpu", PROCESSOR, "-smp", "1"),
            *machine_arguments(pools, self._rack, order),
            *("-kernel", str(self._prefix.vmlinux), "-initrd", str(self.folder / "initramfs")),
            *("-append", " ".join(parameters)),
            *("-chardev", f"file,id=console,path={self.folder / 'console.log'}", "-serial", "chardev:console"),
            *("-qmp", f"unix:{self.folder / 'qmp'},server=on,wait=off"),
            *("-device", "virtio-serial-pci,bus=pcie.0"),
            *("-chardev", f"socket,id=shell,path={self.folder / 'shell'},server=on,wait=off"),
            *("-device", "virtconsole,nr=0,chardev=shell"),
            *("-chardev", f"socket,id=agent,path={self.folder / 'agent'},server=on,wait=off"),
            *("-device", "virtserialport,nr=1,chardev=agent"),
            *("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"),
            *("-device", "virtio-9p-pci,fsdev=root,mount_tag=root,bus=pcie.0"),
            *(self._systemd_arguments() if systemd else ()),
            *("-drive", f"if=none,id=disk,format=raw,file={self._disk}"),
            *("-device", "virtio-blk-pci,drive=disk,bus=pcie.0"),
            *network.arguments(self.number, self._hosts, self._rack),
        ]

    def _systemd_arguments(self) -> tuple[str, ...]:
        # A share of its own: overlayfs takes no folder over one that it lies in.
        share = f"local,id=prefix,path={self._prefix.root},security_model=none,readonly=on,multidevs=remap"
        return ("-fsdev", share, "-device", "virtio-9p-pci,fsdev=prefix,mount_tag=prefix,bus=pcie.0")

    @property
    def _environment(self) -> dict[str, str]:
        here = Path(sys.executable).parent  # not resolved: a virtual environment's
        folders = (str(self._prefix.bin), str(here), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        return {"HOME": "/root", "LANG": "C.UTF-8", "PATH": ":".join(folders), "PYTHONPATH": str(CHECKOUT)}

    def _run(
        self,
        command: list[str] | str,
        shown: str,
        timeout: float,
        *,
        check: bool,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Completed:
        variables = {**self._environment, **(environment or {})}
        answer = self._ask(
            timeout, do="run", command=command, environment=variables, seconds=timeout, stdin=_encode(stdin)
        )
        done = _completed(answer)
        if done is None:
            raise CommandTimeoutError(f"{self.name}: {shown}: not done after {timeout:g} s{_outputs(answer)}")
        if check and done.code:
            raise CommandError(f"{self.name}: {shown}: exit code {done.code}{_outputs(answer)}")
        return done

    def _start(self, command: list[str] | str, shown: str, environment: Mapping[str, str] | None = None) -> Process:
        variables = {**self._environment, **(environment or {})}
        answer = self._ask(COMMAND_SECONDS, do="start", command=command, environment=variables)
        return Process(self, answer["pid"], answer["number"], shown)

    def _ask(self, patience: float, /, **request: Any) -> dict[str, Any]:
        # The agent keeps the time; this side only notices where the agent itself hangs.
        with self._lock:
            if self._connection is None:
                self._connection = _Connection(self)
            try:
                answer = self._connection.ask(request, patience + 30)
            except BaseException:
                self._disconnect()
                raise
        if "error" in answer:
            raise CommandError(f"{self.name}: {request['do']}: {answer['error']}")
        return answer

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _wait_gone(self) -> None:
        if self._process is not None:
            self._process.wait()
            self._process = None
        while self.alive:  # it is another process's child
            time.sleep(0.02)
        with self._lock:
            self._disconnect()


class Process:
    """A process in the background of a guest."""

    def __init__(self, guest: Guest, pid: int, number: int, shown: str) -> None:
        self.pid = pid
        self._guest = guest
        self._number = number
        self._shown = shown

    def poll(self) -> Completed | None:
        """Give how it ended, None while it runs."""
        return _completed(self._wait(0))

    def output(self) -> str:
        """Give what it printed to stdout until now."""
        return _decode(self._wait(0)["stdout"])

    def wait(self, timeout: float = COMMAND_SECONDS) -> Completed:
        """Wait for its end; CommandTimeoutError where that does not come, and it runs on."""
        answer = self._wait(timeout)
        if (done := _completed(answer)) is None:
            raise CommandTimeoutError(f"{self._guest.name}: {self._shown}: runs after {timeout:g} s{_outputs(answer)}")
        return done

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal."""
        self._guest._ask(COMMAND_SECONDS, do="kill", number=self._number, signum=int(number))  # noqa: SLF001 - a part of it

    def _wait(self, seconds: float) -> dict[str, Any]:
        return self._guest._ask(seconds, do="wait", number=self._number, seconds=seconds)  # noqa: SLF001


class _Connection:
    """A connection to the agent of a guest."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest
        self._received = b""
        path = str(guest.folder / "agent")
        while True:
            if not guest.alive:
                raise GuestGoneError(f"{guest.name} is off{_tail(guest)}")
            self._socket = socket.socket(socket.AF_UNIX)
            try:
                self._socket.connect(path)
                break
            except OSError:  # QEMU has not made it yet
                self._socket.close()
                time.sleep(0.02)

    def ask(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        identity = uuid.uuid4().hex
        # The line break before it ends what another connection left unfinished.
        self._socket.sendall(b"\n" + json.dumps({"id": identity, **request}).encode() + b"\n")
        self._socket.settimeout(seconds)
        while True:
            try:
                answer: dict[str, Any] = json.loads(self._line())
            except ValueError:
                continue  # the rest of an answer to another connection
            if answer.get("id") == identity:
                return answer

    def _line(self) -> bytes:
        while b"\n" not in self._received:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                raise CommandTimeoutError(f"{self._guest.name} does not answer{_tail(self._guest)}") from None
            except ConnectionError:
                data = b""
            if not data:
                raise GuestGoneError(f"{self._guest.name} went off{_tail(self._guest)}")
            self._received += data
        line, self._received = self._received.split(b"\n", 1)
        return line

    def close(self) -> None:
        self._socket.close()


def _tail(guest: Guest) -> str:
    parts = []
    for name in ("qemu.log", "console.log"):
        path = guest.folder / name
        if path.exists() and (text := path.read_text(errors="replace").strip()):
            # Where the agent died the kernel panics, and its registers help nobody.
            parts.append(f"\n{name} ends with:\n{text.partition('Kernel panic')[0][-1500:]}")
    return "".join(parts)


def _completed(answer: Mapping[str, Any]) -> Completed | None:
    if "code" not in answer:
        return None
    return Completed(answer["code"], _decode(answer["stdout"]), _decode(answer["stderr"]))


def _outputs(answer: Mapping[str, Any]) -> str:
    return "".join(f"\n{name}: {text}" for name in ("stdout", "stderr") if (text := _decode(answer[name]).strip()))


def _shown(command: str | Sequence[str]) -> str:
    return command if isinstance(command, str) else shlex.join(command)


def _encode(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode(errors="replace")
