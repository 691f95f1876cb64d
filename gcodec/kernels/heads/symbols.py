"""Find the symbols of a block's values: heads relative to a reference, as a codebook's ranges number them
(docs/format.md sections 5 and 7).

    value             s hhhhhhhh mmm...
    relative head     hhhhhhhh - reference           modulo 2**H
    symbol            number + relative head - first, within the ``count`` heads of its level's range
                      escape (255) outside of it, or where the symbol has no code
                      0 where the value is 0

Symbols of a sub-stream lie in ``scratch.symbols`` at a stride of ``stream_len + STREAM_PAD`` bytes. The scalar law is
:func:`scalar.symbol_of`; :mod:`symbols_vector`, :mod:`symbols_shuffles` and :mod:`heads_vector` are vector steps by it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.intrinsics import HAS_AVX2, HAS_AVX512, HAS_SSSE3
from ..core.jit import inlined, kernel
from ..core.scalar import U8, U32, U64, head_of, level_of, reference_of, symbol_of, symbol_of_head
from ..core.unaligned import subarray, width_of
from ..core.vector import look_up_64, look_up_level
from ..entropy.encode_streams import STREAM_PAD
from .means import reference_head

if HAS_AVX2:
    from .heads_vector import find_symbols_from_heads, mean_of_heads, store_heads
    from .symbols_vector import symbols_9, symbols_12, symbols_16, symbols_wide, symbols_wide_12
if HAS_AVX512:
    from .symbols_vector import symbols_by_level_16
elif HAS_SSSE3:
    from .symbols_shuffles import symbols_by_level_16, symbols_by_level_32


class SymbolRanges(NamedTuple):
    """The symbols that one codebook gives to relative heads.

    Attributes:
        first: int64[16], by level: first relative head of its range.
        counts: int64[16], by level: how many heads its range has.
        number: int64[16], by level: symbol of the first of these.
        by_level: uint8[3, 256], these three modulo 256, for heads of 8 bits: rows of bytes to look levels up in.
        coded: uint8[256], each symbol, or the escape where it has no code.
        with_gaps: Whether any symbol has no code.
    """

    first: np.ndarray
    counts: np.ndarray
    number: np.ndarray
    by_level: np.ndarray
    coded: np.ndarray
    with_gaps: bool


@inlined
def symbol_ranges(books, c):
    """Return the :class:`SymbolRanges` of codebook ``c`` of a frame's."""
    return SymbolRanges(
        books.first[c], books.counts[c], books.number[c], books.ranges[c], books.coded[c], books.with_gaps[c]
    )


@kernel
def _subtract_min(min_mean, max_mean, n_streams, references):
    """Turn the means of sub-streams into differences from their min.

    Args:
        min_mean: Min mean of the sub-streams that have values other than zero.
        references: uint32[n_streams], means; become the differences, 0 where all values are zero.

    Returns:
        The min mean, and the bits that the greatest difference needs.
    """
    # A sub-stream of zeros has the mean 0 and no say in the min, which it would pull down for all: reference_of makes a
    # reference of 0 of it, as no head of it is ever coded.
    if min_mean > max_mean:  # a block of zeros
        min_mean = max_mean
    for s in range(n_streams):
        references[s] = reference_of(references[s], U32(min_mean))
    width = 0
    while (max_mean - min_mean) >> width:
        width += 1
    return min_mean, width


@kernel
def find_references_from_values(values, stream_len, float_bits, references):
    """Find the reference of each sub-stream: the mean head of values that are not zero, less the min of all means.

    Args:
        values: uintW[n].
        stream_len: Values per sub-stream.
        float_bits: Where heads lie in values, see :class:`bundles.FloatBits`.
        references: uint32[n_streams], result.

    Returns:
        The min mean, which is the block's base, and the bits that the greatest reference needs.
    """
    head_mask = (1 << float_bits.head_bits) - 1
    n = len(values)
    n_streams = (n + stream_len - 1) // stream_len
    # More than any head, so that the first sub-stream with a value takes its place.
    min_mean, max_mean = 1 << 30, 0
    for s in range(n_streams):
        first = s * stream_len
        stream = subarray(values, first, min(stream_len, n - first))
        mean, n_nonzero = reference_head(stream, float_bits.head_shift, head_mask, float_bits.fine_bits)
        references[s] = mean
        if n_nonzero:
            min_mean, max_mean = min(min_mean, mean), max(max_mean, mean)
    return _subtract_min(min_mean, max_mean, n_streams, references)


