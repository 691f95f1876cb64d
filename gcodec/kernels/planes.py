"""Planes: the sign and mantissa bits of a block's values, one packed array per plane (docs/format.md sections 4 and 7).

Encoding cuts each value's kept bits into items ("split"), decoding joins items, heads and signs into values ("merge"). Which items a
value owns follows from its symbol alone, so all kernels are driven by tables over the 256 symbols:

``owns[p, symbol]``   uint8, 1 where a value of this symbol owns an item of plane p
``shift[p, symbol]``  uint8, how far left of the tail's lowest bit that item lies

There is a general pair of kernels for any planes, one for planes of at most 8 bits (ladders), and one each for the
lossless tails of 24 and of 8 bits. All give the same bytes.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .memory import load_u32, load_u64, store_u32, store_u64
from .scalar import U8, U32, U64
from .streams import STREAM_PAD

#: How the tails of a frame are laid out, which decides the pair of kernels: no tail at all, one plane of 24 or of 8 bits (the
#: lossless formats), up to 8 planes of at most 8 bits (ladders), anything else.
LAYOUT_NONE, LAYOUT_24, LAYOUT_8, LAYOUT_NARROW, LAYOUT_GENERAL = range(5)


@kernel
def tails(values, n, tail_bits, out):
    """Tail of each value: ``values``: uintW[n], ``out``: uint64[n] or uint32[n]; ``tail_bits`` > 0."""
    rest = U64((1 << (tail_bits - 1)) - 1)
    sign = U64(8 * values.itemsize - 1)
    for i in range(n):
        bits = U64(values[i])
        out[i] = ((bits >> sign) << U64(tail_bits - 1)) | (bits & rest)


@kernel
def split_24(values, n, out, at):
    """Lossless float32: three bytes for every value that is not zero. ``out`` has 1 byte of margin. Returns the end."""
    for i in range(n):
        bits = U32(values[i])
        store_u32(out, at, U32((bits & U32(0x7FFFFF)) | ((bits >> U32(31)) << U32(23))))
        at += 3 * (bits != 0)
    return at


@kernel
def merge_24(data, at, n_items, symbols, n, stream, heads, bases, head_mask, out):
    """Inverse of :func:`split_24`. ``data`` is readable 1 byte past the plane; ``heads``: uint32[256], relative heads in place;
    ``bases``: uint32[n_streams], base and reference in place; ``out``: uint32[n]."""
    low, top = U32(0x7FFFFF), U32(0x800000)
    mask = U32(head_mask)
    dense = n_items == n
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        count = min(stream, n - first)
        place = s * (stream + STREAM_PAD)
        base = bases[s]
        if dense:
            for i in range(count):
                tail = load_u32(data, at + 3 * i)
                head = U32(heads[symbols[place + i]] + base) & mask
                out[first + i] = head | (tail & low) | ((tail & top) << U32(8))
            at += 3 * count
        else:
            for i in range(count):
                symbol = symbols[place + i]
                tail = load_u32(data, at)
                head = U32(heads[symbol] + base) & mask
                value = head | (tail & low) | ((tail & top) << U32(8))
                out[first + i] = value if symbol else U32(0)
                at += 3 * (symbol != 0)


@kernel
def split_8(values, n, out, at):
    """Lossless bfloat16 and float16: one byte for every value that is not zero. Returns the end."""
    for i in range(n):
        bits = U32(values[i])
        out[at] = (bits & U32(0x7F)) | ((bits >> U32(15)) << U32(7))
        at += bits != 0
    return at


@kernel
def merge_8(data, at, n_items, symbols, n, stream, heads, bases, head_mask, out):
    """Inverse of :func:`split_8`; arguments as in :func:`merge_24`, ``out``: uint16[n]."""
    mask = U32(head_mask)
    dense = n_items == n
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        count = min(stream, n - first)
        place = s * (stream + STREAM_PAD)
        base = bases[s]
        if dense:
            for i in range(count):
                tail = U32(data[at + i])
                head = U32(heads[symbols[place + i]] + base) & mask
                out[first + i] = head | (tail & U32(0x7F)) | ((tail & U32(0x80)) << U32(8))
            at += count
        else:
            for i in range(count):
                symbol = symbols[place + i]
                tail = U32(data[at])
                head = U32(heads[symbol] + base) & mask
                value = head | (tail & U32(0x7F)) | ((tail & U32(0x80)) << U32(8))
                out[first + i] = value if symbol else U32(0)
                at += symbol != 0


@kernel
def split_plane(tail, symbols, n, stream, owns, shift, width, out, at):
    """One plane of any width up to 56 bits. ``tail``: uint32/uint64[n]; ``owns``, ``shift``: uint8[256]; ``out`` has 8 bytes
    of margin. Returns the end."""
    window = U64(0)
    filled = U64(0)
    mask = U64((1 << width) - 1)
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            own = U64(owns[symbol])
            item = (U64(tail[first + i]) >> U64(shift[symbol])) & (mask * own)
            window |= item << filled
            filled += U64(width) * own
            store_u64(out, at, window)
            at += np.int64(filled >> U64(3))
            window = (window >> (filled & U64(56))) if filled < U64(64) else U64(0)
            filled &= U64(7)
    return at + (filled > 0)


@kernel
def merge_plane(data, at, symbols, n, stream, owns, shift, width, tail):
    """Inverse of :func:`split_plane`: ORs the plane's items into ``tail``. ``data`` is readable 8 bytes past the plane."""
    mask = U64((1 << width) - 1)
    bit = U64(at) << U64(3)
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            own = U64(owns[symbol])
            item = (load_u64(data, np.int64(bit >> U64(3))) >> (bit & U64(7))) & (mask * own)
            tail[first + i] |= item << U64(shift[symbol])
            bit += U64(width) * own


