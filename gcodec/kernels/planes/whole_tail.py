"""Split and merge planes of whole tails: one of 24 bits (float32, lossless), or one of 8 bits (bfloat16 and float16,
and float32 of which seven mantissa bits are kept, as its upper half is a bfloat16).

Every value that is not zero owns one item, its tail (docs/format.md sections 2 and 7), so that planes are whole bytes:

    values         a         0         b         c
    float32 plane  a a a     -         b b b     c c c         bytes, least significant first
    bfloat16       a         -         b         c

:func:`scalar.tail_of` and :func:`scalar.value_of_symbol` cut and join single values. With AVX-512 sub-streams of whole
groups of 64 go through the vector steps of :mod:`whole_tail_avx512`; the loops here are the path of all else.
"""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3
from ..core.jit import kernel
from ..core.scalar import U8, U16, U32, head_of_symbol, tail_of, value_of_symbol
from ..core.unaligned import subarray, width_of
from ..core.vector import (
    clear_32,
    compress_8,
    compress_32,
    copy_64,
    count_64,
    expand_8,
    expand_32,
    pack_24,
    unpack_24,
)
from ..entropy.encode_streams import STREAM_PAD

if HAS_AVX512:
    from .whole_tail_avx512 import (
        merge_8_64,
        merge_24_all,
        merge_24_some,
        merge_high_64,
        split_8_64,
        split_24_64,
        split_high_64,
    )
elif HAS_SSSE3:
    from .whole_tail_shuffles import merge_24_all, merge_24_some, split_24_all, split_24_some


@kernel
def count_marked(symbols, place, count):
    """Return how many of ``count`` symbols, from ``symbols[place]`` on, are not zero."""
    if count & 63 == 0:
        total = np.int64(0)
        for i in range(0, count, 64):
            total += count_64(symbols, place + i, 255)
        return total
    row = subarray(symbols, place, count)
    number = U32(0)
    for i in range(count):
        number += U32(row[i] != 0)
    return np.int64(number)


@kernel
def split_24(values, stream_len, scratch, out, at):
    """Write three bytes for every float32 that is not zero.

    Args:
        values: uint32[n].
        stream_len: Values per sub-stream.
        scratch: ``symbols`` are known; ``layout``, a :class:`layout_types.Tails24`, is overwritten.
        out: uint8, result, with 64 bytes of margin.
        at: Byte at which the plane begins.

    Returns:
        The byte behind the plane.
    """
    symbols, words, dense, n = scratch.symbols, scratch.layout.words, scratch.layout.dense, len(values)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        # Only a block's last sub-stream may have another number of values: for it the loops below will do.
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                if count_64(symbols, place + i, 255):  # rows of zeros are as common as costly
                    at += 3 * split_24_64(values, first + i, symbols, place + i, out, at)
            continue
        if not HAS_AVX512 and HAS_SSSE3 and count & 63 == 0:
            for i in range(0, count, 64):
                number = count_64(symbols, place + i, 255)
                if number == 64:
                    split_24_all(values, first + i, symbols, place + i, out, at)
                elif number:
                    split_24_some(values, first + i, symbols, place + i, out, at)
                at += 3 * number
            continue
        stream = subarray(values, first, count)
        for i in range(count):
            words[i] = tail_of(U32(stream[i]), 32, 24)
        number = count_marked(symbols, place, count)
        # Groups of 16 may reach behind the last value: symbols are 0 there, and what packing writes too much, up to 48
        # bytes, is written over next or goes to the margin.
        if number == count:  # no zeros, so that there are no gaps to close
            for i in range(0, count, 16):
                pack_24(words, i, out, at + 3 * i)
        else:
            k = 0
            for i in range(0, count, 16):
                k += compress_32(words, i, symbols, place + i, 255, dense, k)
            for i in range(0, number, 16):
                pack_24(dense, i, out, at + 3 * i)
        at += 3 * number
    return at


