# SPDX-License-Identifier: Apache-2.0
"""The start of the `engramdax` command, and of `python -m engramdax`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line and end the process."""
    # Ctrl-C while modules are imported ends the process at once: nothing has begun, and a traceback helps nobody.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from engramdax.commands.main import main as run  # noqa: PLC0415

    # A service manager's SIGTERM unwinds like Ctrl-C, so that an unfinished load gives its space back.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    run()


if __name__ == "__main__":
    main()
