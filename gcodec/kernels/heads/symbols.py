"""Symbols of a block's values: heads relative to sub-streams' means, as a codebook's ranges number them
(docs/format.md sections 5 and 7)."""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3
from ..core.jit import inlined, kernel
from ..core.scalar import NARROW, U8, U16, U32, U64
from ..core.unaligned import subarray, width_of
from ..core.vector import look_up_64, look_up_level
from ..entropy.encode_streams import STREAM_PAD
from ..entropy.prefix_code import ESCAPE
from .means import mean_head

if HAS_AVX512:
    from .heads_avx512 import find_symbols_from_heads, mean_of_heads, store_heads
    from .symbols_avx512 import symbols_9, symbols_16, symbols_by_level_16, symbols_wide
elif HAS_SSSE3:
    from .symbols_ssse3 import symbols_by_level_16, symbols_by_level_32


@kernel
def find_references_from_values(values, n, stream_len, head_shift, head_mask, references):
    """Mean head of each sub-stream's non-zero values, less the least of them, in ``references``: uint32[n_streams].

    Returns (the least, bits that the largest difference needs).
    """
    n_streams = (n + stream_len - 1) // stream_len
    least, most = 1 << 30, 0
    for s in range(n_streams):
        mean, number = mean_head(
            subarray(values, s * stream_len, min(stream_len, n - s * stream_len)), head_shift, head_mask
        )
        references[s] = mean
        if number:
            least, most = min(least, mean), max(most, mean)
    return _relative(least, most, n_streams, references)


@kernel
def _relative(least, most, n_streams, references):
    """Turn the means in ``references`` into differences from the least one; ``least``, ``most``: of sub-streams that
    have values other than zero. Returns (the least, bits that the largest difference needs)."""
    if least > most:
        least = most
    for s in range(n_streams):
        references[s] = max(np.int64(references[s]) - least, 0)
    width = 0
    while (most - least) >> width:
        width += 1
    return least, width


@kernel
def find_references_from_heads(heads, others, n, stream_len, references):
    """:func:`find_references_from_values` of what :func:`heads_avx512.store_heads` has found."""
    n_streams = (n + stream_len - 1) // stream_len
    least, most = np.int64(1 << 30), np.int64(0)
    for s in range(n_streams):
        mean, number = mean_of_heads(heads, others, s * stream_len, min(stream_len, n - s * stream_len))
        references[s] = mean
        if number:
            least, most = min(least, mean), max(most, mean)
    return _relative(least, most, n_streams, references)


@kernel
def _joint_symbols(values, levels, n, infinity, reference, ranges, chunk, result):
    """Symbols of one sub-stream's values, for 8 head bits and several levels."""
    width = width_of(values)
    magnitude_mask, top = U32((1 << (width - 1)) - 1), U32(infinity)
    base = U8(reference)
    if HAS_AVX512 and width == 16 and n & 63 == 0:
        for i in range(0, n, 64):
            symbols_by_level_16(values, i, levels, i, ranges, 0, result, i, infinity, reference)
        return
    whole = np.int64(0)
    if HAS_SSSE3 and not HAS_AVX512:
        whole = n & ~63
        for i in range(0, whole, 64):
            if width == 32:
                symbols_by_level_32(values, i, levels, i, ranges, 0, result, i, np.int64(infinity) >> 23, reference)
            else:
                symbols_by_level_16(values, i, levels, i, ranges, 0, result, i, np.int64(infinity) >> 7, reference)
    part, n = len(chunk) // 4, n - whole
    values, levels, result = subarray(values, whole, n), subarray(levels, whole, n), subarray(result, whole, n)
    own, origin = subarray(chunk, 0, n), subarray(chunk, part, n)
    count, number = subarray(chunk, 2 * part, n), subarray(chunk, 3 * part, n)
    for i in range(n):
        own[i] = levels[i] if U32(U32(values[i]) & magnitude_mask) < top else U8(0)
    for i in range(0, n, 64):
        look_up_level(ranges[0], 0, own, i, origin, i)
        look_up_level(ranges[1], 0, own, i, count, i)
        look_up_level(ranges[2], 0, own, i, number, i)
    if width == 32:
        for i in range(n):
            own[i] = U8(U32(values[i]) >> U32(23))
    elif width == 16:
        for i in range(n):
            own[i] = U8(U32(values[i]) >> U32(7))
    for i in range(n):
        offset = U8(U8(own[i] - base) - origin[i])
        symbol = U8(number[i] + offset) if offset < count[i] else U8(ESCAPE)
        result[i] = symbol if values[i] else U8(0)


