"""Compilation, threads, sums over threads, and checksums, which all CUDA kernels share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ..core.scalar import I32, U32, U64, word_multiplier

# A block of values is worked through in tiles. Of a tile, each thread first sums what its strip of eight consecutive
# values needs; a scan over the threads turns the sums into places; then all threads write, value by value.
#
#     values of a block     0 ... 1023                    | 1024 ... 2047 | ...           tiles (128 threads)
#     values of a tile      0 ... 7  | 8 ... 15 | ...     | 1016 ... 1023                 strips
#     summed by thread      0        | 1        | ...     | 127
#     written by thread     0 ... 7  | 8 ... 15 | ...     | 120 ... 127                   value i by thread i mod 128
THREADS = 128  #: threads of a block of the grid; a power of two
STRIP = 8  #: values of a strip: a byte has a bit for each of them

ONE, STRIDE = I32(1), I32(STRIP)
BAND = I32(STRIP - 1)  #: the bits of a value's number that say its rank in its strip
N: Any  #: ``THREADS`` in 32 bits
TILE: Any  #: values of a tile, which lie between two scans


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


class StripCells(NamedTuple):
    """Counts of the strips of a tile, one cell for each thread: arrays in shared memory, uint64[THREADS].

    Attributes:
        even: Number of items of planes 0, 2, 4 and 6, as :func:`evens` packs them; after a scan, up to a strip.
        odd: Number of items of planes 1, 3, 5 and 7, as :func:`odds` packs them.
        bits: Bits of the codes.
        masks: Byte p has a bit for each value of the strip that owns an item of plane p.
    """

    even: Any
    odd: Any
    bits: Any
    masks: Any


class StripItems(NamedTuple):
    """The numbers that place the items of a strip in their planes; all of them uint64.

    Attributes:
        even: Number of items in the tile before the strip, of planes 0, 2, 4 and 6.
        odd: Number of items in the tile before the strip, of planes 1, 3, 5 and 7.
        masks: Byte p has a bit for each value of the strip that owns an item of plane p.
    """

    even: Any
    odd: Any
    masks: Any


@gpu_function
def block_number():
    """Return the number of this block of the grid, which has one dimension."""
    return I32(cuda.grid(1) // THREADS)


@gpu_function
def scan(cells):
    """Replace each of ``cells`` (shared, uint64[THREADS]) by the sum up to it.

        cells     a   b     c       d            step 1 adds the cell before, step 2 the one two before, ...
        step 1    a   a+b   b+c     c+d
        step 2    a   a+b   a+b+c   a+b+c+d
    """
    lane, step = I32(cuda.threadIdx.x), ONE
    cuda.syncthreads()
    while step < N:
        more = U64(0)
        if lane >= step:
            more = U64(cells[I32(lane - step)])
        cuda.syncthreads()  # all have read before any writes
        cells[lane] = U64(U64(cells[lane]) + more)
        cuda.syncthreads()
        step = I32(step + step)


@gpu_function
def scan_strips(cells, with_odd):
    """Make a :func:`scan` of the items and bits of :class:`StripCells`, between the same barriers.

    Args:
        cells: The cells; ``masks`` are left alone.
        with_odd: False where there is one plane, whose items are all in ``even``.
    """
    lane, step = I32(cuda.threadIdx.x), ONE
    cuda.syncthreads()
    while step < N:
        a, b, c = U64(0), U64(0), U64(0)
        if lane >= step:
            before = I32(lane - step)
            a, c = U64(cells.even[before]), U64(cells.bits[before])
            if with_odd:
                b = U64(cells.odd[before])
        cuda.syncthreads()
        cells.even[lane] = U64(U64(cells.even[lane]) + a)
        cells.bits[lane] = U64(U64(cells.bits[lane]) + c)
        if with_odd:
            cells.odd[lane] = U64(U64(cells.odd[lane]) + b)
        cuda.syncthreads()
        step = I32(step + step)


@gpu_function
def sum_of_words(words, start, n):
    """Return this thread's share of the checksum of words ``start ... start + n`` (uint64), numbered from 0."""
    total = U64(0)
    for i in range(I32(cuda.threadIdx.x), n, N):
        total = U64(total + U64(U64(words[start + U64(i)]) * U64(word_multiplier(U32(i)))))
    return total


@gpu_function
def weighed(word, index):
    """Return the number that one word adds to a checksum."""
    return U64(U64(U32(word)) * U64(word_multiplier(U32(index))))


# How many values own an item of a plane is counted for all planes at once. ``spread`` makes a byte for each plane of a
# symbol's mark; eight values' bytes are summed; then each byte gets 16 bits, room for the counts of a whole block.
#
#     marks of a strip    n7 n6 n5 n4 n3 n2 n1 n0        n_p: values that own an item of plane p, a byte each
#     evens               00 n6 00 n4 00 n2 00 n0
#     odds                00 n7 00 n5 00 n3 00 n1


@gpu_function
def spread(mark):
    """Return bit p of eight as bit 8 p of 64.

        mark       ........ ........ ........ ........ ........ ........ ........ hgfedcba
        result     .......h .......g .......f .......e .......d .......c .......b .......a
    """
    copies = U64(U64(mark) * U64(0x0101010101010101)) & U64(0x8040201008040201)
    return U64(U64(copies + U64(0x7F7F7F7F7F7F7F7F)) >> U64(7)) & U64(0x0101010101010101)


@gpu_function
def evens(marks):
    """Return bytes 0, 2, 4 and 6 of a uint64 as four numbers of 16 bits in one, to be summed."""
    return U64(U64(marks) & U64(0x00FF00FF00FF00FF))


@gpu_function
def odds(marks):
    """Return bytes 1, 3, 5 and 7 of a uint64 as four numbers of 16 bits in one, to be summed."""
    return U64(U64(U64(marks) >> U64(8)) & U64(0x00FF00FF00FF00FF))


@gpu_function
def number_in(even, odd, plane):
    """Return the number of a plane, among those that :func:`evens` and :func:`odds` made: uint32."""
    both = U64(odd) if plane & U32(1) else U64(even)
    return U32(U64(both >> U64(U32(U32(plane >> U32(1)) << U32(4)))) & U64(0xFFFF))


@gpu_function
def number_of_item(items, plane, rank):
    """Return how many items of a plane the tile has before the item of a strip's value: uint32.

    Args:
        items: The strip's :class:`StripItems`.
        plane: Number of the plane, uint32.
        rank: Number of the value in its strip, uint32.
    """
    owners = U32(U64(U64(items.masks) >> U64(U32(plane << U32(3)))) & U64(255))
    before = U32(owners & U32(U32(U32(1) << U32(rank)) - U32(1)))
    return U32(number_in(items.even, items.odd, plane) + U32(cuda.popc(before)))


@gpu_function
def strip_mask(mark, rank):
    """Return a value's part of :attr:`StripCells.masks`: its bit, in the byte of every plane that it owns an item of.

        mark 0b00000101, rank 3:    ........ ........ ........ ........ ........ ....1... ........ ....1...
    """
    return U64(spread(mark) << U64(rank))


SEED = np.uint64(0x9E3779B97F4A7C15)


@gpu_function
def seed_of(block):
    """Return the seed of a block's checksum."""
    return U64(U64(I32(block) + ONE) * SEED)
