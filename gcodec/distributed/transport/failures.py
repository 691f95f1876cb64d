"""Why ranks have given up, where they cannot say so over the network.

A wait that takes too long on Gloo closes all connections of the rank that waits. Other ranks then find that it is gone,
or lose patience with it in their turn, and would name it instead of the one it waited for. So it leaves a notice in
the store that the group met through, and they look there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, sleep

from torch._C._distributed_c10d import Store

_PATIENCE = 0.5  #: seconds within which a rank that has closed its connections will have left its notice
_PAUSE = 0.02  #: seconds from look to look
_MOST = 800  #: characters of a notice


class FailureRecords:
    """The notices of one group's ranks, each of which leaves at most one. Neither method raises, nor takes much longer
    than half a second: the store may be gone, too."""

    def __init__(self, store: Store, rank: int) -> None:
        self._store, self._rank = store, rank
        self._left = False
        self._found: dict[int, str | None] = {}

    def leave(self, text: str) -> None:
        """This rank has given up, and why; only the first time counts."""
        if not self._left:
            self._left = True
            _briefly(lambda: self._store.set(_key(self._rank), text[:_MOST]))

    def of(self, rank: int) -> str | None:
        """Why a rank has given up; None if it had not said so when this was first asked: nobody waits twice for it."""
        if rank not in self._found:
            self._found[rank] = self._look_for(rank)
        return self._found[rank]

    def _look_for(self, rank: int) -> str | None:
        end = monotonic() + _PATIENCE

        def look() -> str | None:
            while not self._store.check([_key(rank)]):
                if monotonic() > end:
                    return None
                sleep(_PAUSE)
            return self._store.get(_key(rank)).decode(errors="replace")

        return _briefly(look)


def _key(rank: int) -> str:
    return f"given-up-{rank}"


def _briefly(call: Callable[[], str | None]) -> str | None:
    """What a call returns; None if it fails or hangs, as one to a store in a process that is stopped does."""
    found: list[str | None] = []

    def run() -> None:
        with suppress(RuntimeError):
            found.append(call())

    thread = threading.Thread(target=run, name="gcodec-notices", daemon=True)
    thread.start()
    thread.join(2 * _PATIENCE)
    return found[0] if found else None
