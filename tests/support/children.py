"""Functions called in a child process of their own, which may be killed, limited or another user."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import NamedTuple


class Child(NamedTuple):
    """A process that has been forked.

    Attributes:
        pid: Its number.
        stderr: Descriptor of the pipe from which what it prints on stderr can be read.
    """

    pid: int
    stderr: int

    def wait(self) -> tuple[int, str]:
        """Return the exit code, negative for a signal, and what the process has printed on stderr."""
        with open(self.stderr, errors="replace") as stream:
            printed = stream.read()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), printed


def forked(function: Callable[[], int | None]) -> Child:
    """Call a function in a forked process, which ends with its result as exit code; 99 if it raises.

    Signals have their default effects there, also where the tests run with some ignored, as under nohup.
    """
    read, written = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # there may be threads here, which all wait
        pid = os.fork()
    if pid:
        os.close(written)
        return Child(pid, read)
    code = 99
    try:
        for name in ("SIGTERM", "SIGHUP", "SIGPIPE"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.dup2(written, 2)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - the process ends here
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
        code = function() or 0
    except KeyboardInterrupt:  # before or after the command
        code = 130
    except BaseException as error:
        os.write(written, f"Traceback: {error!r}".encode())
    finally:
        os._exit(code)


def become(user: int) -> None:
    """Take on the rights of a user and a group of this number; without root's rights nothing happens."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
