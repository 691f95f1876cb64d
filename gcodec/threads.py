"""Threads: one pool for the process, and work shared out to whoever is free."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, local
from typing import Any

from .errors import InvalidArgument

_WORTH = 1 << 21  #: values; smaller arrays are coded on the calling thread alone if nobody asks for more,
_POSSIBLE = 1 << 18  #: and even smaller ones whatever is asked for
_pool: ThreadPoolExecutor | None = None
_here = local()  #: ``submitting``: whether this thread is inside the pool's own locks


def _forget() -> None:
    """The threads of a pool do not survive a fork."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def n_threads(threads: int | None, n_values: int) -> int:
    """Threads to use: what the caller asks for, else all cores for large arrays."""
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads={threads}")
    if n_values < (_WORTH if threads is None else _POSSIBLE):
        return 1
    return min(threads or os.cpu_count() or 1, 64)


def together(work: Callable[[], Any], threads: int) -> None:
    """``work()`` on this thread and on up to ``threads - 1`` others at the same time; raises what any of them raised.

    Others may come late or not at all, as the pool is shared by all callers: ``work`` takes what is left to do until
    there is nothing, and this thread's alone does it all if need be.
    """
    others = _submit(work, threads - 1)
    try:
        work()
    finally:
        started = [other for other in others if not other.cancel()]
        errors = [error for other in started if (error := other.exception()) is not None]
    if errors:
        raise errors[0]


def _submit(work: Callable[[], Any], count: int) -> list[Future[Any]]:
    """``work`` on ``count`` threads of the pool, or as many as there are to be had."""
    global _pool
    futures: list[Future[Any]] = []
    if getattr(_here, "submitting", False):  # in a signal handler that interrupted these very lines
        return futures
    _here.submitting = True
    try:
        for _ in range(count):
            if _pool is None:
                _pool = ThreadPoolExecutor(min(os.cpu_count() or 1, 64), thread_name_prefix="gcodec")
            futures.append(_pool.submit(work))
    except RuntimeError:  # no more threads to be had, or the interpreter is shutting down
        pass
    finally:
        _here.submitting = False
    return futures


def run(work: Callable[[int, int], Any], n_blocks: int, threads: int, batch: int = 32) -> None:
    """``work(begin, end)`` over all blocks, by batches where there are several threads. After an error no new batch is
    begun."""
    if threads == 1 or n_blocks <= batch:
        if n_blocks:
            work(0, n_blocks)
        return
    left = deque((begin, min(begin + batch, n_blocks)) for begin in range(0, n_blocks, batch))

    def take() -> None:
        while left:
            try:
                part = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                work(*part)
            except BaseException:
                left.clear()
                raise

    together(take, min(threads, len(left)))


class Relay:
    """Parts of unknown size that are made on any thread and end up one after another.

    The part whose place is known, as all before it are made, is made there. Others are made on trays: whoever hands in
    the part that all were waiting for learns where those after it belong, puts them down and returns the trays. One
    part for every thread is left for its place to be known as long as there are others: what a tray takes is moved
    twice. Nobody waits but for a tray.
    """

    def __init__(self, n_parts: int, trays: list[Any], start: int, n_workers: int) -> None:
        self._trays, self.end = trays, start
        self._due, self._left = 0, set(range(n_parts))
        self._order = deque(sorted(self._left, key=lambda part: part % n_workers == 0))
        self._made: dict[int, tuple[Any, int]] = {}
        self._changed = Condition()

    def take(self) -> tuple[int, Any, int] | None:
        """The next part, and a tray for it or None and its place; None when there is none left."""
        with self._changed:
            self._changed.wait_for(lambda: not self._left or self._due in self._left or self._trays)
            if not self._left:
                return None
            part, tray = self._due, None
            if part not in self._left:
                while (part := self._order.popleft()) not in self._left:
                    pass
                tray = self._trays.pop()
            self._left.remove(part)
            if not self._left:
                self._changed.notify_all()
            return part, tray, self.end

    def hand_in(self, part: int, tray: Any, size: int) -> list[tuple[Any, int, int]]:
        """``part`` is on ``tray`` or in its place, and takes ``size`` bytes. Returns what has its place now: (tray,
        size, place)."""
        placed = []
        with self._changed:
            self._made[part] = tray, size
            while self._due in self._made:
                tray, size = self._made.pop(self._due)
                if tray is not None:
                    placed.append((tray, size, self.end))
                self.end += size
                self._due += 1
            self._changed.notify()
        return placed

    def give_back(self, tray: Any) -> None:
        """What was on it has been put down."""
        with self._changed:
            self._trays.append(tray)
            self._changed.notify()

    def stop(self) -> None:
        """No part is to be begun any more."""
        with self._changed:
            self._left.clear()
            self._changed.notify_all()
