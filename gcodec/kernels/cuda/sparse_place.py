"""Kernels that find the values that changes of sparse blocks are for, and write what these become.

A tile of a sub-stream has a group of values for each thread. How many of them are of a class, summed over the threads
before, says the rank of a group's first one; changes are found among the class's by their rank.

    thread                     0         1         2          3
    members in the group       5         0         7          2
    rank of the first one      0         5         5          12
    changes' ranks             2                   6, 11      12
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ..block.header import BAD_STREAM, CONSTANT, SPARSE
from ..core.scalar import I32, U32, U64, lesser
from ..entropy.changes import ordered
from .block_reader import copy_values
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan
from .sparse_check import block_of, book_of, values_in
from .sparse_tables import GROUP


class ClassMembers(NamedTuple):
    """The values of a class, by their magnitude; all uint64.

    Attributes:
        mask: 2**(W - 1) - 1, which cuts off the sign.
        lower: The first magnitude of the class.
        upper: The first one behind it.
    """

    mask: Any
    lower: Any
    upper: Any


class ValueGroup(NamedTuple):
    """The values of a sub-stream that a thread walks.

    Attributes:
        values: uintW.
        at: Where in ``values`` the sub-stream begins, uint64.
        begin: First value of the group in the sub-stream, int32.
        end: End of its values, int32; not above ``begin`` where there are none.
    """

    values: Any
    at: Any
    begin: Any
    end: Any


@gpu_function
def is_member(value, members):
    """Return whether a value, a uint64, is a member of a class, given as :class:`ClassMembers`."""
    magnitude = U64(value & members.mask)
    return members.lower <= magnitude and magnitude < members.upper


@gpu_function
def first_not_below(ranks, begin, count, rank):
    """Return the first number from ``begin`` on, of ``count``, of a change whose rank is at least ``rank``."""
    low, high = np.int64(begin), np.int64(begin + count)
    while low < high:
        middle = (low + high) >> 1
        if ranks[middle] < rank:
            low = middle + 1
        else:
            high = middle
    return low


@gpu_function
def place_in_group(changes, first, end, rank, group, members):
    """Find which values of a thread's group the changes of one class are for, and what these become.

    Args:
        changes: The :class:`sparse_tables.StoredChanges`.
        first: Number of the first change that is not before the group, int64.
        end: End of the class's changes, int64.
        rank: Members of the class before the group, uint32.
        group: The :class:`ValueGroup`, of the base.
        members: The :class:`ClassMembers`.
    """
    k, sign = first, U64(members.mask + U64(1))
    for i in range(group.begin, group.end):
        value = U64(group.values[group.at + U64(i)])
        if is_member(value, members):
            if k < end and changes.ranks[k] == rank:
                moved = U64(U64(ordered(value, sign)) + U64(changes.steps[k]))
                changes.steps[k] = U64(ordered(U64(moved & U64(U64(sign << U64(1)) - U64(1))), sign))
                changes.places[k] = U32(i)
                k += 1
            rank = U32(rank + U32(1))


@gpu_function
def count_members(group, members):
    """Return how many values of a :class:`ValueGroup` are of a class: uint32."""
    count = U32(0)
    for i in range(group.begin, group.end):
        if is_member(U64(group.values[group.at + U64(i)]), members):
            count = U32(count + U32(1))
    return count


@gpu_function
def group_in_tile(values, at, tile, n):
    """Return the :class:`ValueGroup` of this thread.

    Args:
        values: uintW.
        at: Where in ``values`` the sub-stream begins, uint64.
        tile: First value of the tile in the sub-stream, int32.
        n: Values of the sub-stream, int32.
    """
    begin = I32(tile + I32(I32(cuda.threadIdx.x) * I32(GROUP)))
    return ValueGroup(values, at, begin, I32(lesser(I32(begin + I32(GROUP)), n)))


@gpu_kernel
def place_changes(frame, shape, books, streams, changes, base, statuses):
    """Find the places of a sub-stream's changes and the values there, with one block of the grid for each sub-stream.

    Args:
        frame: The :class:`sparse_tables.SparseFrame`.
        shape: The :class:`sparse_tables.SparseShape`.
        books: The :class:`sparse_tables.ChangeBooks`.
        streams: The :class:`sparse_tables.SubStreams`.
        changes: The :class:`sparse_tables.StoredChanges`; ``places`` and values in place of ``steps`` are results.
        base: uintW[n_values], the base.
        statuses: int32[n_blocks], results: BAD_STREAM where a change is for a value that there is not.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    lane, g = I32(cuda.threadIdx.x), block_number()
    b = streams.owner[g]
    log2, block = streams.logs[b], block_of(frame, b)
    start = U32(U32(I32(g - streams.firsts[b])) << log2)
    n = I32(lesser(U32(U32(values_in(shape, b)) - start), U32(U32(1) << log2)))
    at = U64(U64(U64(b) << U64(shape.block_log2)) + U64(start))
    c, mask = book_of(block, shape), U64(U64(U64(1) << U64(shape.width - U32(1))) - U64(1))
    first = streams.starts[g]
    for k in range(I32(books.n_classes[c])):
        count = np.int64(streams.counts[g, k])
        if count:
            members = ClassMembers(mask, U64(books.bounds[c, k]), U64(books.bounds[c, k + 1]))
            done = U64(0)
            for tile in range(I32(0), n, I32(N * I32(GROUP))):
                group = group_in_tile(base, at, I32(tile), n)
                own = count_members(group, members)
                cells[lane] = U64(own)
                scan(cells)
                rank = U32(U64(U64(done + U64(cells[lane])) - U64(own)) & U64(0xFFFFFFFF))
                done = U64(done + U64(cells[N - I32(1)]))
                if own:
                    change = first_not_below(changes.ranks, first, count, rank)
                    place_in_group(changes, change, first + count, rank, group, members)
                cuda.syncthreads()
            if lane == 0 and U64(changes.ranks[first + count - 1]) >= done:
                statuses[b] = BAD_STREAM
            first += count


@gpu_kernel
def apply_changes(shape, streams, totals, changes, out):
    """Write the values of a sub-stream's changes to their places, with one block of the grid for each sub-stream.

    Args:
        shape: The :class:`sparse_tables.SparseShape`.
        streams: The :class:`sparse_tables.SubStreams`.
        totals: uint32[n_streams], changes of each.
        changes: The :class:`sparse_tables.StoredChanges`, as :func:`place_changes` leaves them.
        out: uintW[n_values], which has the base's values; result.
    """
    g = block_number()
    b, first = streams.owner[g], streams.starts[g]
    start = U64(U64(U32(I32(g - streams.firsts[b]))) << U64(streams.logs[b]))
    at = U64(U64(U64(b) << U64(shape.block_log2)) + start)
    for k in range(I32(cuda.threadIdx.x), I32(totals[g]), N):
        out[at + U64(changes.places[first + k])] = changes.steps[first + k]


@gpu_kernel
def copy_stored_blocks(frame, shape, out):
    """Write the values of a raw or constant block, with one block of the grid for each block of the frame.

    Args:
        frame: The :class:`sparse_tables.SparseFrame`.
        shape: The :class:`sparse_tables.SparseShape`.
        out: uintW[n_values], result.
    """
    b = block_number()
    block, n = block_of(frame, b), values_in(shape, b)
    kind = U32(U32(block.words[block.start]) & U32(255))
    if kind != U32(SPARSE):
        n_stored = I32(1) if kind == U32(CONSTANT) else n
        copy_values(block, n, n_stored, shape, out, U64(U64(b) << U64(shape.block_log2)))
