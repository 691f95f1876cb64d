"""Memory of an archive's parts, used again: memory that is new costs more than reading, coding and writing a part."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

import numpy as np

from ..files.source import Bytes

_LEAST = 1 << 17  #: bytes from which an allocation is memory that is new to the process


class PartMemory:
    """Hands out arrays whose memory is used again when nobody has a view of them any more. Safe from several threads.

    Args:
        n_kept: How many pieces of memory of each size wait for the next user; others go back to the system.
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept, self._free = n_kept, dict[int, list[Bytes]]()

    def take(self, size: int) -> Bytes:
        """Return uint8[size] of any content."""
        if size < _LEAST:
            return np.empty(size, np.uint8)
        room = 1 << (size - 1).bit_length()  # of which only the pages that are written take memory
        try:
            memory = self._free[room].pop()
        except LookupError:
            memory = np.empty(room, np.uint8)
        # Views of views refer to the first array over a memoryview, so its end is the end of all of them.
        array = np.frombuffer(memory.data, np.uint8, size)
        weakref.finalize(array, self._give_back, memory).atexit = False
        return array

    def _give_back(self, memory: Bytes) -> None:
        free = self._free.setdefault(memory.size, [])
        if len(free) < self._n_kept:
            free.append(memory)


class RecentBytes:
    """Keeps the last of what was decoded, for who asks for a piece of it and then for the next. Safe from several
    threads.

    Args:
        max_bytes: All of it together; what is larger is not kept.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._kept, self._lock = max_bytes, OrderedDict[Hashable, Bytes](), Lock()

    def get(self, key: Hashable) -> Bytes | None:
        """Return what was put under a key; None if it is not kept."""
        with self._lock:
            data = self._kept.get(key)
            if data is not None:
                self._kept.move_to_end(key)
            return data

    def put(self, key: Hashable, data: Bytes) -> None:
        """Keep bytes under a key, instead of what was asked for longest ago."""
        if data.size > self._max_bytes:
            return
        with self._lock:
            self._kept[key] = data
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        while sum(kept.size for kept in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)
