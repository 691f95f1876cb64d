"""Tells the user when kernels are being compiled and it lasts: at the first use on a machine, for seconds to minutes.

numba's events say when it compiles; kernels that it loads from the disk are none of them. Processes are forked only
while no other thread compiles or loads kernels.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import Any

from .errors import InvalidArgument
from .threads import call_later

LOGGER = logging.getLogger("gcodec")
#: Compiling is worth a line after so many seconds.
DELAY_SECONDS = 1.0
TEXT = (
    "gcodec: compiling kernels for this CPU, once; the first use of each value type takes seconds to minutes"
    " (gcodec warmup does it ahead)"
)
COMPILE = "numba:compile"


def check_numba_variables() -> None:
    """Raise InvalidArgument for variables of the environment that numba does not take, before it is imported: it names
    them in none of its errors, and LLVM ends the process."""
    n_threads = os.environ.get("NUMBA_NUM_THREADS", "").strip()
    is_number = n_threads.removeprefix("-").isdecimal()  # of anything else numba warns, by the name of the variable
    if is_number and int(n_threads) < 1:
        raise InvalidArgument(
            f"NUMBA_NUM_THREADS must be a number of threads, at least 1, not {n_threads:.80}: set it so, or unset it"
        )
    features = os.environ.get("NUMBA_CPU_FEATURES", "").split(",")
    if wrong := [item for item in features if item and item[0] not in "+-"]:
        raise InvalidArgument(
            "NUMBA_CPU_FEATURES must be a list such as '+avx2,-fma', each with + or - and without spaces, but has "
            f"{wrong[0]!r:.80} (docs/caches.md)"
        )


class CompileNotice:
    """Says once per process that kernels are being compiled, when that has lasted for a while.

    Args:
        delay_seconds: How long.
    """

    def __init__(self, delay_seconds: float = DELAY_SECONDS) -> None:
        self._delay, self._lock = delay_seconds, threading.Lock()
        self._inside, self._said = 0, False
        self._is_waiting = False

    def begin(self, event: Any) -> None:
        """Note that numba begins to compile a function; one of gcodec's starts the clock."""
        if not _is_ours(event):
            return
        with self._lock:
            self._inside += 1
            if not self._said and not self._is_waiting:
                with suppress(RuntimeError):  # no thread can be started: then nothing is said
                    call_later(self._delay, self._check)
                    self._is_waiting = True

    def end(self, event: Any) -> None:
        """Note that numba has compiled a function."""
        if _is_ours(event):
            with self._lock:
                self._inside -= 1

    def _check(self) -> None:
        with self._lock:
            self._is_waiting = False
            say = self._inside > 0 and not self._said and not _n_watching
            self._said = self._said or say
        if say:
            announce()


def announce() -> None:
    """Say that kernels are being compiled: to the logger ``gcodec`` at level WARNING, which goes to stderr where nobody
    has configured logging, in notebooks and batch jobs, too."""
    LOGGER.warning(TEXT)


def notice_compiling() -> None:
    """Begin to listen to numba, for as long as the process lives."""
    notice = CompileNotice()
    install, listener = _listener(COMPILE, notice.begin, notice.end)
    if install is not None:
        install(COMPILE, listener)


@contextmanager
def numba_events(kind: str, begin: Callable[[Any], None], end: Callable[[Any], None]) -> Iterator[None]:
    """Hear of numba's events of a kind; of none if this numba has no events, which are documented but provisional.

    Args:
        kind: Such as ``numba:compile``; who listens to that shows it, too, so that nothing else need be said.
        begin: Called when an event begins.
        end: Called when it ends.
    """
    global _n_watching
    install, listener = _listener(kind, begin, end)
    if install is None:
        yield
        return
    _n_watching += kind == COMPILE
    try:
        install(kind, listener)
        yield
    finally:
        import_module("numba.core.event").unregister(kind, listener)
        _n_watching -= kind == COMPILE


_n_watching = 0  #: blocks that show what is compiled


def fork_between_kernels() -> None:
    """Have a fork wait, for as long as the process lives, until no other thread compiles or loads a kernel.

    Otherwise numba's lock would stay locked in the child, where that thread is not, and the child's first kernel would
    wait for it without end.
    """
    try:
        lock = import_module("numba.core.compiler_lock").global_compiler_lock
        handlers = {"before": lock.acquire, "after_in_parent": lock.release, "after_in_child": lock.release}
    except (ImportError, AttributeError):  # of another numba, which has no such lock, or keeps it elsewhere
        return
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(**handlers)


def _listener(kind: str, begin: Callable[[Any], None], end: Callable[[Any], None]) -> tuple[Any, Any]:
    """Return numba's function that registers a listener, and a listener; two times None without events."""
    try:
        events = import_module("numba.core.event")
        methods = {"on_start": lambda self, event: begin(event), "on_end": lambda self, event: end(event)}
        return events.register, type("_Listener", (events.Listener,), methods)()
    except (ImportError, AttributeError, TypeError):
        return None, None


def _is_ours(event: Any) -> bool:
    """Return True for a function of gcodec's."""
    function = getattr((event.data or {}).get("dispatcher"), "py_func", None)
    return str(getattr(function, "__module__", "")).startswith("gcodec.")
