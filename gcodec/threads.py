"""Threads: how many to use, one pool for the process, and writing results in order."""

from __future__ import annotations

import operator
import os
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple, TypeVar
from weakref import WeakSet

from .errors import InvalidArgument

_MIN_VALUES_DEFAULT = 1 << 21  #: smaller arrays are coded on the calling thread, unless the caller asks for threads,
_MIN_VALUES = 1 << 18  #: and even smaller ones always: starting threads takes longer than the work
_MAX_THREADS = 64

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Pool(NamedTuple):
    """Threads that make calls for all callers; they end with the process.

    A ThreadPoolExecutor would do, but for Ctrl-C: its locks are taken in Python, and an interrupt there leaves them
    locked for good. Everything here is one step of the interpreter's.

    Attributes:
        calls: What is to be done.
        started: An entry for each thread.
        idle: An entry for each thread that waits for something to do, about.
    """

    calls: SimpleQueue[_Helper]
    started: list[None]
    idle: list[None]

    def submit(self, helper: _Helper) -> None:
        """Have a call made, sooner or later, or not at all if no thread can be started."""
        if self.calls.qsize() >= len(self.idle) and len(self.started) < min(os.cpu_count() or 1, _MAX_THREADS):
            try:
                start_new_thread(self._serve, ())
                self.started.append(None)
            except RuntimeError:  # no more threads are available, or the interpreter is shutting down
                if not self.started:
                    return
        self.calls.put(helper)

    def _serve(self) -> None:
        while True:
            self.idle.append(None)
            helper = self.calls.get()
            self.idle.pop()
            helper.run()
            del helper  # and with it the caller's memory


def _new_pool() -> _Pool:
    return _Pool(SimpleQueue(), [], [])


_pool = _new_pool()


def _forget_threads() -> None:
    """Make new pools: threads do not survive a fork."""
    global _pool
    _pool = _new_pool()
    for pool in list(_work_pools):
        pool.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def check_threads(threads: int | None) -> None:
    """Raise InvalidArgument unless ``threads`` is None or a positive integer."""
    if threads is None or (type(threads) is int and threads > 0):
        return
    try:
        number = operator.index(threads)
    except TypeError:
        raise InvalidArgument(f"threads must be None or an integer, not {threads!r}") from None
    if number < 1:
        raise InvalidArgument(f"threads must be at least 1, not {number}")


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
    """Return this rank's share of the host's cores, where ranks are counted as torchrun counts them. Raises
    InvalidArgument if the variable that it sets is no number of ranks; empty, it counts as not set."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "").strip() or "1"
    if not (text.isdecimal() and int(text)):
        raise InvalidArgument(f"LOCAL_WORLD_SIZE must be a number of ranks, at least 1, not {text!r:.80}: it is a "
                              "variable of the environment, which torchrun sets")
    return max((os.cpu_count() or 1) // int(text), 1)


def run_parallel(work: Callable[[], Any], threads: int) -> None:
    """Run ``work()`` on this thread and on up to ``threads - 1`` others at the same time.

    The pool is shared by all callers, so the others may start late or not at all. ``work`` therefore takes whatever is
    left to do until there is nothing, and the call on this thread does all of it if need be. Raises what any of the
    calls raised.

    Args:
        work: What to do, called once on each thread.
        threads: Number of threads, this one included.
    """
    helpers = [_Helper(work) for _ in range(threads - 1)]
    interrupt: BaseException | None = None
    try:
        for helper in helpers:
            _pool.submit(helper)
        work()
    finally:
        working = list(helpers)
        while working:
            try:
                _end_all(working)
            except BaseException as error:  # whatever a signal handler raises, Ctrl-C for one
                interrupt = error
        if interrupt is not None:
            raise interrupt
    for helper in helpers:
        if helper.error is not None:
            raise helper.error


def _end_all(helpers: list[_Helper]) -> None:
    """End all calls and take them out of the list; after an interrupt, this can be called again.

    It is a function, because Python 3.13 has no handler for an interrupt between the rounds of a ``while`` that stands
    in a ``try`` or a ``with`` (github.com/python/cpython/issues/130279); so are others here.
    """
    while helpers:
        helpers[-1].end()
        helpers.pop()


class _Helper:
    """A call of ``work`` on another thread, after whose end that thread touches none of the caller's memory.

    A future would do, but for Ctrl-C: its locks are Python's, and an interrupt inside of them leaves them locked.

    Attributes:
        error: What the call raised.
    """

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._owner, self._ended, self._end = work, dict[str, str](), False, Lock()
        self._end.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        """Call ``work`` on this thread, unless the caller has ended."""
        if self._owner.setdefault("is", "thread") == "caller":
            return
        try:
            self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            self._end.release()

    def end(self) -> None:
        """Keep the call from beginning, or wait for its end; after an interrupt, this can be called again."""
        while self._owner.setdefault("is", "caller") == "thread" and not self._ended:
            self._end.acquire()


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


class WorkPool(ThreadPoolExecutor):
    """Threads for one task. A call is made by the caller itself where they take none: when the interpreter ends, which
    waits for the program's threads but lets no executor have new calls, or where no thread can be started.

    Args:
        max_workers: How many threads there are at most.
        name: What their names begin with.
    """

    def __init__(self, max_workers: int, name: str = "gcodec") -> None:
        super().__init__(max_workers, name)
        self._begun_with = max_workers, name
        _work_pools.add(self)

    def forget_threads(self) -> None:
        """Begin anew in a forked process, which has no threads but the caller's: a call would wait for them forever."""
        super().__init__(*self._begun_with)

    def submit(self, function: Callable[..., Result], /, *args: Any, **options: Any) -> Future[Result]:
        """Have a call made."""
        try:
            return super().submit(function, *args, **options)
        except RuntimeError:
            future = Future[Result]()
            try:
                future.set_result(function(*args, **options))
            except BaseException as error:
                future.set_exception(error)
            return future


