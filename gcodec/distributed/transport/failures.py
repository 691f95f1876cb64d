"""Failure records: why ranks have failed, where they cannot say so over the network.

On Gloo a wait that times out closes all connections of the rank that waits. Other ranks then find that it is gone, or
time out in their turn, and would name it instead of the rank it waited for. So it writes a record to the store that the
group met through, and the others read it there.
"""

from __future__ import annotations

import atexit
import os
import socket
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import monotonic, sleep
from typing import Any

from torch._C._distributed_c10d import Store

from ...threads import Call, start_thread

#: How the records of ranks begin that have waited for all others in vain, and do not know for whom.
WAITED = "has waited: "
_PATIENCE = 0.5  #: seconds within which a rank that has closed its connections will have written its record
_PAUSE = 0.02  #: seconds from poll to poll
_MAX_LENGTH = 800  #: characters of a record
_MAX_FILES = 1 << 12  #: open files of this process that are looked at
_abandoned: list[tuple[Call[None], Store]] = []  #: calls that have not returned, and the stores that they are to


class FailureRecords:
    """The failure records of one group's ranks, each of which writes at most one.

    Neither method raises or takes much longer than half a second, as the store may be gone, too.

    ::

        rank 2   waits for rank 1, times out      Gloo closes all connections of rank 2
                 record("rank 1: no answer")  ->  store["given-up-2"]
        rank 0   waits for rank 2, which is gone
                 reason_of(2)                 <-  store["given-up-2"]; the error of rank 0 names both

    Args:
        store: The store that the group met through.
    """

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._recorded = False
        self._reasons: dict[int, str | None] = {}

    def record(self, text: str) -> None:
        """Write why this rank has failed; only the first call counts."""
        if not self._recorded:
            self._recorded = True
            _briefly(self._store, lambda: self._store.set(_key(self._rank), text[:_MAX_LENGTH]))

    def reason_of(self, rank: int) -> str | None:
        """Return why a rank has failed; None if there was no record at the first call, as nobody waits twice for it."""
        return self.reasons_of([rank])[rank]

    def reasons_of(self, ranks: Sequence[int]) -> dict[int, str | None]:
        """Return why ranks have failed, by rank, as :meth:`reason_of`; the records of all are waited for together."""
        unread = [rank for rank in ranks if rank not in self._reasons]
        if unread:
            self._reasons.update(dict.fromkeys(unread))
            _briefly(self._store, lambda: self._read(unread))
        return {rank: self._reasons[rank] for rank in ranks}

    def _read(self, ranks: Sequence[int]) -> None:
        end, missing = monotonic() + _PATIENCE, list(ranks)
        while missing:
            for rank in [rank for rank in missing if self._store.check([_key(rank)])]:
                self._reasons[rank] = self._store.get(_key(rank)).decode(errors="replace")
                missing.remove(rank)
            if monotonic() > end:
                return
            if missing:
                sleep(_PAUSE)


def _key(rank: int) -> str:
    return f"given-up-{rank}"  # ranks of any version look for this key


def _briefly(store: Store, call: Callable[[], None]) -> None:
    """Make a call to a store, which may fail or hang.

    The store is served by one of the ranks' processes; calls to the store of a stopped process do not return, so they
    are made on a thread of their own, which is then left behind, until the interpreter ends.
    """

    def call_or_fail() -> None:
        with suppress(RuntimeError):
            call()

    try:
        thread = start_thread(call_or_fail)
    except RuntimeError:  # no thread can be started: without the record, which only explains another error
        return
    thread.join(2 * _PATIENCE)
    if thread.is_alive():
        _abandoned.append((thread, store))


def end_abandoned_calls() -> None:
    """End the calls that were left behind, by closing the connections to their stores; called at exit.

    A thread that comes back from C++ while the interpreter is being finalized ends the process by SIGABRT.
    """
    hanging = [(thread, store) for thread, store in _abandoned if thread.is_alive()]
    _abandoned.clear()
    ports = {port for _, store in hanging if (port := _port_of(store)) is not None}
    if ports:
        _close_connections_to(ports)
    for thread, _ in hanging:
        thread.join(_PATIENCE)


def _port_of(store: Any) -> int | None:
    """Return the port of a TCP store, under whatever prefixes; None for stores of another kind."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return getattr(store, "port", None)


def _close_connections_to(ports: set[int]) -> None:
    """Shut down this process's connections to ports of any host: torch does not tell the sockets of its stores."""
    for number in range(3, _MAX_FILES):
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                internet = connection.family in (socket.AF_INET, socket.AF_INET6)
                if internet and connection.getpeername()[1] in ports:
                    connection.shutdown(socket.SHUT_RDWR)


atexit.register(end_abandoned_calls)