@kernel
def find_symbols_from_values(
    values,
    levels,
    n,
    stream_len,
    infinity,
    base,
    references,
    head_shift,
    head_mask,
    first,
    count,
    number,
    ranges,
    coded,
    with_gaps,
    chunk,
    symbols,
):
    """Symbol of every value, and 0 behind the last up to a multiple of 64.

    ``levels``: uint8[n] or None (all of level 0); ``first``, ``count``, ``number``: int64[16], the codebook's ranges
    and the number of their first symbols; ``ranges``: uint8[3, 256], the same by level in bytes, for 8 head bits;
    ``coded``: uint8[256], each symbol, or the escape where it has no code, which matters where ``with_gaps``;
    ``chunk``: uint8[4 * (stream_len + 64)], scratch; ``symbols``: uint8, strided, result. Infinities and NaNs are of
    level 0.
    """
    n_streams = (n + stream_len - 1) // stream_len
    width = width_of(values)
    magnitude_mask = (U64(1) << U64(width - 1)) - U64(1)
    for s in range(n_streams):
        reference = base + np.int64(references[s])
        begin = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        length = min(stream_len, n - begin)
        some, result = subarray(values, begin, length), subarray(symbols, place, (length + 63) & ~63)
        if levels is None:
            origin = U32((reference + first[0]) & head_mask)
            limit = U32(count[0])
            whole = np.int64(0)
            if HAS_AVX512 and width == 32 and head_shift == 22:
                whole = length & ~63
                for i in range(0, whole, 64):
                    symbols_wide(some, i, result, i, np.int64(origin), np.int64(limit))
            elif HAS_AVX512 and width == 16:
                whole = length & ~63
                for i in range(0, whole, 64):
                    if head_shift == 7:
                        symbols_16(some, i, result, i, np.int64(origin), np.int64(limit))
                    else:
                        symbols_9(some, i, result, i, np.int64(origin), np.int64(limit))
            if width == 32:
                down, low = U32(head_shift) & NARROW, U32(head_mask)
                for i in range(whole, length):
                    bits = U32(some[i])
                    offset = U32((bits >> down) - origin) & low
                    symbol = U32(offset + U32(1)) if offset < limit else U32(ESCAPE)
                    result[i] = U8(symbol if bits else U32(0))
            elif width == 16:
                shift, mask = U16(head_shift) & NARROW, U16(head_mask)
                for i in range(whole, length):
                    bits = U16(some[i])
                    offset = U16((bits >> shift) - U16(origin)) & mask
                    symbol = U16(offset + U16(1)) if offset < U16(limit) else U16(ESCAPE)
                    result[i] = U8(symbol if bits else U16(0))
            else:
                for i in range(length):
                    bits = U64(some[i])
                    head = U32(bits >> U64(head_shift)) & U32(head_mask)
                    offset = U32(head - origin) & U32(head_mask)
                    symbol = U32(offset + U32(1)) if offset < limit else U32(ESCAPE)
                    result[i] = U8(symbol if bits else U32(0))
        else:
            some_levels = subarray(levels, begin, length)
            if width < 64:
                _joint_symbols(some, some_levels, length, infinity, reference, ranges, chunk, result)
            else:
                for i in range(length):
                    bits = U64(some[i])
                    level = U32(some_levels[i]) if (bits & magnitude_mask) < U64(infinity) else U32(0)
                    head = np.int64(bits >> U64(head_shift)) & head_mask
                    offset = (head - reference - first[level]) & head_mask
                    symbol = U8(number[level] + offset) if offset < count[level] else U8(ESCAPE)
                    result[i] = symbol if bits else U8(0)
        if with_gaps:
            for i in range(0, length, 64):
                look_up_64(coded, 0, result, i, result, i)
        for i in range(length, len(result)):
            result[i] = 0


@inlined
def find_block_symbols(values, levels, n, stream_len, float_bits, base, with_references, c, books, scratch):
    """Symbols of a block with codebook ``c``, relative to its sub-streams' means (``with_references``) or to ``base``,
    its own mean where that is negative. Returns the base, and the bits of a reference."""
    head_mask = (1 << float_bits.head_bits) - 1
    references = scratch.references
    width, from_heads = 0, False
    if HAS_AVX512 and width_of(values) == 32:
        from_heads = float_bits.head_bits == 8 and stream_len & 63 == 0
        if from_heads:
            store_heads(values, n, scratch.heads, scratch.others)
            if with_references:
                base, width = find_references_from_heads(scratch.heads, scratch.others, n, stream_len, references)
            elif base < 0:
                base, _ = mean_of_heads(scratch.heads, scratch.others, 0, n)
    if not from_heads:
        if with_references:
            base, width = find_references_from_values(
                values, n, stream_len, float_bits.head_shift, head_mask, references
            )
        elif base < 0:
            base, _ = mean_head(values, float_bits.head_shift, head_mask)
    if not with_references:
        for s in range((n + stream_len - 1) // stream_len):
            references[s] = 0
    if HAS_AVX512 and from_heads:
        find_symbols_from_heads(
            scratch.heads,
            scratch.others,
            levels,
            n,
            stream_len,
            base,
            references,
            books.first[c],
            books.counts[c],
            books.ranges[c],
            books.coded[c],
            books.with_gaps[c],
            scratch.chunk,
            scratch.symbols,
        )
    else:
        find_symbols_from_values(
            values,
            levels,
            n,
            stream_len,
            float_bits.infinity,
            base,
            references,
            float_bits.head_shift,
            head_mask,
            books.first[c],
            books.counts[c],
            books.number[c],
            books.ranges[c],
            books.coded[c],
            books.with_gaps[c],
            scratch.chunk,
            scratch.symbols,
        )
    return base, width