_work_pools: WeakSet[WorkPool] = WeakSet()  #: all there are, of which a fork leaves no threads

_BATCH_BYTES = 1 << 20  #: small items are handed to a thread together: that takes as long as coding thousands of values


def ordered_map(
    pool: ThreadPoolExecutor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    window: int,
    size_of: Callable[[Item], int],
) -> Iterator[Result]:
    """Yield ``map(function, items)``, computed by a pool's threads; on this thread if the items are few and small.

    Args:
        pool: The threads.
        function: What is done with an item.
        items: What it is done with.
        window: How many batches of items are begun ahead of the caller, at most.
        size_of: Returns the bytes of an item.
    """

    def work(batch: list[Item]) -> tuple[list[Result], BaseException | None]:
        results: list[Result] = []
        try:
            results.extend(map(function, batch))
        except BaseException as error:
            return results, error
        return results, None

    batches = _batches(items, size_of)
    first, second = next(batches, None), next(batches, None)
    if second is None:
        yield from map(function, first or ())
        return
    futures: deque[Future[tuple[list[Result], BaseException | None]]] = deque()
    try:
        for batch in chain((first or [], second), batches):
            if len(futures) >= window:
                yield from _results_of(futures.popleft())
            futures.append(pool.submit(work, batch))
        yield from _results_of_all(futures)
    finally:
        for future in futures:
            future.cancel()


def _results_of_all(futures: deque[Future[tuple[list[Result], BaseException | None]]]) -> Iterator[Result]:
    """Yield what batches gave, and take them out; raise what ended one."""
    while futures:
        yield from _results_of(futures.popleft())


def _results_of(future: Future[tuple[list[Result], BaseException | None]]) -> Iterator[Result]:
    """Yield what a batch gave, and raise what ended it."""
    results, error = future.result()
    yield from results
    if error is not None:
        raise error


def _batches(items: Iterable[Item], size_of: Callable[[Item], int]) -> Iterator[list[Item]]:
    """Yield the items in order, small ones several at a time."""
    batch: list[Item] = []
    n_bytes = 0
    for item in items:
        if batch and n_bytes + size_of(item) > _BATCH_BYTES:
            yield batch
            batch, n_bytes = [], 0
        batch.append(item)
        n_bytes += size_of(item)
    if batch:
        yield batch


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
        self._lock, self._waiting = Lock(), list[SimpleQueue[None]]()

    def next_part(self) -> tuple[int, Any, int] | None:
        """Return the next part to produce, its buffer (None: write it in place) and its place; None at the end."""
        while True:
            with self._lock:
                if not self._remaining:
                    return None
                if self._first_missing in self._remaining or self._buffers:
                    return self._take()
                # Not a condition, which an interrupt may leave without the lock that it gives back.
                change = SimpleQueue[None]()
                self._waiting.append(change)
            change.get()

    def _take(self) -> tuple[int, Any, int]:
        """Return the next part, its buffer and its place, where there is one to produce; called with the lock."""
        part, buffer = self._first_missing, None
        if part not in self._remaining:
            while (part := self._order.popleft()) not in self._remaining:
                pass
            buffer = self._buffers.pop()
        self._remaining.remove(part)
        if not self._remaining:
            self._wake()
        return part, buffer, self.end

    def _wake(self) -> None:
        """Have all threads that wait look again; called with the lock."""
        for change in self._waiting:  # told before it is forgotten: after an interrupt, it may be told again
            change.put(None)
        self._waiting.clear()

    def complete(self, part: int, buffer: Any, size: int) -> list[tuple[Any, int, int]]:
        """Record that ``part`` takes ``size`` bytes and lies in ``buffer``, or in its place if that is None.

        Returns:
            The buffered parts that now have a place, as (buffer, size, place). The caller copies them.
        """
        with self._lock:
            self._complete[part] = buffer, size
            placed = self._place()
            self._wake()
        return placed

    def _place(self) -> list[tuple[Any, int, int]]:
        """Return what has a place now, as :meth:`complete` does; called with the lock."""
        placed = []
        while self._first_missing in self._complete:
            buffer, size = self._complete.pop(self._first_missing)
            if buffer is not None:
                placed.append((buffer, size, self.end))
            self.end += size
            self._first_missing += 1
        return placed

    def release(self, buffer: Any) -> None:
        """Take back a buffer whose part has been copied."""
        with self._lock:
            self._buffers.append(buffer)
            self._wake()

    def stop(self) -> None:
        """Start no further part."""
        with self._lock:
            self._remaining.clear()
            self._wake()