@kernel
def find_references_from_heads(heads, nonzero, n, stream_len, references):
    """Find the reference of each sub-stream from heads, as :func:`find_references_from_values` does from values.

    Args:
        heads: uint8, as :func:`heads_vector.store_heads` leaves them.
        nonzero: uint64, likewise.
        stream_len: Values per sub-stream, a multiple of 64.
        references: uint32[n_streams], result.

    Returns:
        The min mean, which is the block's base, and the bits that the greatest reference needs.
    """
    n_streams = (n + stream_len - 1) // stream_len
    min_mean, max_mean = np.int64(1 << 30), np.int64(0)
    for s in range(n_streams):
        first = s * stream_len
        mean, n_nonzero = mean_of_heads(heads, nonzero, first, min(stream_len, n - first))
        references[s] = mean
        if n_nonzero:
            min_mean, max_mean = min(min_mean, mean), max(max_mean, mean)
    return _subtract_min(min_mean, max_mean, n_streams, references)


# These are inlined: sub-streams are short, and passing bundles to a function takes longer than it seems.


@inlined
def _symbols_of_one_level(values, float_bits, reference, ranges, result):
    """Find the symbols of one sub-stream's values, all of level 0.

    Args:
        values: uintW[n].
        float_bits: See :class:`bundles.FloatBits`.
        reference: The head that relative heads are counted from.
        ranges: The codebook's :class:`SymbolRanges`.
        result: uint8[n, rounded up to a multiple of 64], symbols.
    """
    n, width, shift = len(values), width_of(values), float_bits.head_shift
    mask = (1 << float_bits.head_bits) - 1
    first, count, whole = ranges.first[0], ranges.counts[0], np.int64(0)
    if HAS_AVX2 and (width == 16 or (width == 32 and (shift == 22 or shift == 19))):
        # float32 with a head of 8 bits comes here only where sub-streams are no whole groups.
        # Vector steps subtract one number, modulo the head's width: where the range of level 0 begins, as a head.
        origin = (reference + first) & mask
        whole = n & ~63
        for i in range(0, whole, 64):
            if width == 32 and shift == 22:
                symbols_wide(values, i, result, i, origin, count)
            elif width == 32:
                symbols_wide_12(values, i, result, i, origin, count)
            elif shift == 7:
                symbols_16(values, i, result, i, origin, count)
            elif shift == 6:
                symbols_9(values, i, result, i, origin, count)
            else:
                symbols_12(values, i, result, i, origin, count)
    if width == 64:
        for i in range(n):  # heads are computed in 32 bits: a vector has twice as many lanes as of 64
            head = U32(head_of(values[i], shift, mask))
            symbol = symbol_of_head(head, reference, mask, first, count, 1)
            result[i] = U8(symbol if values[i] else U32(0))
    else:
        for i in range(whole, n):
            result[i] = U8(symbol_of(values[i], reference, shift, mask, first, count, 1))


@inlined
def _symbols_with_levels(values, levels, float_bits, reference, ranges, chunk, result):
    """Find the symbols of one sub-stream's values with levels, for heads of 8 bits.

    Args:
        values: uintW[n], of 16 or 32 bits.
        levels: uint8[n].
        float_bits: See :class:`bundles.FloatBits`.
        reference: The head that relative heads are counted from.
        ranges: The codebook's :class:`SymbolRanges`.
        chunk: uint8[4 * (stream_len + 64)], scratch.
        result: uint8[n, rounded up to a multiple of 64], symbols.
    """
    n, width, by_level = len(values), width_of(values), ranges.by_level
    sign_bit, infinity = U32(1 << (width - 1)), U32(float_bits.infinity)
    # What has no level of its own begins where a head does: all heads up to this one are of values that have one.
    #
    #     bfloat16    infinity      0 11111111 0000000
    #                 less 1        0 11111110 1111111      >> 7: 254, the largest head of a finite value
    top, whole = (np.int64(infinity) - 1) >> float_bits.head_shift, np.int64(0)
    if HAS_AVX512 and width == 16 and n & 63 == 0:
        for i in range(0, n, 64):
            symbols_by_level_16(values, i, levels, i, by_level, 0, result, i, top, reference)
        return
    if HAS_SSSE3 and not HAS_AVX512:
        whole = n & ~63
        for i in range(0, whole, 64):
            if width == 32:
                symbols_by_level_32(values, i, levels, i, by_level, 0, result, i, top, reference)
            else:
                symbols_by_level_16(values, i, levels, i, by_level, 0, result, i, top, reference)
    # The rest passes through four rows of bytes in ``chunk``, so that look-ups, of which LLVM makes no vectors, have
    # loops of their own:
    #
    #     row       levels, and then heads        values -> head
    #     first     first[level]                  first relative head of the range
    #     count     count[level]                  heads of the range
    #     number    number[level]                 symbol of the first of them
    part, n = len(chunk) // 4, n - whole
    values, levels, result = subarray(values, whole, n), subarray(levels, whole, n), subarray(result, whole, n)
    row, first = subarray(chunk, 0, n), subarray(chunk, part, n)
    count, number = subarray(chunk, 2 * part, n), subarray(chunk, 3 * part, n)
    for i in range(n):
        row[i] = level_of(U32(values[i]), levels[i], sign_bit, infinity)
    for i in range(0, n, 64):
        look_up_level(by_level[0], 0, row, i, first, i)
        look_up_level(by_level[1], 0, row, i, count, i)
        look_up_level(by_level[2], 0, row, i, number, i)
    for i in range(n):
        row[i] = U8(head_of(U32(values[i]), float_bits.head_shift, U32(255)))
    for i in range(n):
        symbol = symbol_of_head(row[i], reference, 255, first[i], count[i], number[i])
        result[i] = symbol if values[i] else U8(0)


