"""Claims of kernels that processes are about to compile, so that each is compiled once, however many processes need it.

Ranks on one machine that start from an empty cache, and the processes that compile ahead, meet the same kernels. Who
finds none on disk claims it; the others wait for the end of the claim, and find it then.

A claim is a lock of one byte of the file ``claims.lock`` beside the compiled kernels; the system ends it with the
process that holds it, however that ends. Waiting cannot go round in circles, as kernels do not call each other in
circles: who holds one waits only for those that it calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from time import monotonic, sleep

from xxhash import xxh3_64_intdigest

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, lockf
except ImportError:  # there is none on Windows, where every process compiles
    lockf = None  # type: ignore[assignment]

_LONGEST_WAIT = (
    120.0  #: seconds, of which no kernel takes a quarter: the process that holds the claim may have been stopped
)
_BETWEEN_LOOKS = 0.02  #: seconds


@contextmanager
def claimed(folders: Sequence[Path], name: str, longest_wait: float = _LONGEST_WAIT) -> Iterator[bool]:
    """Wait while another process claims a kernel, and claim it until the end of the block.

    Args:
        folders: Where compiled kernels are kept; the first that can be written to has the file.
        name: What tells the kernel from all others.
        longest_wait: In seconds.

    Yields:
        Whether it is claimed. It is not where no file can be locked, or after the longest wait: then processes compile
        for themselves.
    """
    file = next((file for file in map(_file_of_claims, folders) if file is not None), None)
    # Below 2**62, as places in files are numbers with a sign.
    place = xxh3_64_intdigest(name.encode()) >> 2  # two kernels at one place would only wait for each other
    if file is None or not _lock(file, place, longest_wait):
        yield False
        return
    try:
        yield True
    finally:
        lockf(file, LOCK_UN, 1, place)


def _lock(file: int, place: int, longest_wait: float) -> bool:
    """Return whether a byte could be locked."""
    end = monotonic() + longest_wait
    while True:
        # Asked for again and again, rather than waited for: only a signal could end such a wait, and signals belong to
        # the program that gcodec is a part of.
        try:
            lockf(file, LOCK_EX | LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # another process has it
            if monotonic() >= end:
                return False
            sleep(_BETWEEN_LOOKS)
        except OSError:  # of a file system without locks
            return False
        else:
            return True


@cache
def _file_of_claims(folder: Path) -> int | None:
    """Return the descriptor of a folder's file of claims, open as long as the process lives: to close a file ends all
    claims of the process in it. None where no file can be made or locked."""
    if lockf is None:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / "claims.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None
