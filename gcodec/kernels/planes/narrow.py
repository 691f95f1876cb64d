"""Several planes of at most 8 bits: ladders and fixed bits. See :mod:`layouts` for the terms.

    float32      s hhhhhhhh mmmmmmmmmmmmmmmmmmmmmmm
    tail                  s mmmmmm mmmmmm mmm........      items of planes 0, 1, 2 ..., the first ones of which a value
    planes                  \\_0__/ \\_1__/ \\2/                owns: which depends on its level
"""

from __future__ import annotations

from ..core.intrinsics import BY_CLASSES, HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U32, tail_of, value_of
from ..core.unaligned import subarray, width_of
from ..core.vector import compress_8, expand_8, look_up_64, pack_6, pack_64, unpack_6, unpack_64
from ..entropy.encode_streams import STREAM_PAD
from .layout_types import GROUP

if HAS_AVX512:
    from .narrow_avx512 import merge_groups, split_groups
if BY_CLASSES:
    from ..core.vector_ssse3 import pack_3, unpack_3


@kernel
def find_marks(symbols, n, stream_len, mark_of, marks):
    """Find the marks of all values, laid out like ``symbols``, 0 behind the last. ``mark_of``: uint8[256]."""
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        for i in range(place, place + min(stream_len, n - s * stream_len), 64):
            look_up_64(mark_of, 0, symbols, i, marks, i)


@kernel
def find_tails(values, start, count, words):
    """Find the tails of some values of 32 or 16 bits with 8 head bits, by :func:`scalar.tail_of`."""
    source = subarray(values, start, count)
    if width_of(values) == 32:
        for i in range(count):
            words[i] = tail_of(U32(source[i]), 32, 24)
    else:
        for i in range(count):
            words[i] = tail_of(U32(source[i]), 16, 8)


@kernel
def split_narrow(values, stream_len, tables, planes, scratch, out, at):
    """Write planes of at most 8 bits each; arguments and result as of :func:`layouts.split_planes`."""
    n, symbols, n_items, uniform = len(values), scratch.symbols, scratch.n_items, planes.uniform
    marks, words, item_bytes, items = (
        scratch.layout.marks,
        scratch.layout.words,
        scratch.layout.bytes,
        scratch.layout.items,
    )
    n_items[:] = 0
    if HAS_AVX512:
        split_groups(values, stream_len, tables, planes, scratch)
        for p in range(planes.n):
            at = pack_bytes(items[p], n_items[p], planes.widths[p], out, at)
        return at
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        for i in range(place, place + count, 64):
            look_up_64(tables.mark_of, 0, symbols, i, marks, i)
        find_tails(values, first, count, words)
        for p in range(planes.n):
            # The items of all values in bytes, whatever lies above them; then those that are owned, close together.
            if uniform[p] >= 0:
                right = U32(uniform[p]) & U32(31)
                for i in range(count):
                    item_bytes[i] = U8(U32(words[i]) >> right)
            else:
                for i in range(0, count, 64):
                    look_up_64(tables.shift[p], 0, symbols, place + i, item_bytes, i)
                for i in range(count):
                    item_bytes[i] = U8(U32(words[i]) >> (U32(item_bytes[i]) & U32(31)))
            k = n_items[p]
            for i in range(0, count, 64):
                k += compress_8(item_bytes, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(planes.n):
        at = pack_bytes(items[p], n_items[p], planes.widths[p], out, at)
    return at


@kernel
def merge_narrow(data, at, stream_len, tables, planes, scratch, out):
    """Join heads and planes of at most 8 bits into values: the inverse of :func:`split_narrow`; arguments as of
    :func:`layouts.merge_planes`."""
    n, symbols, n_items, uniform = len(out), scratch.symbols, scratch.n_items, planes.uniform
    marks, words, item_bytes, items = (
        scratch.layout.marks,
        scratch.layout.words,
        scratch.layout.bytes,
        scratch.layout.items,
    )
    for p in range(planes.n):
        unpack_bytes(data, at, n_items[p], planes.widths[p], items[p])
        at += (n_items[p] * planes.widths[p] + 7) >> 3
    n_items[:] = 0
    if HAS_AVX512:
        merge_groups(stream_len, tables, planes, scratch, out)
        return
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        for i in range(count):
            words[i] = 0
        for p in range(planes.n):
            k = n_items[p]
            for i in range(0, count, 64):
                k += expand_8(items[p], k, marks, place + i, 1 << p, item_bytes, i)
            n_items[p] = k
            if uniform[p] >= 0:
                left = U32(uniform[p]) & U32(31)
                for i in range(count):
                    words[i] |= U32(item_bytes[i]) << left
            else:
                shifts = subarray(item_bytes, stream_len + GROUP, stream_len + GROUP)
                for i in range(0, count, 64):
                    look_up_64(tables.shift[p], 0, symbols, place + i, shifts, i)
                for i in range(count):
                    words[i] |= U32(item_bytes[i]) << (U32(shifts[i]) & U32(31))
        for i in range(0, count, 64):
            look_up_64(tables.narrow_head_of, 0, symbols, place + i, item_bytes, i)
        base = U32(scratch.bases[s])
        row, result = subarray(symbols, place, count), subarray(out, first, count)
        # The value of zeros, too, and then the choice: LLVM makes no vectors of loops with loads in a branch.
        if width_of(out) == 32:
            for i in range(count):
                head = U32(U32(U32(item_bytes[i]) + base) & U32(255))
                value = value_of(head, U32(words[i]), 32, 24)
                result[i] = value if row[i] else U32(0)
        else:
            for i in range(count):
                head = U32(U32(U32(item_bytes[i]) + base) & U32(255))
                value = value_of(head, U32(words[i]), 16, 8)
                result[i] = value if row[i] else U32(0)


@kernel
def pack_bytes(items, n, width, out, at):
    """Pack the low ``width`` (1 ... 8) bits of ``items`` (uint8[n + 64]). ``out`` has 72 bytes of margin. Returns the
    end."""
    for k in range(n, n + 64):
        items[k] = 0
    for i in range(0, n, 64):
        if width == 6:
            pack_6(items, i, out, at + (i >> 3) * 6)
        elif BY_CLASSES and width == 3:
            pack_3(items, i, out, at + (i >> 3) * 3)
        else:
            pack_64(items, i, width, out, at + (i >> 3) * width)
    return at + (n * width + 7) // 8


@kernel
def unpack_bytes(data, at, n, width, items):
    """Unpack what :func:`pack_bytes` has packed: ``items``: uint8[n + 64]. ``data`` is readable 72 bytes past the
    plane."""
    for i in range(0, n, 64):
        if width == 6:
            unpack_6(data, at + (i >> 3) * 6, items, i)
        elif BY_CLASSES and width == 3:
            unpack_3(data, at + (i >> 3) * 3, items, i)
        else:
            unpack_64(data, at + (i >> 3) * width, width, items, i)
