"""The kernel that reads the changes of sparse blocks: first it counts them, and launched again it keeps them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from ..block.header import BAD_STREAM, CHANGE_LENGTH_WIDTH, CODED_HEADER, MIN_CHANGE_BYTES, SYMBOL_BYTES
from ..core.scalar import I32, U32, U64, lesser
from ..entropy.changes import DOWN, OTHER
from .grid import THREADS, N, block_number, gpu_function, gpu_kernel, scan
from .sparse_check import block_of, book_of, values_in
from .words import PackedNumbers, get, number_at

FAULT = U32(0xFFFFFFFF)  #: in place of a bit: something is wrong before it
_MINUS_ONE = U64(0xFFFFFFFFFFFFFFFF)


class SubStreamCode(NamedTuple):
    """The code of a sub-stream.

    Attributes:
        block: The :class:`words.BlockWords`.
        bit: Where it begins, uint32.
        last_bit: Where it ends, uint32.
        n: Its values, uint32.
    """

    block: Any
    bit: Any
    last_bit: Any
    n: Any


class SubStreamGoal(NamedTuple):
    """The place to which the changes of a sub-stream go.

    Attributes:
        row: Row of their counts, int64.
        at: Number of the first one, int64.
        keep: Whether they are kept, and not only counted.
        mask: 2**W - 1, uint64.
    """

    row: Any
    at: Any
    keep: Any
    mask: Any


@gpu_function
def find_sub_streams(block, n_streams, first, streams, cells):
    """Find the bytes of each sub-stream of a block and where it begins: the sums of the lengths before it.

    Args:
        block: The :class:`words.BlockWords`.
        n_streams: Number of sub-streams, int32.
        first: Number of the first one in the frame, int64.
        streams: The :class:`sparse_tables.SubStreams`; ``begins`` and ``sizes`` are results.
        cells: Scratch, shared, uint64[THREADS].

    Returns:
        Whether they add up to symbol_bytes.
    """
    lane, done = I32(cuda.threadIdx.x), U64(0)
    symbol_bytes = U32(block.words[block.start + U64(SYMBOL_BYTES >> 2)])
    min_bytes = U32(block.words[block.start + U64(MIN_CHANGE_BYTES >> 2)])
    width = U32(U32(block.words[block.start + U64(CHANGE_LENGTH_WIDTH >> 2)]) & U32(255))
    lengths = PackedNumbers(U32(U32(CODED_HEADER) + symbol_bytes), width)
    for tile in range(I32(0), n_streams, N):
        s, size = I32(tile + lane), U64(0)
        if s < n_streams:
            size = U64(U64(min_bytes) + U64(number_at(block, lengths, s)))
        cells[lane] = U64(size)
        scan(cells)
        if s < n_streams:  # both are below 2**32 if the sum is what it should be, and not looked at if it is not
            begin = U64(U64(done + U64(CODED_HEADER)) + U64(U64(cells[lane]) - size))
            streams.begins[first + s] = U32(begin & U64(0xFFFFFFFF))
            streams.sizes[first + s] = U32(size & U64(0xFFFFFFFF))
        done = U64(done + U64(cells[N - I32(1)]))
        cuda.syncthreads()
    return done == U64(symbol_bytes)


@gpu_function
def number_of(window, entry):
    """Return the number whose symbol has the table's ``entry``, and that is at the beginning of ``window``: uint32.

        window    code (length bits) | rest (count bits) | ...        the lowest bit first
        entry     first number of the category | kind | count | length
    """
    length, count = U32(entry & U32(15)), U32(U32(entry >> U32(4)) & U32(31))
    rest = U32(U32(window >> length) & U32(U32(U32(1) << count) - U32(1)))
    return U32(U32(entry >> U32(11)) + rest)


@gpu_function
def bits_of_entry(entry):
    """Return the bits that a number takes whose symbol has the table's ``entry``: uint32."""
    return U32(U32(entry & U32(15)) + U32(U32(entry >> U32(4)) & U32(31)))


@gpu_function
def step_at(block, bit, steps, c):
    """Read a step that is neither +1 nor -1, as :func:`changes.read_step` does.

    Args:
        block: The :class:`words.BlockWords`.
        bit: Where it begins, uint32.
        steps: As in :class:`sparse_tables.ChangeBooks`.
        c: Number of the codebook, int32.

    Returns:
        (step modulo 2**64 as uint64, the bit behind it); :data:`FAULT` for the bit where there is no such code.
    """
    entry = U32(steps[c, U32(get(block, bit) & U32(0xFFF))])
    if entry == U32(0):
        return U64(0), FAULT
    bit, symbol = U32(bit + U32(entry & U32(15))), U32(entry >> U32(4))
    if symbol == U32(0):
        return U64(0), bit
    count = U32(U32(U32(symbol + U32(1)) >> U32(1)) - U32(1))  # at most 31, as values are of at most 32 bits
    rest = U64(U64(get(block, bit)) & U64(U64(U64(1) << U64(count)) - U64(1)))
    magnitude = U64(rest | U64(U64(1) << U64(count)))
    step = magnitude if U32(symbol & U32(1)) else U64(U64(0) - magnitude)
    return U64(step), U32(bit + count)


