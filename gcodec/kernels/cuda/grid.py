"""Compilation, threads, sums over threads, and checksums, which all CUDA kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import cuda

from ..core.scalar import I32, U32, U64, spread, word_multiplier

THREADS = 128  #: of a block of the grid; a power of two
STRIP = 8  #: consecutive values of which a thread knows the sums

ONE, STRIDE = I32(1), I32(STRIP)
BAND = I32(STRIP - 1)
N: Any  #: ``THREADS`` in 32 bits
TILE: Any  #: values between two scans


def set_threads(n: int) -> None:
    """Make blocks of ``n`` threads: for tests, before any other module of this package is imported."""
    global THREADS, N, TILE
    THREADS, N, TILE = n, I32(n), I32(n * STRIP)


set_threads(THREADS)


def gpu_kernel(function: Callable[..., Any]) -> Any:
    """Compile for the device when it is first launched."""
    return cuda.jit(function)


def gpu_function(function: Callable[..., Any]) -> Any:
    """Compile a part of kernels."""
    return cuda.jit(function, device=True)


@gpu_function
def block_number():
    """Number of this block of the grid, which has one dimension."""
    return I32(cuda.grid(1) // THREADS)


@gpu_function
def scan(cells):
    """Replace each of ``cells`` (shared, uint64[THREADS]) by the sum up to it."""
    lane, step = I32(cuda.threadIdx.x), ONE
    cuda.syncthreads()
    while step < N:
        more = U64(0)
        if lane >= step:
            more = U64(cells[I32(lane - step)])
        cuda.syncthreads()
        cells[lane] = U64(U64(cells[lane]) + more)
        cuda.syncthreads()
        step = I32(step + step)


@gpu_function
def scan_three(first, second, third, with_second):
    """Make a :func:`scan` of three arrays at once, or of the first and the third."""
    lane, step = I32(cuda.threadIdx.x), ONE
    cuda.syncthreads()
    while step < N:
        a, b, c = U64(0), U64(0), U64(0)
        if lane >= step:
            before = I32(lane - step)
            a, c = U64(first[before]), U64(third[before])
            if with_second:
                b = U64(second[before])
        cuda.syncthreads()
        first[lane] = U64(U64(first[lane]) + a)
        third[lane] = U64(U64(third[lane]) + c)
        if with_second:
            second[lane] = U64(U64(second[lane]) + b)
        cuda.syncthreads()
        step = I32(step + step)


@gpu_function
def sum_of_words(words, start, n):
    """This thread's share of a checksum: of words ``start ... start + n``, numbered from 0. ``start``: uint64."""
    total = U64(0)
    for i in range(I32(cuda.threadIdx.x), n, N):
        total = U64(total + U64(U64(words[start + U64(i)]) * U64(word_multiplier(U32(i)))))
    return total


@gpu_function
def weighed(word, index):
    """Return the number that one word adds to a checksum."""
    return U64(U64(U32(word)) * U64(word_multiplier(U32(index))))


@gpu_function
def evens(marks):
    """Bytes 0, 2, 4 and 6 of a uint64 as four numbers of 16 bits in one, to be summed."""
    return U64(U64(marks) & U64(0x00FF00FF00FF00FF))


@gpu_function
def odds(marks):
    """Bytes 1, 3, 5 and 7 likewise."""
    return U64(U64(U64(marks) >> U64(8)) & U64(0x00FF00FF00FF00FF))


@gpu_function
def number_in(even, odd, plane):
    """The number of a plane, among those that :func:`evens` and :func:`odds` made: uint32."""
    both = U64(odd) if plane & U32(1) else U64(even)
    return U32(U64(both >> U64(U32(U32(plane >> U32(1)) << U32(4)))) & U64(0xFFFF))


@gpu_function
def marks_before(masks, plane, rank):
    """Return how many of a strip's values before number ``rank`` own an item of a plane.

    ``masks``: uint64, byte p has the bits of the values that own one of plane p.
    """
    own = U32(U64(U64(masks) >> U64(U32(plane << U32(3)))) & U64(255))
    return U32(cuda.popc(U32(own & U32(U32(U32(1) << U32(rank)) - U32(1)))))


@gpu_function
def strip_mask(mark, rank):
    """A value's part of ``masks``."""
    return U64(spread(mark) << U64(rank))


SEED = np.uint64(0x9E3779B97F4A7C15)


@gpu_function
def seed_of(block):
    """Seed of a block's checksum."""
    return U64(U64(I32(block) + ONE) * SEED)
