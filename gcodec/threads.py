"""Threads: how many to use, one pool for the process, and writing results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, local
from typing import Any, TypeVar

from .errors import InvalidArgument

_MIN_VALUES_DEFAULT = 1 << 21  #: smaller arrays are coded on the calling thread, unless the caller asks for threads,
_MIN_VALUES = 1 << 18  #: and even smaller ones always: starting threads takes longer than the work
_MAX_THREADS = 64
_pool: ThreadPoolExecutor | None = None
_here = local()  #: its attribute ``submitting``: this thread is inside the pool's own locks

Item = TypeVar("Item")
Result = TypeVar("Result")


def _forget_pool() -> None:
    """Drop the pool: its threads do not survive a fork."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def check_threads(threads: int | None) -> None:
    """Raise InvalidArgument unless ``threads`` is None or a positive number."""
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads must be at least 1, not {threads}")


def n_threads(threads: int | None, n_values: int) -> int:
    """Return the number of threads to code an array with.

    Args:
        threads: As the caller asks for; None means all cores for large arrays.
        n_values: Number of values in the array.

    Raises:
        InvalidArgument: For ``threads`` below 1.
    """
    check_threads(threads)
    if n_values < (_MIN_VALUES_DEFAULT if threads is None else _MIN_VALUES):
        return 1
    return min(threads or os.cpu_count() or 1, _MAX_THREADS)


def available_threads(threads: int | None = None) -> int:
    """Return ``threads``, or as many as this process may run at once if it is None. Raises InvalidArgument."""
    check_threads(threads)
    if threads is not None:
        return threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank() -> int:
    """Return this rank's share of the host's cores, where ranks are counted as torchrun counts them."""
    return max((os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)


def run_parallel(work: Callable[[], Any], threads: int) -> None:
    """Run ``work()`` on this thread and on up to ``threads - 1`` others at the same time.

    The pool is shared by all callers, so the others may start late or not at all. ``work`` therefore takes whatever is
    left to do until there is nothing, and the call on this thread does all of it if need be. Raises what any of the
    calls raised.

    Args:
        work: What to do, called once on each thread.
        threads: Number of threads, this one included.
    """
    futures = _submit(work, threads - 1)
    try:
        work()
    finally:
        started = [future for future in futures if not future.cancel()]
        errors = [error for future in started if (error := future.exception()) is not None]
    if errors:
        raise errors[0]


def _submit(work: Callable[[], Any], count: int) -> list[Future[Any]]:
    """Submit ``work`` to the pool ``count`` times, or as often as threads are available."""
    global _pool
    futures: list[Future[Any]] = []
    if getattr(_here, "submitting", False):  # in a signal handler that interrupted these very lines
        return futures
    _here.submitting = True
    try:
        for _ in range(count):
            if _pool is None:
                _pool = ThreadPoolExecutor(min(os.cpu_count() or 1, _MAX_THREADS), thread_name_prefix="gcodec")
            futures.append(_pool.submit(work))
    except RuntimeError:  # no more threads are available, or the interpreter is shutting down
        pass
    finally:
        _here.submitting = False
    return futures


def run_batches(work: Callable[[int, int], Any], n_blocks: int, threads: int, batch: int = 32) -> None:
    """Call ``work(begin, end)`` over all blocks, in batches where there are several threads.

    No new batch is started after an error, which is raised.

    Args:
        work: What to do with the blocks ``begin ... end - 1``.
        n_blocks: Number of blocks.
        threads: Number of threads, this one included.
        batch: Number of blocks in a batch.
    """
    if threads == 1 or n_blocks <= batch:
        if n_blocks:
            work(0, n_blocks)
        return
    batches = deque((begin, min(begin + batch, n_blocks)) for begin in range(0, n_blocks, batch))

    def run() -> None:
        while batches:
            try:
                begin, end = batches.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                work(begin, end)
            except BaseException:
                batches.clear()
                raise

    run_parallel(run, min(threads, len(batches)))


def ordered_map(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], window: int
) -> Iterator[Result]:
    """Yield ``map(function, items)``, computed by a pool's threads.

    Args:
        pool: The threads.
        function: What is done with an item.
        items: What it is done with.
        window: How many items are begun ahead of the caller, at most.
    """
    futures: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(futures) >= window:
                yield futures.popleft().result()
            futures.append(pool.submit(function, item))
        while futures:
            yield futures.popleft().result()
    finally:
        for future in futures:
            future.cancel()


class OrderedWriter:
    """Places parts of unknown size one after another, whichever threads produce them.

    The first part that is still missing has a known place, because all parts before it are complete: it is produced
    there. Other parts are produced in buffers. Whoever completes the first missing part learns the places of the
    complete parts behind it, copies them there and releases their buffers. A buffered part is moved twice, so one part
    for every thread is kept back until its place is known, as long as there are others to do. Workers block only when
    no buffer is free.

    Args:
        n_parts: Number of parts.
        buffers: Buffers for parts whose place is not known yet.
        start: Place of the first part.
        n_workers: Number of threads that produce parts.

    Attributes:
        end: Place after the last part that has a place.
    """

    def __init__(self, n_parts: int, buffers: list[Any], start: int, n_workers: int) -> None:
        self._buffers, self.end = buffers, start
        self._first_missing, self._remaining = 0, set(range(n_parts))
        # Parts to buffer: multiples of n_workers come last, so that they are likely to find their place known.
        self._order = deque(sorted(self._remaining, key=lambda part: part % n_workers == 0))
        self._complete: dict[int, tuple[Any, int]] = {}
        self._changed = Condition()

    def next_part(self) -> tuple[int, Any, int] | None:
        """Return the next part to produce, its buffer (None: write it in place) and its place; None at the end."""
        with self._changed:
            self._changed.wait_for(
                lambda: not self._remaining or self._first_missing in self._remaining or self._buffers
            )
            if not self._remaining:
                return None
            part, buffer = self._first_missing, None
            if part not in self._remaining:
                while (part := self._order.popleft()) not in self._remaining:
                    pass
                buffer = self._buffers.pop()
            self._remaining.remove(part)
            if not self._remaining:
                self._changed.notify_all()
            return part, buffer, self.end

    def complete(self, part: int, buffer: Any, size: int) -> list[tuple[Any, int, int]]:
        """Record that ``part`` takes ``size`` bytes and lies in ``buffer``, or in its place if that is None.

        Returns:
            The buffered parts that now have a place, as (buffer, size, place). The caller copies them.
        """
        placed = []
        with self._changed:
            self._complete[part] = buffer, size
            while self._first_missing in self._complete:
                buffer, size = self._complete.pop(self._first_missing)
                if buffer is not None:
                    placed.append((buffer, size, self.end))
                self.end += size
                self._first_missing += 1
            self._changed.notify()
        return placed

    def release(self, buffer: Any) -> None:
        """Take back a buffer whose part has been copied."""
        with self._changed:
            self._buffers.append(buffer)
            self._changed.notify()

    def stop(self) -> None:
        """Start no further part."""
        with self._changed:
            self._remaining.clear()
            self._changed.notify_all()
