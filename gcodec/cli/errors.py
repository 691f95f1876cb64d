"""What the command line adds to the library's errors."""

from __future__ import annotations


class UsageError(Exception):
    """The command line asks for something that has no meaning; exit code 2."""


class Terminated(BaseException):
    """The process was told to end; like KeyboardInterrupt, not an ``Exception``."""
