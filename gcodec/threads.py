"""Threads: how many to use, one pool for the process, and writing results in order."""

from __future__ import annotations

import operator
import os
import sys
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from queue import SimpleQueue
from threading import Lock
from time import monotonic, sleep
from typing import Any, Generic, TypeVar
from weakref import ref

from .errors import InvalidArgument, Unsupported

_MIN_VALUES_DEFAULT = 1 << 21  #: smaller arrays are coded on the calling thread, unless the caller asks for threads,
MIN_SHARED = 1 << 18  #: and even smaller ones always: starting threads takes longer than the work
_MAX_THREADS = 64
_MOST = 1 << 16  #: more than any machine has, and few enough for the lengths of Python's containers
_LONGEST_WAIT = 0.5  #: seconds, after which a thread is looked for that may have ended without a word

# Threads share buffers and compiled kernels here, and nobody has tried what becomes of them without the lock. All that
# computes imports this module, so that nothing is computed then.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise Unsupported(
        "gcodec does not work without the global interpreter lock: start this free-threaded Python with PYTHON_GIL=1, "
        "or as python -X gil=1"
    )

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Token:
    """Lives as long as a thread that it was given to, which may end before its first step for lack of memory.

    Attributes:
        pool: The pool, whose end ends the thread.
    """

    pool: ref[WorkPool]


class Call(Generic[Result]):
    """A call that a thread of a pool makes, or the caller takes back.

    Its lock is one of the interpreter's, not a future's: those are taken in Python, and an interrupt there leaves them
    locked for good.

    Attributes:
        error: What the call raised.
    """

    _value: Result

    def __init__(self, pool: WorkPool, work: Callable[[], Result]) -> None:
        self._pool, self._work, self._owner, self._end = pool, work, dict[str, str](), Lock()
        self._end.acquire()
        # All attributes that a thread sets are there before, so that it needs no memory to tell that it has ended.
        self.error: BaseException | None = None
        self._value, self._ended = None, False  # type: ignore[assignment]

    def run(self, owner: str = "thread") -> None:
        """Make the call on this thread, unless somebody else has taken it."""
        if self._owner.setdefault("is", owner) != owner:
            return
        try:
            self._value = self._work()
        except BaseException as error:
            self.error = error
        finally:
            self._ended = True
            del self._work  # and with it the caller's memory
            self._end.release()

    def end(self) -> None:
        """Keep the call from beginning, or wait for its end; after an interrupt, this can be called again."""
        while self._owner.setdefault("is", "nobody") == "thread" and not self._is_lost() and not self._ended:
            self._await_end(_LONGEST_WAIT)

    def is_over(self) -> bool:
        """Return whether the call has ended, or will not begin."""
        return self._ended or self._owner.get("is") == "nobody"

    def is_alive(self) -> bool:
        """Return whether the call is being made, or will be by a thread that is there."""
        return not (self.is_over() or self._is_lost())

    def join(self, seconds: float) -> None:
        """Wait for the end of the call, or of its thread, but no longer than some seconds."""
        end = monotonic() + seconds
        while self.is_alive() and (left := end - monotonic()) > 0:
            self._await_end(min(left, _LONGEST_WAIT))

    def cancel(self) -> None:
        """Keep the call from beginning, if it has not begun."""
        self._owner.setdefault("is", "nobody")

    def result(self) -> Result:
        """Return what the call returns, or raise what it raises. Made here if the pool has no thread that could."""
        seconds = 0.001
        while not self._ended:
            if not self._pool.has_threads():
                self.run("caller")
                if self._is_lost():
                    raise RuntimeError(
                        "a call was given up, or its thread is gone: no process goes on with the calls"
                        " of the one that it was forked from"
                    )
            self._await_end(seconds)
            seconds = min(2 * seconds, _LONGEST_WAIT)
        if self.error is not None:
            raise self.error
        return self._value

    def _is_lost(self) -> bool:
        return not (self._ended or self._pool.has_threads())

    def _await_end(self, seconds: float) -> None:
        if self._end.acquire(timeout=seconds):
            self._end.release()  # for others that wait


