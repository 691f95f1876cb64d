"""Split and merge planes behind heads of more than 8 bits (codes 7, 8, 16, 17, 20 and 21 of docs/format.md section 2).

    bfloat16   s hhhhhhhhh mmmmmm                       tail of 7 bits: one plane
    bfloat16   m hhhhhhhhhhhh mmm                       tail of 4 bits: one plane
    float32    s hhhhhhhhh mmmmmmmmmmmmmmmmmmmmmm       tail of 23 bits: the upper 16 in plane 0, the lower 7 in plane 1
    float32    m hhhhhhhhhhhh mmmmmmmmmmmmmmmmmmm       tail of 20 bits: the upper 16 in plane 0, the lower 4 in plane 1

Every value that is not zero owns an item of each plane. Items of 7 or 4 bits are collected in bytes, and packed at the
end: eight bytes to seven, or two to one. The vector steps are those of :mod:`wide_head_avx512`; all else is as in
:mod:`whole_tail`.
"""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512, HAS_SSSE3
from ..core.jit import kernel
from ..core.scalar import U8, U16, U32, head_of_symbol, item_of, tail_of, value_of, value_of_symbol, with_item
from ..core.unaligned import load_u16, store_u16, subarray
from ..core.vector import compress_8, copy_64, count_64, expand_8, pack_7, pack_64, unpack_7, unpack_64
from ..entropy.encode_streams import STREAM_PAD

if HAS_AVX512:
    from .wide_head_avx512 import (
        merge_4_64,
        merge_7_64,
        merge_20_64,
        merge_23_64,
        split_4_64,
        split_7_64,
        split_20_64,
        split_23_64,
    )
elif HAS_SSSE3:
    from .wide_head_dense import merge_20_all, merge_23_all, split_20_all, split_23_all


@kernel
def _pack(items, n, bits, out, at):
    """Pack the low ``bits``, 7 or 4, of the first ``n`` bytes of ``items``, of which the next 64 become 0, into a plane
    from byte ``at`` of ``out`` on. Returns the byte behind the plane."""
    # The steps take 64 items at a time: what they read behind the last item becomes the spare bits of the plane's last
    # byte, which are 0 (docs/format.md section 1), and bytes behind the plane.
    for i in range(n, n + 64):
        items[i] = U8(0)
    if bits == 7:
        #     items      0aaaaaaa 0bbbbbbb ... 0hhhhhhh      eight bytes, first on the left
        #     plane      baaaaaaa ccbbbbbb ... hhhhhhhg      seven
        for i in range(0, n, 64):
            pack_7(items, i, out, at + (i >> 3) * 7)
    else:
        for i in range(0, n, 64):
            pack_64(items, i, 4, out, at + (i >> 1))
    return at + ((bits * n + 7) >> 3)


@kernel
def _unpack(data, at, n, bits, items):
    """Unpack ``n`` items of a plane that :func:`_pack` has packed, up to a multiple of 64."""
    if bits == 7:
        for i in range(0, n, 64):
            unpack_7(data, at + (i >> 3) * 7, items, i)
    else:
        for i in range(0, n, 64):
            unpack_64(data, at + (i >> 1), 4, items, i)


@kernel
def split_short(values, stream_len, tail_bits, scratch, out, at):
    """Write the tail of every bfloat16 that is not zero; arguments as of :func:`whole_tail.split_24`, ``tail_bits`` is
    7 or 4, and ``scratch.layout`` a :class:`layout_types.ShortTails`."""
    symbols, items, n = scratch.symbols, scratch.layout.items, len(values)
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        # Only a block's last sub-stream may have another number of values: for it the loops below will do.
        if HAS_AVX512 and count & 63 == 0:
            if tail_bits == 7:
                for i in range(0, count, 64):
                    k += split_7_64(values, first + i, symbols, place + i, items, k)
            else:
                for i in range(0, count, 64):
                    k += split_4_64(values, first + i, symbols, place + i, items, k)
            continue
        # The bytes land where they will be compressed to, or behind it: compressing never overtakes itself.
        stream, tails = subarray(values, first, count), subarray(items, first, count)
        for i in range(count):
            tails[i] = U8(tail_of(U16(stream[i]), 16, tail_bits))
        # No zero among 64, which is the rule: their items are copied as they are.
        for i in range(0, count, 64):
            if i + 64 <= count and count_64(symbols, place + i, 255) == 64:
                copy_64(items, first + i, items, k)
                k += 64
            else:
                k += compress_8(items, first + i, symbols, place + i, 255, items, k)
    return _pack(items, k, tail_bits, out, at)


