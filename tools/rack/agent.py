# SPDX-License-Identifier: Apache-2.0
"""Process 1 in a guest: takes requests as JSON lines from a virtio-serial port and answers each with one line.

It runs as `python -I -S`, with the standard library alone, and imports little: an emulated processor takes a
second for what a real one imports in 20 ms. A request is {"id": ..., "do": NAME, ...arguments}; the answer is
{"id": ..., ...} or {"id": ..., "error": TEXT}.

Each command and each Python snippet is a process of its own with its output in files, so that none can take the
guest down with it, and one that runs on in the background is the same thing as one that is waited for.
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import sys
import time
import traceback
from typing import Any, Final, NoReturn

PORT: Final = "/dev/vport0p1"
OUTPUT: Final = "/run/rack"
CHUNK: Final = 1 << 16

running: dict[int, int] = {}
"""Number of each process that was started here, by its pid."""

codes: dict[int, int] = {}
"""Exit code by number of those that have ended; -N after signal N, as in subprocess."""


def start(command: list[str] | str, environment: dict[str, str], stdin: str = "") -> dict[str, Any]:
    """Start a command: a list of arguments, or a Python program. Its number, unlike its pid, is its own for ever."""
    number = len(running) + len(codes)
    paths = [f"{OUTPUT}/{number}.{name}" for name in ("stdin", "stdout", "stderr")]
    with open(paths[0], "wb") as file:  # noqa: PTH123 - pathlib is among what takes long to import
        file.write(base64.b64decode(stdin))
    ready, begun = os.pipe()
    if not (pid := os.fork()):
        _become(command, environment, paths)
    os.close(begun)
    os.read(ready, 1)  # ends when the child is what it is to be: by then it has closed its end
    os.close(ready)
    running[pid] = number
    return {"pid": pid, "number": number}


def _become(command: list[str] | str, environment: dict[str, str], paths: list[str]) -> NoReturn:
    code = 127
    try:
        os.setsid()
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # which Python ignores
        flags = (os.O_RDONLY, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for target, (path, flag) in enumerate(zip(paths, flags, strict=True)):
            fd = os.open(path, flag, 0o644)
            os.dup2(fd, target)
        os.closerange(3, 64)
        os.chdir("/")
        os.environ.clear()
        os.environ.update(environment)
        if isinstance(command, list):
            os.execvp(command[0], command)  # noqa: S606 - running what it is told is what it is for
        code = 1
        exec(compile(command, "<snippet>", "exec"), {"__name__": "__main__"})  # noqa: S102 - as above
        code = 0
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not go on as a second agent
        traceback.print_exc()
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def wait(number: int, seconds: float) -> dict[str, Any]:
    """Wait for a process; `code` is missing from the answer where it is not done by then."""
    if number not in codes:
        fd = os.pidfd_open(_pid(number))
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll(seconds * 1000)
        os.close(fd)
        reap()
    answer: dict[str, Any] = {"code": codes[number]} if number in codes else {}
    for name in ("stdout", "stderr"):
        answer[name] = get(f"{OUTPUT}/{number}.{name}")["content"]
    return answer


def run(command: list[str] | str, environment: dict[str, str], seconds: float, stdin: str = "") -> dict[str, Any]:
    """Start a command and wait for it; what is not done in time is killed with all of its session."""
    process = start(command, environment, stdin)
    answer = wait(process["number"], seconds)
    if "code" not in answer:
        os.killpg(process["pid"], signal.SIGKILL)
    for name in ("stdin", "stdout", "stderr"):
        os.unlink(f"{OUTPUT}/{process['number']}.{name}")  # noqa: PTH108
    return answer


def kill(number: int, signum: int) -> dict[str, Any]:
    """Send a signal to a process, if it runs."""
    reap()
    if number not in codes:
        os.kill(_pid(number), signum)
    return {}


def _pid(number: int) -> int:
    return next(pid for pid, other in running.items() if other == number)


def reap() -> None:
    """Take the exit codes of all that ended: process 1 inherits every orphan."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        if pid in running:
            codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)


def put(path: str, content: str) -> dict[str, Any]:
    """Write a file."""
    with open(path, "wb") as file:  # noqa: PTH123
        file.write(base64.b64decode(content))
    return {}


def get(path: str) -> dict[str, Any]:
    """Read a file."""
    with open(path, "rb") as file:  # noqa: PTH123
        return {"content": base64.b64encode(file.read()).decode()}


def shut_down() -> NoReturn:
    """End all processes, write the disk out and switch the machine off."""
    import ctypes  # noqa: PLC0415 - takes long and is needed once

    libc = ctypes.CDLL(None)
    for number in (signal.SIGTERM, signal.SIGKILL):
        os.kill(-1, number)
        end = time.monotonic() + 2
        while time.monotonic() < end:
            reap()
            try:
                os.kill(-1, 0)
            except ProcessLookupError:
                break
            time.sleep(0.02)
    libc.umount2(b"/var/lib/engramdax", 0)
    os.sync()
    libc.reboot(0x4321FEDC)  # RB_POWER_OFF
    raise OSError("the machine is still on")


REQUESTS: Final = {do.__name__: do for do in (start, wait, run, kill, put, get, shut_down)}


def answer(line: bytes) -> bytes:
    """Do what a line asks for."""
    try:
        request = json.loads(line)
    except ValueError:
        return b""  # the rest of a line whose writer went away
    identity, do = request.pop("id"), request.pop("do")
    try:
        result: dict[str, Any] = REQUESTS[do](**request)
    except Exception as e:  # noqa: BLE001 - the asker is told
        result = {"error": f"{type(e).__name__}: {e}"}
    reap()
    return json.dumps({"id": identity, **result}).encode() + b"\n"


def serve() -> NoReturn:
    """Answer for ever."""
    os.mkdir(OUTPUT)  # noqa: PTH102
    port = os.open(PORT, os.O_RDWR | os.O_CLOEXEC)
    waiting = b""
    while True:
        data = os.read(port, CHUNK)
        if not data:  # nobody is connected
            time.sleep(0.02)
            continue
        waiting += data
        while b"\n" in waiting:
            line, waiting = waiting.split(b"\n", 1)
            result = answer(line)
            while result:
                result = result[os.write(port, result) :]


if __name__ == "__main__":
    serve()
