# SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a rack; each message is one line, or one line and then what the guest printed."""

from __future__ import annotations


class RackError(Exception):
    """The rack, one of its guests or a command in a guest failed."""


class UnavailableError(RackError):
    """No rack can run on this machine, for the reason that the message gives; tests skip with it."""


class GuestGoneError(RackError):
    """The guest is not running, or stopped before it answered."""


class CommandError(RackError):
    """A command in a guest ended with a code other than 0, or by a signal."""


class CommandTimeoutError(RackError):
    """A command in a guest was not done in time; it was killed there with all that it started."""
