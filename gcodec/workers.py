"""Threads: one pool for the process, and work split over ranges of blocks."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import pairwise
from typing import Any

from .errors import InvalidArgument

_THREADS_ABOVE = 1 << 18  #: values; smaller arrays are coded on the calling thread


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="gcodec")


def n_threads(threads: int | None, n_values: int) -> int:
    """Threads to use: what the caller asks for, else all cores for large arrays."""
    if threads is not None and threads < 1:
        raise InvalidArgument(f"threads={threads}")
    if n_values < _THREADS_ABOVE:
        return 1
    return min(threads or os.cpu_count() or 1, 64)


def split_work(n_blocks: int, threads: int) -> list[tuple[int, int]]:
    """Ranges of blocks (begin, end), one per thread, none empty."""
    threads = max(min(threads, n_blocks), 1)
    edges = [n_blocks * t // threads for t in range(threads + 1)]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def run(work: Callable[[int, int], Any], n_blocks: int, threads: int) -> list[Any]:
    """``work(begin, end)`` over all blocks, split among threads; results in order of the blocks."""
    parts = split_work(n_blocks, threads)
    if len(parts) <= 1:
        return [work(*part) for part in parts]
    futures = [_pool().submit(work, *part) for part in parts[1:]]
    return [work(*parts[0])] + [future.result() for future in futures]
