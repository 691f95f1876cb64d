"""References of a block's sub-streams, symbols of its values, and the bits and items that these take."""

from __future__ import annotations

from numba import cuda

from ..core.scalar import I32, U8, U32, U64, greater, lesser, spread, symbol_of
from ..entropy.prefix_code import ESCAPE, NO_CODE
from .grid import BAND, STRIDE, N, evens, gpu_function, odds
from .values import BLOCK, value_at

STREAMS = BLOCK >> 6  #: most sub-streams of a block

#: Cells of the shared array of sums.
DIFFERENT, FAILED, FAULTY, LEAST, MOST, HEADS, NUMBER = range(7)


@gpu_function
def bit_length(number):
    """Bits that a uint32 needs."""
    return U32(U32(32) - U32(cuda.clz(U32(number)))) if number else U32(0)


@gpu_function
def find_means(values, levels, at, level_at, n, log2, coding, drops, heads, numbers, sums):
    """Add up heads and count the values that are not zero by sub-stream, in ``heads`` and ``numbers`` (shared, uint32),
    and note in ``sums`` what else there is to know."""
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    first, _ = value_at(values, levels, at, level_at, I32(0), coding, drops)
    different, faulty = U32(0), U32(0)
    for j in range(I32(cuda.threadIdx.x), I32(I32(n + BAND) // STRIDE), N):
        begin, total, number = I32(j * STRIDE), U32(0), U32(0)
        for i in range(begin, lesser(I32(begin + STRIDE), n)):
            bits, _ = value_at(values, levels, at, level_at, i, coding, drops)
            total = U32(total + U32(U32(bits >> shift) & mask))
            number = U32(number + (U32(1) if bits else U32(0)))
            different = U32(different | U32(bits ^ first))
            if coding.n_levels > U32(1) and U32(levels[level_at + U64(i)]) >= coding.n_levels:
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
def references_of_block(n_streams, with_references, heads, numbers, sums):
    """References of sub-streams from what :func:`find_means` left, into ``heads``. Returns the base and the references'
    width."""
    lane = I32(cuda.threadIdx.x)
    for s in range(lane, n_streams, N):
        number = U32(numbers[s])
        if with_references:
            heads[s] = U32(U32(heads[s]) // greater(number, U32(1)))
            if number:
                cuda.atomic.min(sums, LEAST, U32(heads[s]))
                cuda.atomic.max(sums, MOST, U32(heads[s]))
        else:
            cuda.atomic.add(sums, HEADS, U32(heads[s]))
            cuda.atomic.add(sums, NUMBER, number)
            heads[s] = U32(0)
    cuda.syncthreads()
    if not with_references:
        return U32(U32(sums[HEADS]) // greater(U32(sums[NUMBER]), U32(1))), U32(0)
    least, most = U32(sums[LEAST]), U32(sums[MOST])
    least = lesser(least, most)  # of a block of zeros
    for s in range(lane, n_streams, N):
        heads[s] = U32(U32(heads[s]) - least) if U32(heads[s]) > least else U32(0)
    cuda.syncthreads()
    return least, bit_length(U32(most - least))


@gpu_function
def measure_symbols(values, levels, at, level_at, n, log2, coding, tables, book, base, references, symbols, bits, live,
                    sums, totals):
    """The symbol of each value, how many bits each sub-stream takes (``bits``), whether any of its values is not zero
    (``live``), and how many items each plane has (``totals``, shared, uint64[2])."""
    lane = I32(cuda.threadIdx.x)
    shift, mask = U32(coding.tail_bits - U32(1)), U32(U32(U32(1) << coding.head_bits) - U32(1))
    codes, ranges, infos = tables.codes, tables.ranges, tables.infos
    for i in range(lane, n, N):
        value, level = value_at(values, levels, at, level_at, i, coding, tables.drops)
        reference = U32(base + U32(references[I32(i >> log2)]))
        symbol = symbol_of(value, reference, shift, mask, ranges[book, level, 0], ranges[book, level, 1],
                           ranges[book, level, 2])
        symbols[i] = U8(symbol) if U32(codes[book, symbol] & U32(255)) != U32(NO_CODE) else U8(ESCAPE)
    cuda.syncthreads()
    escape = U32(U32(tables.escapes[book, 1]) + coding.head_bits)
    even, odd, failed = U64(0), U64(0), U32(0)
    for j in range(lane, I32(I32(n + BAND) // STRIDE), N):
        begin, total, some, marks = I32(j * STRIDE), U32(0), U32(0), U64(0)
        for i in range(begin, lesser(I32(begin + STRIDE), n)):
            symbol = U32(symbols[i])
            length = U32(U32(codes[book, symbol]) & U32(255))
            if length == U32(NO_CODE):
                length = escape
                failed = U32(1) if escape == coding.head_bits else failed
            total = U32(total + length)
            some = U32(some | symbol)
            marks = U64(marks + U64(spread(U32(U32(infos[book, symbol]) >> U32(16)) & U32(255))))
        even, odd = U64(even + evens(marks)), U64(odd + odds(marks))
        s = I32(begin >> log2)
        cuda.atomic.add(bits, s, total)
        if some:
            cuda.atomic.or_(live, s, U32(1))
    cuda.atomic.add(totals, 0, even)
    cuda.atomic.add(totals, 1, odd)
    if failed:
        cuda.atomic.or_(sums, FAILED, U32(1))
    cuda.syncthreads()