class WorkPool:
    """Threads that make calls. Where none can be started, for lack of memory or because the interpreter ends, the
    caller makes them when it asks for their results.

    Executors of the standard library would do, but for interrupts, and for threads that end before their first step,
    which they wait for without end.

    Args:
        max_workers: How many threads there are at most.
    """

    def __init__(self, max_workers: int) -> None:
        self._max_workers = max_workers
        self.forget_threads()
        _pools.append(ref(self, _pools.remove))

    def forget_threads(self) -> None:
        """Begin anew in a forked process, which has no threads but the caller's."""
        self._calls, self._given = SimpleQueue[Any](), deque[Call[Any]]()
        self._threads, self._idle = list[ref[_Token]](), list[None]()

    def __enter__(self) -> WorkPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def has_threads(self) -> bool:
        """Return whether there is a thread that makes calls."""
        return bool(self._threads)

    def submit(self, function: Callable[..., Result], /, *args: Any) -> Call[Result]:
        """Have a call made, sooner or later."""
        call = Call(self, partial(function, *args))
        for other in list(self._given):
            if other.is_over():
                with suppress(ValueError):  # another thread was faster
                    self._given.remove(other)
        self._given.append(call)
        self.add(call)
        return call

    def add(self, call: Call[Any]) -> None:
        """Have a call made, sooner or later, whose end the caller will see to."""
        if self._calls.qsize() >= len(self._idle) and len(self._threads) < self._max_workers:
            # What is called at the end of a thread or a pool is no Python: an interrupt there would be lost, and there
            # may be no memory for it.
            token = _Token()
            token.pool = ref(self, self._calls.put)
            self._threads.append(ref(token, self._threads.remove))
            with suppress(RuntimeError, MemoryError):  # no more threads, or the interpreter is shutting down
                start_new_thread(_serve, (self._calls, self._idle, token))
            del token
        self._calls.put(call)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Yield what the function returns for each item, in order."""
        calls = [self.submit(function, item) for item in items]
        return (call.result() for call in calls)

    def retire(self) -> None:
        """Take no further calls; the threads end after those that were handed in."""
        self._max_workers = 0
        self._calls.put(None)

    def shutdown(self) -> None:
        """Give up the calls that have not begun, wait for the others, and end the threads. After an interrupt, this can
        be called again."""
        self._max_workers = 0
        given = list(self._given)
        _end_all(given)
        self._given.clear()
        self.retire()


def _serve(calls: SimpleQueue[Any], idle: list[None], token: _Token) -> None:
    """Make calls, one after another, until something else comes."""
    while True:
        idle.append(None)
        call = calls.get()
        idle.pop()
        if not isinstance(call, Call):
            calls.put(call)  # for the other threads
            return
        call.run()
        del call  # and with it the caller's memory


_pools = list[Any]()  #: references to all there are, of which a fork leaves no threads
_pool = WorkPool(min(os.cpu_count() or 1, _MAX_THREADS))  #: for short work of all callers


def _forget_threads() -> None:
    for pool in [reference() for reference in list(_pools)]:
        if pool is not None:
            pool.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_threads)


def call_apart(function: Callable[..., Result], /, *args: Any) -> Result:
    """Return ``function(*args)``, made on a thread of its own, where no interrupt reaches it: an exception that a
    signal's handler raises here meanwhile is raised after the call has ended. Raises what the call raises."""
    pool = WorkPool(1)
    call = Call(pool, partial(function, *args))
    begun, interrupt = [call], None
    try:
        pool.add(call)
        return call.result()
    finally:
        while begun:
            try:
                _end_all(begun)
            except BaseException as error:
                interrupt = error
        pool.shutdown()
        if interrupt is not None:
            raise interrupt


def start_thread(work: Callable[[], Result]) -> Call[Result]:
    """Return a call that a thread of its own makes, which does not keep the process from ending.

    Nobody waits for its first step, as ``threading.Thread.start`` does without end where there is no memory for that.

    Args:
        work: What to call. What it raises is kept.

    Raises:
        RuntimeError: No thread can be started.
    """
    pool = WorkPool(1)
    call = Call(pool, work)
    pool.add(call)
    if not pool.has_threads():
        raise RuntimeError("no thread can be started: the process has too many, or too little memory")
    pool.retire()
    return call