@gpu_function
def read_sub_stream(code, books, c, counts, changes, goal):
    """Read the changes of a sub-stream.

    Args:
        code: The :class:`SubStreamCode`.
        books: The :class:`sparse_tables.ChangeBooks`.
        c: Number of the codebook, int32.
        counts: As in :class:`sparse_tables.SubStreams`, result.
        changes: The :class:`sparse_tables.StoredChanges`, of which ranks and steps are results.
        goal: The :class:`SubStreamGoal`.

    Returns:
        The bit behind the last change, :data:`FAULT` if there is a fault.
    """
    block, bit, total, at = code.block, code.bit, U32(0), goal.at
    for k in range(I32(books.n_classes[c])):
        count, after = U32(0), U32(0)
        if books.is_empty[c, k] == 0:
            window = get(block, bit)
            entry = U32(books.counts[c, U32(window & U32(0xFFF))])
            if entry == U32(0):
                return FAULT
            count, bit = number_of(window, entry), U32(bit + bits_of_entry(entry))
            if bit > code.last_bit or U32(total + count) > code.n:
                return FAULT
        table = U32(U32(books.first_rows[c]) + U32(k))
        for _ in range(I32(count)):
            window = get(block, bit)
            entry = U32(books.classes[table, U32(window & U32(0xFFF))])
            if entry == U32(0):
                return FAULT
            rank, bit = U32(after + number_of(window, entry)), U32(bit + bits_of_entry(entry))
            kind, step = U32(U32(entry >> U32(9)) & U32(3)), U64(1)
            if kind == U32(DOWN):
                step = _MINUS_ONE
            if kind == U32(OTHER):
                step, bit = step_at(block, bit, books.steps, c)
            if bit > code.last_bit or rank >= code.n:  # a fault is above any bit
                return FAULT
            if goal.keep:
                changes.ranks[at] = rank
                changes.steps[at] = U64(step & goal.mask)
                at += 1
            after = U32(rank + U32(1))
        counts[goal.row, k] = count
        total = U32(total + count)
    return bit


@gpu_kernel
def read_sub_streams(frame, shape, books, streams, changes, keep, statuses):
    """Read the changes of a block's sub-streams, a thread for each sub-stream.

    Args:
        frame: The :class:`sparse_tables.SparseFrame`.
        shape: The :class:`sparse_tables.SparseShape`.
        books: The :class:`sparse_tables.ChangeBooks`.
        streams: The :class:`sparse_tables.SubStreams`. ``begins``, ``sizes`` and ``counts`` are results unless changes
            are kept.
        changes: The :class:`sparse_tables.StoredChanges`, of which ranks and steps are results if they are kept.
        keep: 1 to keep changes, which then have been counted before; 0 to count them.
        statuses: int32[n_blocks], results: BAD_STREAM where there is a fault; of blocks that are OK so far.
    """
    cells = cuda.shared.array(THREADS, np.uint64)
    lane, b = I32(cuda.threadIdx.x), block_number()
    log2 = streams.logs[b]
    if log2 == U32(0):
        return
    block, n, first = block_of(frame, b), values_in(shape, b), streams.firsts[b]
    n_streams = I32(U32(U32(U32(U32(n) + U32(U32(1) << log2)) - U32(1)) >> log2))
    if keep == 0 and not find_sub_streams(block, n_streams, first, streams, cells):
        if lane == 0:
            statuses[b] = BAD_STREAM
        return
    c, mask = book_of(block, shape), U64(U64(U64(1) << U64(shape.width)) - U64(1))
    for s in range(lane, n_streams, N):
        row = first + s
        begin, size = U32(streams.begins[row]), U32(streams.sizes[row])
        if size:
            n_own = lesser(U32(U32(n) - U32(U32(s) << log2)), U32(U32(1) << log2))
            at = streams.starts[row] if keep else np.int64(0)
            code = SubStreamCode(block, U32(begin << U32(3)), U32(U32(begin + size) << U32(3)), n_own)
            goal = SubStreamGoal(row, at, keep != 0, mask)
            bit = read_sub_stream(code, books, c, streams.counts, changes, goal)
            if bit == FAULT or U32(U32(bit + U32(7)) >> U32(3)) != U32(begin + size):
                statuses[b] = BAD_STREAM
