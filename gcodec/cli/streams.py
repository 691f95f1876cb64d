"""The process's standard streams: any of them may be closed, and a terminal must not be commanded by a file's name."""

from __future__ import annotations

import io
import os
import re
import sys
from contextlib import suppress
from typing import Any, TextIO

from ..errors import GcodecError

#: Stands for standard input or output where a file may be named.
STDIO = "-"
#: Under these names the system has files that are open already, standard output among them.
_OPEN_OUTPUTS = re.compile(r"/dev/(fd/|stdout|stderr)|/proc/[^/]+/(task/[^/]+/)?fd/")


class ClosedOutput(io.TextIOBase):
    """Standard output of a process that was started without one: whoever writes to it gets an error."""

    def write(self, text: str) -> int:
        """Raises GcodecError."""
        raise GcodecError("standard output is closed")


def open_standard_streams() -> None:
    """Lets none of the three standard streams be missing: a file opened later would take its number.

    Errors that nobody can read go nowhere; a result that nobody can read is an error.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):
        sys.stdout = _buffered(sys.stdout)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: names may have what its encoding lacks


def named_output(name: str) -> str:
    """Return ``-`` for one of the system's names for standard output, such as ``/dev/stdout``, and any other name as it
    is: what a command says of its work must not stand among the bytes that go there."""
    from ..files.urls import local_text  # which imports numpy: a help text needs none

    if _OPEN_OUTPUTS.match(os.path.abspath(local_text(name))):  # noqa: PTH100 - resolve() would follow the link
        with suppress(OSError, ValueError):  # such as of a stream without a descriptor
            if os.path.samestat(os.stat(local_text(name)), os.fstat(sys.stdout.fileno())):  # noqa: PTH116
                return STDIO
    return name


def _buffered(stream: Any) -> TextIO:
    """Return standard output with a buffer, where ``python -u`` or PYTHONUNBUFFERED has taken it away.

    A write without a buffer may write less than it is given, as on a full disk, and Python's text layer does not look.
    Lines are still written at once.
    """
    file = open(stream.fileno(), "wb", closefd=False)  # noqa: SIM115 - the stream that is returned has it
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=True)
