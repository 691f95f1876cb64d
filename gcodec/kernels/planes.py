"""Planes: the sign and mantissa bits of a block's values, one packed array per plane (docs/format.md sections 4 and 7).

Encoding cuts each value's kept bits into items ("split"), decoding joins items, heads and signs into values ("merge"). There are four pairs
of kernels for four layouts, all with the same bytes: one plane of 24 bits (float32, lossless), one of 8 bits (bfloat16 and float16,
lossless), several of at most 8 bits (ladders), and any planes at all.

Values of the symbols of a sub-stream lie in ``symbols`` at a stride of ``stream + STREAM_PAD`` bytes; behind the last, shorter sub-stream
up to the next multiple of 64 the symbols are 0. Which items a value owns follows from its symbol:

``marks[symbol]``     uint8, bit p set where a value of this symbol owns an item of plane p
``shift[p, symbol]``  uint8, how far left of the tail's lowest bit that item lies
``uniform[p]``        int64, the same where it is the same for all symbols, else -1
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .memory import load_u32, load_u64, store_u32, store_u64, view, width_of
from .scalar import U8, U16, U32, U64
from .streams import STREAM_PAD
from .vector import compress_8, compress_32, expand_8, expand_32, lookup, pack_24, unpack_24

LAYOUT_NONE, LAYOUT_24, LAYOUT_8, LAYOUT_NARROW, LAYOUT_GENERAL = range(5)
GROUP = 64  #: bytes that the vector steps move at a time: the margin of every scratch array


@kernel
def count_marked(symbols, place, count):
    """How many of ``count`` symbols are not zero."""
    some = view(symbols, place, count)
    number = U32(0)
    for i in range(count):
        number += U32(some[i] != 0)
    return np.int64(number)


@kernel
def split_24(values, symbols, n, stream, words, dense, out, at):
    """Three bytes for every value that is not zero. ``words``, ``dense``: uint32[stream + 64], scratch; ``out`` has 64 bytes of
    margin. Returns the end."""
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
        some = view(values, first, count)
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
def merge_24(data, at, symbols, n, stream, first_head, bases, words, dense, out):
    """Inverse of :func:`split_24`. ``data`` has 48 bytes of margin behind the plane; ``first_head``: relative head of symbol 1;
    ``bases``: uint16[n_streams], reference heads; ``out``: uint32[n]."""
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
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
        some, result = view(symbols, place, count), view(out, first, count)
        for i in range(count):
            symbol = U32(some[i])
            tail = U32(words[i])
            head = U32(U32(symbol + origin) << U32(23)) & U32(0x7F800000)
            value = head | (tail & U32(0x7FFFFF)) | U32(U32(tail << U32(8)) & U32(0x80000000))
            result[i] = value if symbol else U32(0)


@kernel
def split_8(values, symbols, n, stream, bytes_, out, at):
    """One byte for every value that is not zero. ``bytes_``: uint8[stream + 64], scratch; ``out`` has 64 bytes of margin."""
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
        some = view(values, first, count)
        for i in range(count):
            bits = U16(some[i])
            bytes_[i] = U8((bits & U16(0x7F)) | ((bits >> U16(8)) & U16(0x80)))
        for i in range(0, count, 64):
            at += compress_8(bytes_, i, symbols, place + i, 255, out, at)
    return at


@kernel
def merge_8(data, at, symbols, n, stream, first_head, bases, bytes_, out):
    """Inverse of :func:`split_8`; arguments as in :func:`merge_24`, ``out``: uint16[n]."""
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
        for i in range(0, count, 64):
            at += expand_8(data, at, symbols, place + i, 255, bytes_, i)
        origin = U16(np.int64(bases[s]) + first_head + 255)
        some, result = view(symbols, place, count), view(out, first, count)
        for i in range(count):
            symbol = U16(some[i])
            tail = U16(bytes_[i])
            head = U16(U16(symbol + origin) << U16(7)) & U16(0x7F80)
            value = head | (tail & U16(0x7F)) | U16(U16(tail << U16(8)) & U16(0x8000))
            result[i] = value if symbol else U16(0)


@kernel
def find_marks(symbols, n, stream, mark_of, marks):
    """Marks of all values, laid out like ``symbols``, 0 behind the last. ``mark_of``: uint8[256]."""
    for s in range((n + stream - 1) // stream):
        place = s * (stream + STREAM_PAD)
        for i in range(place, place + min(stream, n - s * stream), 64):
            lookup(mark_of, 0, symbols, i, marks, i)


@kernel
def tails_32(values, start, count, words):
    """Tails of some 32- or 16-bit values (types with 8 head bits)."""
    some = view(values, start, count)
    if width_of(values) == 32:
        for i in range(count):
            bits = U32(some[i])
            words[i] = (bits & U32(0x7FFFFF)) | ((bits >> U32(8)) & U32(0x800000))
    else:
        for i in range(count):
            bits = U32(some[i])
            words[i] = (bits & U32(0x7F)) | ((bits >> U32(8)) & U32(0x80))


@kernel
def split_narrow(values, symbols, n, stream, n_planes, widths, mark_of, shift, uniform, marks, words, bytes_, items, n_items,
                 out, at):
    """Planes of at most 8 bits each. ``items``: uint8[8, n + 64], ``n_items``: int64[8], ``marks``: as ``symbols``, scratch."""
    find_marks(symbols, n, stream, mark_of, marks)
    n_items[:] = 0
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
        tails_32(values, first, count, words)
        for p in range(n_planes):
            if uniform[p] >= 0:
                right = U32(uniform[p]) & U32(31)
                for i in range(count):
                    bytes_[i] = U8(U32(words[i]) >> right)
            else:
                for i in range(0, count, 64):
                    lookup(shift[p], 0, symbols, place + i, bytes_, i)
                for i in range(count):
                    bytes_[i] = U8(U32(words[i]) >> (U32(bytes_[i]) & U32(31)))
            k = n_items[p]
            for i in range(0, count, 64):
                k += compress_8(bytes_, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(n_planes):
        at = pack_bytes(items[p], n_items[p], widths[p], words, out, at)
    return at


@kernel
def merge_narrow(data, at, symbols, marks, n, stream, n_planes, widths, head_of, shift, uniform, bases, words, bytes_, items,
                 n_items, out):
    """Inverse of :func:`split_narrow`. ``marks``: of all values, ``n_items``: of all planes, both known by now; ``head_of``: uint8[256],
    relative head of every symbol; ``data`` has 64 bytes of margin behind the planes."""
    for p in range(n_planes):
        unpack_bytes(data, at, n_items[p], widths[p], words, items[p])
        at += (n_items[p] * widths[p] + 7) >> 3
    n_items[:] = 0
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        count = min(stream, n - first)
        for i in range(count):
            words[i] = 0
        for p in range(n_planes):
            k = n_items[p]
            for i in range(0, count, 64):
                k += expand_8(items[p], k, marks, place + i, 1 << p, bytes_, i)
            n_items[p] = k
            if uniform[p] >= 0:
                left = U32(uniform[p]) & U32(31)
                for i in range(count):
                    words[i] |= U32(bytes_[i]) << left
            else:
                own = view(bytes_, stream + GROUP, stream + GROUP)
                for i in range(0, count, 64):
                    lookup(shift[p], 0, symbols, place + i, own, i)
                for i in range(count):
                    words[i] |= U32(bytes_[i]) << (U32(own[i]) & U32(31))
        for i in range(0, count, 64):
            lookup(head_of, 0, symbols, place + i, bytes_, i)
        base = U32(bases[s])
        some, result = view(symbols, place, count), view(out, first, count)
        if width_of(out) == 32:
            for i in range(count):
                tail = U32(words[i])
                head = U32(U32(U32(bytes_[i]) + base) << U32(23)) & U32(0x7F800000)
                value = head | (tail & U32(0x7FFFFF)) | U32(U32(tail << U32(8)) & U32(0x80000000))
                result[i] = value if some[i] else U32(0)
        else:
            for i in range(count):
                tail = U32(words[i])
                head = U32(U32(U32(bytes_[i]) + base) << U32(7)) & U32(0x7F80)
                value = head | (tail & U32(0x7F)) | U32(U32(tail << U32(8)) & U32(0x8000))
                result[i] = value if some[i] else U32(0)


@kernel
def pack_bytes(items, n, width, words, out, at):
    """Pack the low ``width`` (1 ... 8) bits of ``items`` (uint8[n + 64]). ``out`` has 64 bytes of margin. Returns the end."""
    mask = U64((1 << width) - 1)
    end = at + (n * width + 7) // 8
    for k in range(n, n + 64):
        items[k] = 0
    if width == 6:
        for i in range(0, n, 64):
            for k in range(16):
                four = U32(load_u32(items, i + 4 * k))
                low = (four & U32(0x3F)) | ((four >> U32(2)) & U32(0xFC0))
                words[k] = low | ((four >> U32(4)) & U32(0x3F000)) | ((four >> U32(6)) & U32(0xFC0000))
            pack_24(words, 0, out, at)
            at += 48
        return end
    for i in range(0, n, 8):
        eight = load_u64(items, i)
        packed = U64(0)
        for k in range(8):
            packed |= ((eight >> U64(8 * k)) & mask) << U64(width * k)
        store_u64(out, at, packed)
        at += width
    return end


@kernel
def unpack_bytes(data, at, n, width, words, items):
    """Inverse of :func:`pack_bytes`: ``items``: uint8[n + 64]. ``data`` is readable 48 bytes past the plane."""
    mask = U64((1 << width) - 1)
    if width == 6:
        for i in range(0, n, 64):
            unpack_24(data, at, words, 0)
            for k in range(16):
                word = U32(words[k])
                low = (word & U32(0x3F)) | (U32(word << U32(2)) & U32(0x3F00))
                high = (U32(word << U32(4)) & U32(0x3F0000)) | (U32(word << U32(6)) & U32(0x3F000000))
                store_u32(items, i + 4 * k, U32(low | high))
            at += 48
        return
    for i in range(0, n, 8):
        packed = load_u64(data, at)
        eight = U64(0)
        for k in range(8):
            eight |= ((packed >> U64(width * k)) & mask) << U64(8 * k)
        store_u64(items, i, eight)
        at += width


@kernel
def split_plane(values, symbols, n, stream, tail_bits, mark_of, bit, shift, width, out, at):
    """Plane number ``bit`` of any width up to 56 bits. ``out`` has 8 bytes of margin. Returns the end."""
    window = U64(0)
    filled = U64(0)
    mask = U64((1 << width) - 1)
    rest = U64((1 << (tail_bits - 1)) - 1)
    sign = U64(width_of(values) - 1)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            own = U64((mark_of[symbol] >> bit) & 1)
            bits = U64(values[first + i])
            tail = ((bits >> sign) << U64(tail_bits - 1)) | (bits & rest)
            item = (tail >> U64(shift[symbol])) & (mask * own)
            window |= item << filled
            filled += U64(width) * own
            store_u64(out, at, window)
            at += np.int64(filled >> U64(3))
            window = (window >> (filled & U64(56))) if filled < U64(64) else U64(0)
            filled &= U64(7)
    return at + (filled > 0)


@kernel
def merge_plane(data, at, symbols, n, stream, mark_of, bit, shift, width, tail):
    """Inverse of :func:`split_plane`: ORs the plane's items into ``tail``: uint64[n]. ``data`` is readable 8 bytes past the plane."""
    mask = U64((1 << width) - 1)
    position = U64(at) << U64(3)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            own = U64((mark_of[symbol] >> bit) & 1)
            item = (load_u64(data, np.int64(position >> U64(3))) >> (position & U64(7))) & (mask * own)
            tail[first + i] |= item << U64(shift[symbol])
            position += U64(width) * own


@kernel
def merge_values(tail, symbols, n, stream, heads, bases, head_shift, head_mask, tail_bits, out):
    """Heads, signs and tails into values. ``tail``: uint64[n], None where ``tail_bits`` is 0; ``heads``: uint16[256], relative;
    ``out``: uintW[n]."""
    rest = U64((1 << (tail_bits - 1)) - 1) if tail_bits else U64(0)
    sign = U64(width_of(out) - 1)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            value = ((U64(heads[symbol]) + U64(bases[s])) & U64(head_mask)) << U64(head_shift)
            if tail is not None:
                bits = U64(tail[first + i])
                value |= (bits & rest) | ((bits >> U64(tail_bits - 1)) << sign)
            out[first + i] = value if symbol else U64(0)
