# SPDX-License-Identifier: Apache-2.0
"""The `engramdax` command: its subcommands, and how an error ends it.

Exit codes: 0 ok, 1 the operation failed, 2 usage, 3 refused for safety; of `health` they are those of a monitoring
check (engramdax/health/finding.py), and 3 where it fails itself. An error is one line on stderr, with cause and remedy;
--debug shows where it came from.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
import warnings
from functools import cache, wraps
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from engramdax.commands import (
    bench,
    demo,
    discover,
    gather,
    health,
    hosts,
    hot,
    load,
    own,
    provision,
    repair,
    show,
    top,
    trace,
    udev,
)
from engramdax.errors import EngramdaxError
from engramdax.gathering import warn_of_environment
from engramdax.health.finding import EXIT_CODES, State
from engramdax.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

USAGE: Final = 2
_NOTHING_LEFT: Final = "nothing unfinished is published, and its space is free"
INTERRUPTED: Final = {
    load.load: _NOTHING_LEFT,
    load.rm: _NOTHING_LEFT,
    provision.provision: _NOTHING_LEFT,
    provision.deprovision: _NOTHING_LEFT,
    hot.set_list: _NOTHING_LEFT,
    hosts.admit: _NOTHING_LEFT,
    hosts.forget: _NOTHING_LEFT,
    own.own: "`engramdax own` tells whether this host released the pool, or has claimed it",
    own.reclaim: _NOTHING_LEFT,
    repair.repair: _NOTHING_LEFT,
}
"""What is left of a command that changes a pool, for somebody who interrupted it."""

UsageError: Final[type[Exception]] = typer.BadParameter.__bases__[0]
"""Of the click that typer uses: newer ones carry one of its own, which they do not export."""

app = typer.Typer(
    name="engramdax",
    help="Engram memory tables in a pool of CXL memory that all hosts of a rack share.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _interruptible(command: Callable[..., Any]) -> Callable[..., Any]:
    """Make Ctrl-C an error like any other: left alone, typer ends in silence and with 130."""

    @wraps(command)
    def run_command(**parameters: Any) -> Any:
        try:
            return command(**parameters)
        except KeyboardInterrupt:
            raise EngramdaxError("interrupted", remedy=INTERRUPTED.get(command, "")) from None

    return run_command


for module in (discover, provision, load, show, repair, own, gather, trace, health, top, demo):
    for command in module.COMMANDS:
        app.command()(_interruptible(command))
for group in (hosts, hot, udev, bench):
    below = typer.Typer(name=group.GROUP, help=group.__doc__, rich_markup_mode=None)
    if group is hosts:  # which says something without a command, too
        below.callback(invoke_without_command=True)(_interruptible(hosts.list_hosts))
    for name, command in group.COMMANDS.items():
        below.command(name)(_interruptible(command))
    app.add_typer(below)


def _print_version(asked: bool) -> None:
    if asked:
        sys.stdout.write(f"engramdax {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    *,
    debug: Annotated[bool, typer.Option("--debug", help="Show where an error came from.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Engram memory tables in a pool of CXL memory that all hosts of a rack share."""
    del version
    if debug:
        os.environ["ENGRAMDAX_DEBUG"] = "1"


def main() -> None:
    """Run the command line and end the process."""
    warnings.showwarning = _show_warning
    # A program that was started with its output closed is to do its work all the same.
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a stream that cannot show a character escapes it, as stderr does
        sys.stdout.reconfigure(errors="backslashreplace")
    for name in warn_of_environment():
        os.environ.pop(name, None)  # so that no process of the command's says it again
    code = run(sys.argv[1:])
    # What is done is done: a signal now would only spoil the exit code.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)


@cache
def _command_line() -> Any:
    """Build the parser of all commands; once for all that a process runs, since it takes a while."""
    return typer.main.get_command(app)


def run(arguments: list[str]) -> int:
    """Run one command; give its exit code."""
    try:
        code = _command_line()(arguments or ["--help"], prog_name="engramdax", standalone_mode=False)
        sys.stdout.flush()  # what cannot be written is an error of the command, not of the interpreter's end
    except UsageError as e:
        context = getattr(e, "ctx", None)
        path = context.command_path if context else "engramdax"
        return _fail(f"{e.format_message().rstrip(chr(46))}; see `{path} --help`", USAGE, arguments)  # type: ignore[attr-defined]
    except EngramdaxError as e:
        # What could not be undone is part of it.
        return _fail("; ".join([str(e), *getattr(e, "__notes__", [])]), e.exit_code, arguments)
    except BrokenPipeError:
        _drop_output()  # whoever read it had enough
        return 1
    except OSError as e:
        _drop_output()
        what = f"{e.filename}: {e.strerror}" if e.filename else str(e)
        return _fail(what, 1, arguments)
    except MemoryError:
        return _fail("out of memory", 1, arguments)
    if not arguments:
        return USAGE
    return code if isinstance(code, int) else 0


def _drop_output() -> None:
    """Give up what is still to be written: Python would try again at exit, complain, and end with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int, arguments: list[str]) -> int:
    if os.environ.get("ENGRAMDAX_DEBUG"):
        traceback.print_exc()
    sys.stderr.write(f"engramdax: {_one_line(message)}\n")
    # Of a check, 1 and 2 say that something is wrong with what was looked at.
    return EXIT_CODES[State.UNKNOWN] if "health" in _command_of(arguments) else code


def _command_of(arguments: list[str]) -> list[str]:
    return [a for a in arguments if not a.startswith("-")][:1]


def _one_line(text: str) -> str:
    """Keep what files and arguments say from moving the terminal's cursor."""
    joined = " ".join(text.split())
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in joined)


def _show_warning(message: Warning | str, *_args: Any, **_kwargs: Any) -> None:
    sys.stderr.write(f"engramdax: warning: {_one_line(str(message))}\n")
