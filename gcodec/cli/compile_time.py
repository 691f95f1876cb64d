"""Compiling as numba tells of it: how long it took, which is no speed of the codec, and what is being compiled."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from ..archive import ArchiveReader
from ..archive.layout import STORED, ZSTD
from ..compiling import COMPILE, numba_events

#: Names of functions inside others, which say nothing of what is compiled.
HELPERS = ("impl", "codegen", "wrapper")


def import_numba() -> None:
    """Imports numba before all else that needs it: from the depths of other imports, a loop of numba's over short calls
    makes CPython get and give back a page of its stack for every call, which takes as long as half of the import."""
    import_module("numba")


def import_numba_for(archive: ArchiveReader) -> None:
    """Imports numba if an archive has chunks that only kernels decode."""
    blobs = [blob for entry in archive.files for blob in (entry.verbatim, *entry.segments)]
    if any(chunk.codec not in (STORED, ZSTD) for blob in blobs for chunk in blob.chunks):
        import_numba()


class CompileClock:
    """Adds up the wall time in which at least one thread is in numba's compiler, or waits for it.

    Attributes:
        seconds: The sum so far, of periods that have ended.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock, self._inside, self._since = threading.Lock(), 0, 0.0

    def enter(self, event: Any) -> None:
        """Count a thread that enters the compiler."""
        with self._lock:
            if not self._inside:
                self._since = time.perf_counter()
            self._inside += 1

    def leave(self, event: Any) -> None:
        """Count a thread that leaves the compiler."""
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.seconds += time.perf_counter() - self._since


@contextmanager
def compile_clock() -> Iterator[CompileClock]:
    """Measure the time that numba takes to compile kernels, or to load them from its cache, in all threads; none where
    numba was not imported, because no kernel is needed."""
    clock = CompileClock()
    if "numba" not in sys.modules:
        yield clock
        return
    with numba_events("numba:compiler_lock", clock.enter, clock.leave):
        yield clock


@contextmanager
def told_of_compiling(tell: Callable[[bool], None]) -> Iterator[None]:
    """Call ``tell`` with True when numba begins to compile kernels, and with False when no thread does any more; never
    where numba was not imported, because no kernel is needed."""
    if "numba" not in sys.modules:
        yield
        return
    lock, inside = threading.Lock(), 0

    def count(change: int) -> None:
        nonlocal inside
        with lock:
            before, inside = inside, inside + change
            if not before or not inside:
                tell(bool(inside))

    with numba_events(COMPILE, lambda event: count(1), lambda event: count(-1)):
        yield


@contextmanager
def compiled_names(show: Callable[[str], None]) -> Iterator[None]:
    """Call ``show`` with the name of each kernel that numba begins to compile."""

    def begin(event: Any) -> None:
        data = event.data
        name = getattr(getattr(data.get("dispatcher"), "py_func", None), "__name__", "") if data else ""
        if name.isidentifier() and name not in HELPERS:
            show(name.lstrip("_"))

    with numba_events(COMPILE, begin, lambda event: None):
        yield
