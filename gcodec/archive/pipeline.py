"""Work on parts by several threads, results in order, a bounded number of parts in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ..errors import InvalidArgument

Item = TypeVar("Item")
Result = TypeVar("Result")


def thread_count(threads: int | None) -> int:
    """``threads``, or as many as this process may run on at once if None."""
    if threads is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if threads < 1:
        raise InvalidArgument(f"threads must be positive, not {threads}")
    return threads


def ordered_map(
    pool: ThreadPoolExecutor, function: Callable[[Item], Result], items: Iterable[Item], window: int
) -> Iterator[Result]:
    """``map(function, items)`` by the pool's threads, never more than ``window`` items ahead of the caller."""
    pending: deque[Future[Result]] = deque()
    try:
        for item in items:
            if len(pending) >= window:
                yield pending.popleft().result()
            pending.append(pool.submit(function, item))
        while pending:
            yield pending.popleft().result()
    finally:
        for future in pending:
            future.cancel()
