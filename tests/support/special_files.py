"""What may stand in the place of a file and is none, or is one that would take hours to read."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

#: What :func:`put` makes. A reader that does not look at it first waits for it, some for ever.
ENDLESS = ("pipe", "link to a pipe", "link to a device", "socket", "folder", "huge file")


def put(kind: str, path: Path) -> None:
    """Put something in the place of a file, which is removed."""
    path.unlink()
    if kind.endswith("pipe"):
        pipe = path.with_name(f"{path.name} leads here") if kind.startswith("link") else path
        os.mkfifo(pipe)
        if pipe != path:
            path.symlink_to(pipe)
    elif kind == "link to a device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # for the names of sockets are short
        try:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(path.name)
        finally:
            os.chdir(here)
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)


@contextmanager
def no_waiting(seconds: float = 30.0) -> Iterator[None]:
    """Fail, instead of hanging, if what the block does takes as long as that."""

    def fail(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it has not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