def call_later(seconds: float, work: Callable[[], Any]) -> None:
    """Call a function on a thread of its own, after some seconds. Raises RuntimeError if no thread can be started."""

    def wait_and_work() -> None:
        sleep(seconds)
        work()

    start_thread(wait_and_work)


def _end_all(calls: list[Call[Any]]) -> None:
    """End all calls and take them out of the list; after an interrupt, this can be called again.

    It is a function, because Python 3.13 has no handler for an interrupt between the rounds of a ``while`` that stands
    in a ``try`` or a ``with`` (github.com/python/cpython/issues/130279); so are others here.
    """
    while calls:
        calls[-1].end()
        calls.pop()


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

    Raises:
        InvalidArgument: For ``threads`` below 1.
    """
    if threads is None and n_values < _MIN_VALUES_DEFAULT:
        return 1
    check_threads(threads)
    if n_values < MIN_SHARED:
        return 1
    return min(os.cpu_count() or 1 if threads is None else operator.index(threads), _MAX_THREADS)


def available_threads(threads: int | None = None) -> int:
    """Return ``threads``, or as many as this process may run at once if it is None. Raises InvalidArgument."""
    check_threads(threads)
    if threads is not None:
        return min(operator.index(threads), _MOST)  # of Python, for sums with others overflow
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_per_rank() -> int:
    """Return this rank's share of the host's cores, where ranks are counted as torchrun counts them. Raises
    InvalidArgument if the variable that it sets is no number of ranks; empty, it counts as not set."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "").strip() or "1"
    if not (text.isdecimal() and int(text)):
        raise InvalidArgument(
            f"LOCAL_WORLD_SIZE must be a number of ranks, at least 1, not {text!r:.80}: it is a "
            "variable of the environment, which torchrun sets"
        )
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
    helpers = [Call(_pool, work) for _ in range(threads - 1)]
    begun, interrupt = list(helpers), None
    try:
        for helper in helpers:
            _pool.add(helper)
        work()
    finally:
        while begun:
            try:
                _end_all(begun)
            except BaseException as error:  # whatever a signal handler raises, Ctrl-C for one
                interrupt = error
        if interrupt is not None:
            raise interrupt
    for helper in helpers:
        if helper.error is not None:
            raise helper.error


def run_batches(work: Callable[[int, int], Any], n_blocks: int, threads: int, batch: int = 32) -> None:
    """Call ``work(begin, end)`` over all blocks, in batches where there are several threads.

    No new batch is started after an error, which is raised.

    Args:
        work: What to do with the blocks ``begin ... end - 1``.
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


_BATCH_BYTES = 1 << 20  #: small items are handed to a thread together: that takes as long as coding thousands of values


def ordered_map(
    pool: WorkPool,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    window: int,
    size_of: Callable[[Item], int],
) -> Iterator[Result]:
    """Yield ``map(function, items)``, computed by a pool's threads; on this thread if the items are few and small.

    Args:
        function: What is done with an item.
        items: What it is done with.
        window: How many batches of items are begun ahead of the caller, at most: beside the one whose results it has.
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
    calls: deque[Call[tuple[list[Result], BaseException | None]]] = deque()
    try:
        for batch in chain((first or [], second), batches):
            ended = None  # and with it the memory of what the caller has had
            if len(calls) >= window:
                ended = calls.popleft().result()
            calls.append(pool.submit(work, batch))  # before the caller goes on: no thread waits for that
            if ended is not None:
                yield from _given(*ended)
        yield from _all_given(calls)
    finally:
        for call in calls:
            call.cancel()


def _all_given(calls: deque[Call[tuple[list[Result], BaseException | None]]]) -> Iterator[Result]:
    """Yield what batches gave, and take them out; raise what ended one."""
    while calls:
        yield from _given(*calls.popleft().result())


def _given(results: list[Result], error: BaseException | None) -> Iterator[Result]:
    """Yield what a batch gave, and raise what ended it."""
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
        buffers: Buffers for parts whose place is not known yet.
        start: Place of the first part.

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
