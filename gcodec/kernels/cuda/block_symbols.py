"""References of a block's sub-streams, symbols of its values, and the bits and items that these take."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba import cuda

from ..core.scalar import I32, U8, U32, U64, head_of, lesser, mean_of, reference_of, symbol_of
from ..entropy.prefix_code import ESCAPE, NO_CODE
from .grid import BAND, STRIDE, N, evens, gpu_function, odds, spread
from .values import BLOCK, value_at

STREAMS = BLOCK >> 6  #: max sub-streams of a block

#: Cells of the shared array of sums.
DIFFERENT, FAILED, FAULTY, MIN, MAX, HEADS, NUMBER = range(7)


class Streams(NamedTuple):
    """The sub-streams of a block; arrays are shared, uint32[STREAMS].

    Attributes:
        n: How many they are, int32.
        log2: log2 of the values of each, int32.
        references: The head that each one's symbols are relative to, less the block's base.
        bits: Bits of each one's codes, and from :func:`block_writer.place_streams` on its bytes.
        live: Not 0 if one of its values is not zero; while codes are written, the bits of all codes before it.
        starts: Bytes of the sub-streams before it.
    """

    n: Any
    log2: Any
    references: Any
    bits: Any
    live: Any
    starts: Any


@gpu_function
def bit_length(number):
    """Return the bits that a uint32 needs."""
    return U32(U32(32) - U32(cuda.clz(U32(number)))) if number else U32(0)


@gpu_function
def find_means(block, log2, heads, numbers, sums):
    """Add up the heads of a block's values by sub-stream, and count the values that are not zero.

    A thread takes strips of eight values; a sub-stream has at least as many, so its sums are added in one go.

    Args:
        block: The :class:`values.BlockValues`.
        log2: log2 of the values of a sub-stream, int32.
        heads: Sums of heads, results, shared, uint32[STREAMS], zeroed.
        numbers: Numbers of values that are not zero, results, shared, uint32[STREAMS], zeroed.
        sums: Cells ``DIFFERENT`` (values differ) and ``FAULTY`` (a level is not in the ladder) are set: shared,
            uint32[8].
    """
    coding = block.coding
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    first, _ = value_at(block, I32(0))
    different, faulty = U32(0), U32(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(block.n + BAND) // STRIDE), N):
        begin, total, number = I32(j * STRIDE), U32(0), U32(0)
        for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
            bits, _ = value_at(block, i)
            total = U32(total + U32(head_of(bits, shift, mask)))
            number = U32(number + (U32(1) if bits else U32(0)))
            different = U32(different | U32(bits ^ first))
            if coding.n_levels > U32(1) and U32(block.levels[block.level_at + U64(i)]) >= coding.n_levels:
                faulty = U32(1)
        s = I32(begin >> log2)
        cuda.atomic.add(heads, s, total)
        cuda.atomic.add(numbers, s, number)
    if different:
        cuda.atomic.or_(sums, DIFFERENT, U32(1))
    if faulty:
        cuda.atomic.or_(sums, FAULTY, U32(1))
    cuda.syncthreads()


@gpu_function
def references_of_block(streams, with_references, sums):
    """Find references from what :func:`find_means` left in ``references`` (heads) and ``bits`` (numbers).

    With references, a sub-stream's is the mean of its heads, and the block's base is the lowest of them; without, the
    base is the mean of all heads.

    Args:
        streams: The :class:`Streams`; ``references`` are results.
        with_references: Whether sub-streams have references of their own.
        sums: Cells ``MIN``, ``MAX``, ``HEADS`` and ``NUMBER`` are used: shared, uint32[8].

    Returns:
        The block's base and the bits of a packed reference, both uint32.
    """
    lane, heads = I32(cuda.threadIdx.x), streams.references
    for s in range(lane, streams.n, N):
        number = U32(streams.bits[s])
        if with_references:
            heads[s] = U32(mean_of(U32(heads[s]), number))
            if number:
                cuda.atomic.min(sums, MIN, U32(heads[s]))
                cuda.atomic.max(sums, MAX, U32(heads[s]))
        else:
            cuda.atomic.add(sums, HEADS, U32(heads[s]))
            cuda.atomic.add(sums, NUMBER, number)
            heads[s] = U32(0)
    cuda.syncthreads()
    if not with_references:
        return U32(mean_of(U32(sums[HEADS]), U32(sums[NUMBER]))), U32(0)
    low, high = U32(sums[MIN]), U32(sums[MAX])
    low = lesser(low, high)  # of a block of zeros
    for s in range(lane, streams.n, N):
        heads[s] = U32(reference_of(U32(heads[s]), low))
    cuda.syncthreads()
    return low, bit_length(U32(high - low))


@gpu_function
def measure_symbols(block, tables, book, streams, base, symbols, sums, totals):
    """Find the symbol of each value, and count the bits and items that the symbols take.

    First all threads find symbols, value by value, as memory is read fastest; then each counts strips of eight, so that
    there is one atomic addition for eight values.

    Args:
        block: The :class:`values.BlockValues`.
        tables: The launch's :class:`launch_tables.EncodeTables`.
        book: Number of the block's codebook, int32.
        streams: The :class:`Streams`; ``bits`` and ``live`` are results, zeroed.
        base: Reference head of the block, uint32.
        symbols: Results, shared, uint8[BLOCK].
        sums: Cell ``FAILED`` is set if a value has no code: shared, uint32[8].
        totals: Number of items of each plane, as of :func:`grid.evens` and :func:`grid.odds`: results, shared,
            uint64[2], zeroed.
    """
    lane, coding, log2 = I32(cuda.threadIdx.x), block.coding, streams.log2
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    codes, ranges, infos = tables.codes, tables.ranges, tables.infos
    for i in range(lane, block.n, N):
        value, level = value_at(block, i)
        reference = U32(base + U32(streams.references[I32(i >> log2)]))
        symbol = symbol_of(value, reference, shift, mask, ranges[book, level, 0], ranges[book, level, 1],
                           ranges[book, level, 2])
        symbols[i] = U8(symbol) if U32(codes[book, symbol] & U32(255)) != U32(NO_CODE) else U8(ESCAPE)
    cuda.syncthreads()
    escape = U32(U32(tables.escapes[book, 1]) + coding.head_bits)
    even, odd, failed = U64(0), U64(0), U32(0)
    for j in range(lane, I32(I32(block.n + BAND) // STRIDE), N):
        begin, total, live, marks = I32(j * STRIDE), U32(0), U32(0), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), block.n)):
            symbol = U32(symbols[i])
            length = U32(U32(codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = escape
                failed = U32(1) if escape == coding.head_bits else failed
            total = U32(total + length)
            live = U32(live | symbol)
            marks = U64(marks + U64(spread(U32(U32(infos[book, symbol]) >> U32(16)) & U32(255))))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
        s = I32(begin >> log2)
        cuda.atomic.add(streams.bits, s, total)
        if live:
            cuda.atomic.or_(streams.live, s, U32(1))
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    if failed:
        cuda.atomic.or_(sums, FAILED, U32(1))
    cuda.syncthreads()