@kernel
def split_narrow(tail, symbols, n, stream, owns, shift, n_planes, items, n_items):
    """Items of up to 8 planes of at most 8 bits, one byte each and not yet packed.

    ``tail``: uint32[n]; ``items``: uint8[8, n + 8], result; ``n_items``: int64[8], result.
    """
    n_streams = (n + stream - 1) // stream
    for p in range(n_planes):
        at = 0
        row, own, right = items[p], owns[p], shift[p]
        for s in range(n_streams):
            first = s * stream
            place = s * (stream + STREAM_PAD)
            for i in range(min(stream, n - first)):
                symbol = symbols[place + i]
                row[at] = U8(tail[first + i] >> U32(right[symbol]))
                at += own[symbol]
        n_items[p] = at


@kernel
def pack_bytes(items, n, width, out, at):
    """Pack the low ``width`` (1 ... 8) bits of ``items`` (uint8[n + 8]). ``out`` has 8 bytes of margin. Returns the end."""
    mask = U64((1 << width) - 1)
    end = at + (n * width + 7) // 8
    for k in range(n, n + 8):
        items[k] = 0
    for i in range(0, n, 8):
        eight = load_u64(items, i)
        packed = U64(0)
        for k in range(8):
            packed |= ((eight >> U64(8 * k)) & mask) << U64(width * k)
        store_u64(out, at, packed)
        at += width
    return end


@kernel
def unpack_bytes(data, at, n, width, items):
    """Inverse of :func:`pack_bytes`: ``items``: uint8[n + 8]. ``data`` is readable 8 bytes past the plane."""
    mask = U64((1 << width) - 1)
    for i in range(0, n, 8):
        packed = load_u64(data, at)
        eight = U64(0)
        for k in range(8):
            eight |= ((packed >> U64(width * k)) & mask) << U64(8 * k)
        store_u64(items, i, eight)
        at += width


@kernel
def merge_narrow(items, symbols, n, stream, owns, shift, n_planes, tail):
    """Inverse of :func:`split_narrow`: ``tail``: uint32[n], result."""
    n_streams = (n + stream - 1) // stream
    for p in range(n_planes):
        at = 0
        row, own, left = items[p], owns[p], shift[p]
        for s in range(n_streams):
            first = s * stream
            place = s * (stream + STREAM_PAD)
            for i in range(min(stream, n - first)):
                symbol = symbols[place + i]
                has = U32(own[symbol])
                item = (U32(row[at]) * has) << U32(left[symbol])
                tail[first + i] = item if p == 0 else U32(tail[first + i] | item)
                at += has


@kernel
def merge_values(tail, symbols, n, stream, heads, bases, head_mask, tail_bits, out):
    """Heads, signs and tails into values. ``tail``: uint32/uint64[n], not read when ``tail_bits`` is 0; ``heads``: uint64[256] and
    ``bases``: uint64[n_streams], in place; ``out``: uintW[n]."""
    rest = U64((1 << (tail_bits - 1)) - 1) if tail_bits else U64(0)
    sign = U64(8 * out.itemsize - 1)
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        place = s * (stream + STREAM_PAD)
        for i in range(min(stream, n - first)):
            symbol = symbols[place + i]
            value = (U64(heads[symbol]) + U64(bases[s])) & U64(head_mask)
            if tail_bits:
                bits = U64(tail[first + i])
                value |= (bits & rest) | ((bits >> U64(tail_bits - 1)) << sign)
            out[first + i] = value if symbol else U64(0)
