"""Memory of an archive's parts, used again: memory that is new costs more than reading, coding and writing a part."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable
from threading import Lock
from typing import Any

import numpy as np

from ..errors import NoMemory
from ..files.source import Bytes, new_bytes

_LEAST = 1 << 17  #: bytes from which an allocation is memory that is new to the process
#: Arrays of up to so many bytes are pieces of memory of so many, each aligned like that, and all of it to large pages.
_MAX_PIECE, _ROOM, _ALIGNMENT, _LARGE_PAGE = 1 << 23, 1 << 25, 64, 1 << 21


class PartMemory:
    """Hands out arrays whose memory is used again when nobody has a view of them any more. Safe from several threads.

    Args:
        n_kept: How many pieces of memory of each size wait for the next user; others go back to the system.
    """

    def __init__(self, n_kept: int) -> None:
        self._n_kept, self._free = n_kept, dict[int, deque[_Ended]]()

    def take(self, size: int) -> Bytes:
        """Return uint8[size] of any content."""
        if size < _LEAST:
            return np.empty(size, np.uint8)
        room = 1 << (size - 1).bit_length()  # of which only the pages that are written take memory
        free = self._free.setdefault(room, deque(maxlen=self._n_kept))
        try:
            memory = free.pop().memory
        except LookupError:
            memory = np.empty(room, np.uint8)
        # Views of views refer to the first array over a memoryview, so its end is the end of all of them. No Python
        # runs at that end, for an interrupt in it would be lost: the reference puts itself among those that are free.
        holder = memory.view(_Holder)
        array = np.frombuffer(holder.data, np.uint8, size)
        holder.reference = _Ended(array, free.append)
        holder.reference.memory = memory
        return array


class _Ended(weakref.ref[Bytes]):
    """A reference to an array that was handed out, with its memory."""

    memory: Bytes


class _Holder(np.ndarray[Any, np.dtype[np.uint8]]):
    """A view of some memory that lives as long as the array that is made of it, and keeps its reference."""

    reference: _Ended


class Rooms:
    """Gives memory for arrays that are read together: all but large ones get pieces of larger memory, which the system
    gives in large pages, in a fraction of the time. An array keeps the memory that it is a piece of.

    Args:
        sizes: Bytes of the arrays, each asked for once, in any order.
    """

    def __init__(self, sizes: Iterable[int]) -> None:
        self._n_left = sum(_aligned(size) for size in sizes if size <= _MAX_PIECE)
        self._rest = np.empty(0, np.uint8)

    def take(self, size: int) -> Bytes:
        """Return uint8[size] of any content. Raises MemoryError, ValueError or OverflowError if there is no memory."""
        if size > _MAX_PIECE:
            return _from_a_large_page(size)
        if self._rest.size < size and self._n_left >= _LARGE_PAGE:
            self._rest = _from_a_large_page(min(self._n_left, _ROOM))
        self._n_left -= _aligned(size)
        if self._rest.size < size:
            return np.empty(size, np.uint8)
        piece, self._rest = self._rest[:size], self._rest[_aligned(size) :]
        return piece


def _aligned(size: int) -> int:
    return size + -size % _ALIGNMENT


def _from_a_large_page(size: int) -> Bytes:
    """Return uint8[size] of any content that begins with a large page."""
    memory = np.empty(size + _LARGE_PAGE, np.uint8)  # what is not written to takes no memory
    begin = -memory.ctypes.data % _LARGE_PAGE
    return memory[begin : begin + size]


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
        raise NoMemory(f"{what}: there is no memory for {size} bytes") from None
