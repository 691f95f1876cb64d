"""The files of a folder of checkpoints: names that say the step, and the lock that admits one writer at a time.

There is no list of the steps beside the files: each file says itself what it depends on, and appears, changes and goes
by a single rename or removal. So the folder is whole whenever a process dies.
"""

from __future__ import annotations

import contextlib
import operator
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..archive.folders import DiskFolder, Folder
from ..errors import GcodecError, InvalidArgument

MAX_STEP = 10**18
NAME = re.compile(r"step-([0-9]{8,18})\.gc")
#: What a writer that was killed leaves behind.
LEFT_OVER = re.compile(r"\.step-[0-9]{8,18}\.gc\.[0-9a-f]{8}\.partial")
LOCK = ".lock"
#: How long a writer waits for another one, and how long it sleeps in between.
LOCK_SECONDS, POLL_SECONDS = 300.0, 0.02


def step_name(step: int) -> str:
    """Return the name of a step's archive."""
    return f"step-{step:08d}.gc"


def step_of(name: str) -> int | None:
    """Return the step of an archive's name; None for any other name."""
    match = NAME.fullmatch(name)
    step = None if match is None else int(match[1])
    return step if step is not None and step_name(step) == name else None


def check_step(step: Any) -> int:
    """Return a step as an int. Raises InvalidArgument unless it is an integer from 0 to 10^18 - 1."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or not 0 <= number < MAX_STEP:
        raise InvalidArgument(f"step must be an integer from 0 to {MAX_STEP - 1}, not {step!r}")
    return number


def steps_in(folder: Folder) -> list[int]:
    """Return the steps in a folder in ascending order; none if there is no such folder."""
    return sorted(step for step in map(step_of, folder.names()) if step is not None)


def remove_left_over(folder: Folder) -> None:
    """Removes what writers that were killed have left; only for the holder of the lock."""
    for name in folder.names():
        if LEFT_OVER.fullmatch(name):
            with contextlib.suppress(OSError):
                folder.remove(name)


def _opened_lock(path: Path) -> int:
    """Return the file of the lock, opened; for reading, which is enough to lock it, if it is another user's."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:
        with contextlib.suppress(OSError):
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        raise


@contextlib.contextmanager
def writer_lock(folder: Folder, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Admits one writer at a time; the system releases the lock of a process that dies. Readers need none.

    A store at a URL has no locks: there, whoever has two writers must take care.

    Args:
        folder: the folder of checkpoints.
        seconds: how long to wait for another writer.

    Raises:
        GcodecError: another writer has been at work for that long.
        OSError: the folder cannot be written to.
    """
    try:
        import fcntl
    except ImportError:  # another system, without locks as well
        yield
        return
    if not isinstance(folder, DiskFolder):
        yield
        return
    descriptor = _opened_lock(folder.path / LOCK)
    try:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= end:
                    raise GcodecError(f"{folder}: another process is writing to this folder, for {seconds:.0f} s now; "
                                      "only one can at a time") from None
                time.sleep(POLL_SECONDS)
            except OSError:  # a file system without locks
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # or processes forked meanwhile would hold it, too
        os.close(descriptor)