@kernel
def merge_24(data, at, stream_len, first_head, scratch, out):
    """Join heads and tails of three bytes into float32: the inverse of :func:`split_24`.

    Args:
        data: uint8, with 64 bytes of margin behind the plane.
        at: Where the plane begins.
        stream_len: Values per sub-stream.
        first_head: Relative head of symbol 1.
        scratch: ``symbols`` and ``bases`` are known; ``layout``, a :class:`layout_types.Tails24`, is overwritten.
        out: uint32[n], result.
    """
    symbols, words, dense, n = scratch.symbols, scratch.layout.words, scratch.layout.dense, len(out)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        # One level, so the head is symbol + origin, modulo 256; escapes get theirs in decode.py.
        origin = np.int64(scratch.bases[s]) + first_head - 1  # head of symbol 0, if it had one
        if HAS_SSSE3 and count & 63 == 0:
            for i in range(0, count, 64):
                number = count_64(symbols, place + i, 255)
                if number == 64:
                    merge_24_all(data, at, symbols, place + i, out, first + i, origin)
                elif number:
                    merge_24_some(data, at, symbols, place + i, out, first + i, origin)
                else:
                    clear_32(out, first + i)
                at += 3 * number
            continue
        number = count_marked(symbols, place, count)
        for i in range(0, number, 16):
            unpack_24(data, at + 3 * i, words, i)
        if number < count:
            # Not in place: to expand writes ahead of where it reads, over items that have not been read.
            for i in range(number):
                dense[i] = words[i]
            k = 0
            for i in range(0, count, 16):
                k += expand_32(dense, k, symbols, place + i, 255, words, i)
        at += 3 * number
        row, result = subarray(symbols, place, count), subarray(out, first, count)
        # The value of zeros, too, and then the choice: LLVM makes no vectors of loops with loads in a branch.
        for i in range(count):
            head = head_of_symbol(U32(row[i]), origin, 255)
            result[i] = value_of_symbol(row[i], head, U32(words[i]), 32, 24)


@kernel
def split_8(values, stream_len, scratch, out, at):
    """Write a byte for every value of 16 bits, or upper half of 32, that is not zero; arguments as of :func:`split_24`,
    ``scratch.layout`` a :class:`layout_types.Tails8`."""
    symbols, tails, n = scratch.symbols, scratch.layout.tails, len(values)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                if width_of(values) == 32:
                    at += split_high_64(values, first + i, symbols, place + i, out, at)
                else:
                    at += split_8_64(values, first + i, symbols, place + i, out, at)
            continue
        stream = subarray(values, first, count)
        if width_of(values) == 32:
            for i in range(count):
                #     float32     s eeeeeeee mmmmmmm 0000000000000000
                #     >> 16       s eeeeeeee mmmmmmm                    a bfloat16, and cut as one
                tails[i] = U8(tail_of(U16(stream[i] >> U32(16)), 16, 8))
        else:
            for i in range(count):
                tails[i] = U8(tail_of(U16(stream[i]), 16, 8))
        for i in range(0, count, 64):
            if i + 64 <= count and count_64(symbols, place + i, 255) == 64:
                copy_64(tails, i, out, at)
                at += 64
            else:
                at += compress_8(tails, i, symbols, place + i, 255, out, at)
    return at


@kernel
def merge_8(data, at, stream_len, first_head, scratch, out):
    """Join heads and tails of a byte into values of 16 bits, or of 32 whose lower half is 0: the inverse of
    :func:`split_8`; arguments as of :func:`merge_24`."""
    symbols, tails, n = scratch.symbols, scratch.layout.tails, len(out)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        origin = np.int64(scratch.bases[s]) + first_head - 1  # head of symbol 0, if it had one
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                if width_of(out) == 32:
                    at += merge_high_64(data, at, symbols, place + i, out, first + i, origin)
                else:
                    at += merge_8_64(data, at, symbols, place + i, out, first + i, origin)
            continue
        for i in range(0, count, 64):
            if count_64(symbols, place + i, 255) == 64:
                copy_64(data, at, tails, i)
                at += 64
            else:
                at += expand_8(data, at, symbols, place + i, 255, tails, i)
        row, result = subarray(symbols, place, count), subarray(out, first, count)
        # The value of zeros, too, and then the choice: LLVM makes no vectors of loops with loads in a branch.
        if width_of(out) == 32:
            for i in range(count):
                head = head_of_symbol(U16(row[i]), origin, 255)
                result[i] = U32(value_of_symbol(row[i], head, U16(tails[i]), 16, 8)) << U32(16)
        else:
            for i in range(count):
                head = head_of_symbol(U16(row[i]), origin, 255)
                result[i] = value_of_symbol(row[i], head, U16(tails[i]), 16, 8)
