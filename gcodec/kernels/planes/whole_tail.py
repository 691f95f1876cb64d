"""Planes: the sign and mantissa bits of a block's values, one packed array per plane (docs/format.md sections 4 and 7).

Encoding cuts each value's kept bits into items ("split"), decoding joins items, heads and signs into values
("merge"). There are pairs of kernels for several layouts, all with the same bytes: one plane of 24 bits (float32,
lossless), one of 8 bits (bfloat16 and float16, lossless), those of wide heads (:mod:`wide_head`), several planes of
at most 8 bits (ladders, :mod:`narrow`; with AVX-512 :mod:`narrow_avx512`), and any planes at all
(:mod:`general`).

Values of the symbols of a sub-stream lie in ``symbols`` at a stride of ``stream_len + STREAM_PAD`` bytes; behind the
last, shorter sub-stream up to the next multiple of 64 the symbols are 0. Which items a value owns follows from its
symbol:

``marks[symbol]``     uint8, bit p set where a value of this symbol owns an item of plane p
``shift[p, symbol]``  uint8, how far left of the tail's lowest bit that item lies
``uniform[p]``        int64, the same where it is the same for all symbols, else -1
"""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U16, U32
from ..core.unaligned import subarray
from ..core.vector import clear_32, compress_8, compress_32, count_64, expand_8, expand_32, pack_24, unpack_24
from ..entropy.encode_streams import STREAM_PAD

if HAS_AVX512:
    from .whole_tail_avx512 import merge_8_64, merge_24_64, split_8_64, split_24_64

LAYOUT_NONE, LAYOUT_24, LAYOUT_8, LAYOUT_23, LAYOUT_7, LAYOUT_NARROW, LAYOUT_GENERAL = range(7)
GROUP = 64  #: bytes that the vector steps move at a time: the margin of every scratch array


@kernel
def count_marked(symbols, place, count):
    """How many of ``count`` symbols are not zero."""
    if count & 63 == 0:
        total = np.int64(0)
        for i in range(0, count, 64):
            total += count_64(symbols, place + i, 255)
        return total
    some = subarray(symbols, place, count)
    number = U32(0)
    for i in range(count):
        number += U32(some[i] != 0)
    return np.int64(number)


@kernel
def split_24(values, symbols, n, stream_len, words, dense, out, at):
    """Three bytes for every value that is not zero. ``words``, ``dense``: uint32[stream_len + 64], scratch; ``out`` has
    64 bytes of margin. Returns the end."""
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                if count_64(symbols, place + i, 255):  # rows of zeros are as common as costly
                    at += 3 * split_24_64(values, first + i, symbols, place + i, out, at)
            continue
        some = subarray(values, first, count)
        for i in range(count):
            bits = U32(some[i])
            words[i] = (bits & U32(0x7FFFFF)) | ((bits >> U32(8)) & U32(0x800000))
        number = count_marked(symbols, place, count)
        if number == count:
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
def merge_24(data, at, symbols, n, stream_len, first_head, bases, words, dense, out):
    """Inverse of :func:`split_24`. ``data`` has 64 bytes of margin behind the plane; ``first_head``: relative head
    of symbol 1; ``bases``: uint16[n_streams], reference heads; ``out``: uint32[n]."""
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            start = np.int64(bases[s]) + first_head - 1
            for i in range(0, count, 64):
                if count_64(symbols, place + i, 255):
                    at += 3 * merge_24_64(data, at, symbols, place + i, out, first + i, start)
                else:
                    clear_32(out, first + i)
            continue
        number = count_marked(symbols, place, count)
        for i in range(0, number, 16):
            unpack_24(data, at + 3 * i, words, i)
        if number < count:
            for i in range(number):
                dense[i] = words[i]
            k = 0
            for i in range(0, count, 16):
                k += expand_32(dense, k, symbols, place + i, 255, words, i)
        at += 3 * number
        origin = U32(np.int64(bases[s]) + first_head + 255)
        some, result = subarray(symbols, place, count), subarray(out, first, count)
        for i in range(count):
            symbol = U32(some[i])
            tail = U32(words[i])
            head = U32(U32(symbol + origin) << U32(23)) & U32(0x7F800000)
            value = head | (tail & U32(0x7FFFFF)) | U32(U32(tail << U32(8)) & U32(0x80000000))
            result[i] = value if symbol else U32(0)


@kernel
def split_8(values, symbols, n, stream_len, bytes_, out, at):
    """One byte for every value that is not zero. ``bytes_``: uint8[stream_len + 64], scratch; ``out`` has 64 bytes of
    margin."""
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                at += split_8_64(values, first + i, symbols, place + i, out, at)
            continue
        some = subarray(values, first, count)
        for i in range(count):
            bits = U16(some[i])
            bytes_[i] = U8((bits & U16(0x7F)) | ((bits >> U16(8)) & U16(0x80)))
        for i in range(0, count, 64):
            at += compress_8(bytes_, i, symbols, place + i, 255, out, at)
    return at


@kernel
def merge_8(data, at, symbols, n, stream_len, first_head, bases, bytes_, out):
    """Inverse of :func:`split_8`; arguments as in :func:`merge_24`, ``out``: uint16[n]."""
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            start = np.int64(bases[s]) + first_head - 1
            for i in range(0, count, 64):
                at += merge_8_64(data, at, symbols, place + i, out, first + i, start)
            continue
        for i in range(0, count, 64):
            at += expand_8(data, at, symbols, place + i, 255, bytes_, i)
        origin = U16(np.int64(bases[s]) + first_head + 255)
        some, result = subarray(symbols, place, count), subarray(out, first, count)
        for i in range(count):
            symbol = U16(some[i])
            tail = U16(bytes_[i])
            head = U16(U16(symbol + origin) << U16(7)) & U16(0x7F80)
            value = head | (tail & U16(0x7F)) | U16(U16(tail << U16(8)) & U16(0x8000))
            result[i] = value if symbol else U16(0)