@inlined
def _symbols_with_levels_64(values, levels, float_bits, reference, ranges, result):
    """Find the symbols of one sub-stream's float64 with levels; arguments as of :func:`_symbols_with_levels`."""
    mask, infinity = (1 << float_bits.head_bits) - 1, U64(float_bits.infinity)
    sign_bit = U64(1) << U64(63)
    for i in range(len(values)):
        level = level_of(values[i], levels[i], sign_bit, infinity)
        first, count, number = ranges.first[level], ranges.counts[level], ranges.number[level]
        result[i] = U8(symbol_of(values[i], reference, float_bits.head_shift, mask, first, count, number))


@kernel
def find_symbols_from_values(values, levels, stream_len, float_bits, base, ranges, scratch):
    """Find the symbol of every value, and 0 behind the last up to a multiple of 64.

    Args:
        values: uintW[n].
        levels: uint8[n], or None where all are of level 0. Values from ``float_bits.infinity`` on are of level 0
            whatever it says.
        stream_len: Values per sub-stream.
        float_bits: Where heads lie in values, see :class:`bundles.FloatBits`.
        base: Head that ``scratch.references`` are relative to.
        ranges: The codebook's :class:`SymbolRanges`.
        scratch: ``references`` are known; ``symbols`` is the result; ``chunk`` is overwritten.
    """
    n = len(values)
    for s in range((n + stream_len - 1) // stream_len):
        # Not brought into the head's width: everything that is computed with it is cut to that.
        reference = np.int64(base) + np.int64(scratch.references[s])
        begin, place = s * stream_len, s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - begin)
        stream, result = subarray(values, begin, count), subarray(scratch.symbols, place, (count + 63) & ~63)
        if levels is None:
            _symbols_of_one_level(stream, float_bits, reference, ranges, result)
        elif width_of(values) == 64:
            _symbols_with_levels_64(stream, subarray(levels, begin, count), float_bits, reference, ranges, result)
        else:
            stream_levels = subarray(levels, begin, count)
            _symbols_with_levels(stream, stream_levels, float_bits, reference, ranges, scratch.chunk, result)
        if ranges.with_gaps:  # symbols without a code are escaped
            for i in range(0, count, 64):
                look_up_64(ranges.coded, 0, result, i, result, i)
        for i in range(count, len(result)):
            result[i] = 0


@inlined
def find_block_symbols(values, levels, stream_len, float_bits, base, with_references, ranges, scratch):
    """Find the symbols of a block's values, relative to its sub-streams' means or to one base.

    Args:
        values: uintW[n].
        levels: uint8[n], or None where all are of level 0.
        stream_len: Values per sub-stream.
        float_bits: Where heads lie in values, see :class:`bundles.FloatBits`.
        base: The head that all are relative to where sub-streams have no references; negative: the block's mean head.
        with_references: Whether sub-streams have references of their own.
        ranges: The codebook's :class:`SymbolRanges`.
        scratch: ``symbols``, and ``references``, which are relative to the base, are results; ``heads``, ``others`` and
            ``chunk`` are overwritten.

    Returns:
        The base, and the bits of a reference (0 without references).
    """
    references, n = scratch.references, len(values)
    width, from_heads = 0, False
    if HAS_AVX2 and width_of(values) == 32:
        # Heads are taken once, as bytes: both means and symbols then read a quarter of the values' bytes.
        from_heads = float_bits.head_bits == 8 and stream_len & 63 == 0
        if from_heads:
            store_heads(values, n, scratch.heads, scratch.others)
            if with_references:
                base, width = find_references_from_heads(scratch.heads, scratch.others, n, stream_len, references)
            elif base < 0:
                base, _ = mean_of_heads(scratch.heads, scratch.others, 0, n)
    if not from_heads:
        if with_references:
            base, width = find_references_from_values(values, stream_len, float_bits, references)
        elif base < 0:
            mask = (1 << float_bits.head_bits) - 1
            base, _ = reference_head(values, float_bits.head_shift, mask, float_bits.fine_bits)
    if not with_references:
        for s in range((n + stream_len - 1) // stream_len):
            references[s] = 0
    if HAS_AVX2 and from_heads:
        top = (np.int64(float_bits.infinity) - 1) >> 23
        find_symbols_from_heads(levels, n, stream_len, base, top, ranges, scratch)
    else:
        find_symbols_from_values(values, levels, stream_len, float_bits, base, ranges, scratch)
    return base, width