@kernel
def merge_short(data, at, stream_len, tail_bits, first_head, scratch, out):
    """Join heads and tails of 7 or 4 bits into bfloat16: the inverse of :func:`split_short`; arguments as of
    :func:`whole_tail.merge_24`, and ``scratch.n_items`` is known."""
    symbols, items, tails, n = scratch.symbols, scratch.layout.items, scratch.layout.tails, len(out)
    _unpack(data, at, scratch.n_items[0], tail_bits, items)
    # With one level, symbols 1, 2, 3 ... mean heads that follow one another, from base + first_head on: a head is the
    # symbol plus `origin`. What this makes of escapes is put right by decode.py, whatever it is.
    k, head_mask = np.int64(0), (1 << (16 - tail_bits)) - 1
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        origin = np.int64(scratch.bases[s]) + first_head - 1  # head of symbol 0, if it had one
        if HAS_AVX512 and count & 63 == 0:
            if tail_bits == 7:
                for i in range(0, count, 64):
                    k += merge_7_64(items, k, symbols, place + i, out, first + i, origin)
            else:
                for i in range(0, count, 64):
                    k += merge_4_64(items, k, symbols, place + i, out, first + i, origin)
            continue
        for i in range(0, count, 64):
            if count_64(symbols, place + i, 255) == 64:
                copy_64(items, k, tails, i)
                k += 64
            else:
                k += expand_8(items, k, symbols, place + i, 255, tails, i)
        row, result = subarray(symbols, place, count), subarray(out, first, count)
        # The value of zeros, too, and then the choice: LLVM makes no vectors of loops with loads in a branch.
        for i in range(count):
            head = head_of_symbol(U16(row[i]), origin, head_mask)
            result[i] = value_of_symbol(row[i], head, U16(tails[i]), 16, tail_bits)


@kernel
def split_long(values, stream_len, tail_bits, scratch, out, at):
    """Write the planes of float32 behind a head of more than 8 bits: 16 bits for every value that is not zero, then 7
    or 4 bits for each.

    Arguments and result as of :func:`whole_tail.split_24`, ``tail_bits`` is 23 or 20, and ``scratch.layout`` a
    :class:`layout_types.LongTails`.
    """
    symbols, items, n, low_bits = scratch.symbols, scratch.layout.items, len(values), tail_bits - 16
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            if tail_bits == 23:
                for i in range(0, count, 64):
                    k += split_23_64(values, first + i, symbols, place + i, out, at + 2 * k, items, k)
            else:
                for i in range(0, count, 64):
                    k += split_20_64(values, first + i, symbols, place + i, out, at + 2 * k, items, k)
            continue
        for begin in range(0, count, 64):
            end = min(begin + 64, count)
            if not HAS_AVX512 and HAS_SSSE3 and end - begin == 64 and count_64(symbols, place + begin, 255) == 64:
                if tail_bits == 23:
                    split_23_all(values, first + begin, out, at + 2 * k, items, k)
                else:
                    split_20_all(values, first + begin, out, at + 2 * k, items, k)
                k += 64
                continue
            #     tail       hhhhhhhhhhhhhhhh lllllll      23 bits, or 20 with four low ones
            #     plane 0    hhhhhhhhhhhhhhhh              stored at once, two bytes each
            #     plane 1                     lllllll      a byte each until _pack joins them
            for i in range(begin, end):
                if symbols[place + i]:
                    tail = U32(tail_of(U32(values[first + i]), 32, tail_bits))
                    store_u16(out, at + 2 * k, U16(item_of(tail, low_bits, 0xFFFF)))
                    items[k] = U8(item_of(tail, 0, (1 << low_bits) - 1))
                    k += 1
    # Plane 1 begins behind plane 0, and so not before it is known how many items that has: until then, bytes.
    return _pack(items, k, low_bits, out, at + 2 * k)


@kernel
def merge_long(data, at, stream_len, tail_bits, first_head, scratch, out):
    """Join heads and tails of 16 and 7 or 4 bits into float32: the inverse of :func:`split_long`; arguments as of
    :func:`merge_short`."""
    symbols, items, n, n_items = scratch.symbols, scratch.layout.items, len(out), scratch.n_items[0]
    low_bits, head_mask = tail_bits - 16, (1 << (32 - tail_bits)) - 1
    _unpack(data, at + 2 * n_items, n_items, low_bits, items)
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        origin = np.int64(scratch.bases[s]) + first_head - 1  # head of symbol 0, if it had one
        if HAS_AVX512 and count & 63 == 0:
            if tail_bits == 23:
                for i in range(0, count, 64):
                    k += merge_23_64(data, at + 2 * k, items, k, symbols, place + i, out, first + i, origin)
            else:
                for i in range(0, count, 64):
                    k += merge_20_64(data, at + 2 * k, items, k, symbols, place + i, out, first + i, origin)
            continue
        for begin in range(0, count, 64):
            if not HAS_AVX512 and HAS_SSSE3 and count_64(symbols, place + begin, 255) == 64:
                if tail_bits == 23:
                    merge_23_all(data, at + 2 * k, items, k, symbols, place + begin, out, first + begin, origin)
                else:
                    merge_20_all(data, at + 2 * k, items, k, symbols, place + begin, out, first + begin, origin)
                k += 64
                continue
            for i in range(begin, min(begin + 64, count)):
                symbol = U32(symbols[place + i])
                value = U32(0)
                if symbol:
                    tail = with_item(U32(items[k]), load_u16(data, at + 2 * k), low_bits)
                    value = value_of(head_of_symbol(symbol, origin, head_mask), tail, 32, tail_bits)
                    k += 1
                out[first + i] = value
