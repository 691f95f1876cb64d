"""Memory of an archive's parts, used again: memory that is new costs more than reading, coding and writing a part."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from threading import Lock

import numpy as np

from ..errors import LimitExceeded
from ..files.source import Bytes, new_bytes

_LEAST = 1 << 17  #: bytes from which an allocation is memory that is new to the process
#: Arrays of up to so many bytes are pieces of memory of so many, each aligned like that, and all of it to large pages.
_MAX_PIECE, _ROOM, _ALIGNMENT, _LARGE_PAGE = 1 << 20, 1 << 22, 64, 1 << 21


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


class Rooms:
    """Gives memory for arrays that are read together: small ones get pieces of larger memory, which the system gives in
    large pages, in a fraction of the time.

    Args:
        sizes: Bytes of the arrays, each asked for once, in any order.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._n_left = sum(size for size in sizes if size <= _MAX_PIECE)
        self._rest = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """Return uint8[size] of any content. Raises MemoryError, ValueError or OverflowError if there is no memory."""
        if size > _MAX_PIECE:
            return np.empty(size, np.uint8)
        if self._rest.size < size and self._n_left >= _LARGE_PAGE:
            memory = np.empty(_ROOM + _LARGE_PAGE, np.uint8)  # what is not written to takes no memory
            begin = -memory.ctypes.data % _LARGE_PAGE
            self._rest = memory[begin : begin + _ROOM]
        self._n_left -= size
        if self._rest.size < size:
            return np.empty(size, np.uint8)
        piece, self._rest = self._rest[:size], self._rest[size + -size % _ALIGNMENT :]
        return piece


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


def room_or(take: Callable[[int], Bytes], room: Bytes, size: int) -> Bytes:
    """Return ``room`` if it is of ``size`` bytes, else what ``take`` gives."""
    return room if room.size == size else take(size)


def room_for(size: int, what: str, take: Callable[[int], Bytes] = new_bytes) -> Bytes:
    """Return memory for ``size`` bytes; the system gives it page by page, as it is filled with what has been
    checked."""
    try:
        return take(size)
    except (MemoryError, ValueError, OverflowError):
        raise LimitExceeded(f"{what}: there is no memory for {size} bytes") from None
