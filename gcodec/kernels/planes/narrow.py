"""Several planes of at most 8 bits: ladders and fixed bits. See :mod:`whole_tail` for the terms."""

from __future__ import annotations

from ..core.intrinsics import BY_CLASSES, HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U32
from ..core.unaligned import subarray, width_of
from ..core.vector import compress_8, expand_8, look_up_64, pack_6, pack_64, unpack_6, unpack_64
from ..entropy.encode_streams import STREAM_PAD
from .whole_tail import GROUP

if HAS_AVX512:
    from .narrow_avx512 import merge_groups, split_groups
if BY_CLASSES:
    from ..core.vector_ssse3 import pack_3, unpack_3


@kernel
def find_marks(symbols, n, stream_len, mark_of, marks):
    """Marks of all values, laid out like ``symbols``, 0 behind the last. ``mark_of``: uint8[256]."""
    for s in range((n + stream_len - 1) // stream_len):
        place = s * (stream_len + STREAM_PAD)
        for i in range(place, place + min(stream_len, n - s * stream_len), 64):
            look_up_64(mark_of, 0, symbols, i, marks, i)


@kernel
def tails_32(values, start, count, words):
    """Tails of some 32- or 16-bit values (types with 8 head bits)."""
    some = subarray(values, start, count)
    if width_of(values) == 32:
        for i in range(count):
            bits = U32(some[i])
            words[i] = (bits & U32(0x7FFFFF)) | ((bits >> U32(8)) & U32(0x800000))
    else:
        for i in range(count):
            bits = U32(some[i])
            words[i] = (bits & U32(0x7F)) | ((bits >> U32(8)) & U32(0x80))


@kernel
def split_narrow(
    values,
    symbols,
    n,
    stream_len,
    n_planes,
    widths,
    mark_of,
    shift,
    uniform,
    chunks,
    marks,
    words,
    bytes_,
    items,
    n_items,
    out,
    at,
):
    """Planes of at most 8 bits each. ``items``: uint8[8, n + 64], ``n_items``: int64[8], ``marks``: as ``symbols``,
    scratch."""
    n_items[:] = 0
    if HAS_AVX512:
        split_groups(
            values, symbols, n, stream_len, n_planes, mark_of, shift, uniform, chunks, words, bytes_, items, n_items
        )
        for p in range(n_planes):
            at = pack_bytes(items[p], n_items[p], widths[p], out, at)
        return at
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        for i in range(place, place + count, 64):
            look_up_64(mark_of, 0, symbols, i, marks, i)
        tails_32(values, first, count, words)
        for p in range(n_planes):
            if uniform[p] >= 0:
                right = U32(uniform[p]) & U32(31)
                for i in range(count):
                    bytes_[i] = U8(U32(words[i]) >> right)
            else:
                for i in range(0, count, 64):
                    look_up_64(shift[p], 0, symbols, place + i, bytes_, i)
                for i in range(count):
                    bytes_[i] = U8(U32(words[i]) >> (U32(bytes_[i]) & U32(31)))
            k = n_items[p]
            for i in range(0, count, 64):
                k += compress_8(bytes_, i, marks, place + i, 1 << p, items[p], k)
            n_items[p] = k
    for p in range(n_planes):
        at = pack_bytes(items[p], n_items[p], widths[p], out, at)
    return at


@kernel
def merge_narrow(
    data,
    at,
    symbols,
    marks,
    n,
    stream_len,
    n_planes,
    widths,
    head_of,
    shift,
    uniform,
    chunks,
    bases,
    words,
    bytes_,
    items,
    n_items,
    out,
):
    """Inverse of :func:`split_narrow`. ``marks``: of all values, ``n_items``: of all planes, both known by now;
    ``head_of``: uint8[256], relative head of every symbol; ``data`` has 64 bytes of margin behind the planes."""
    for p in range(n_planes):
        unpack_bytes(data, at, n_items[p], widths[p], items[p])
        at += (n_items[p] * widths[p] + 7) >> 3
    n_items[:] = 0
    if HAS_AVX512:
        merge_groups(
            symbols, marks, n, stream_len, n_planes, head_of, shift, uniform, chunks, bases, words, items, n_items, out
        )
        return
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
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
                own = subarray(bytes_, stream_len + GROUP, stream_len + GROUP)
                for i in range(0, count, 64):
                    look_up_64(shift[p], 0, symbols, place + i, own, i)
                for i in range(count):
                    words[i] |= U32(bytes_[i]) << (U32(own[i]) & U32(31))
        for i in range(0, count, 64):
            look_up_64(head_of, 0, symbols, place + i, bytes_, i)
        base = U32(bases[s])
        some, result = subarray(symbols, place, count), subarray(out, first, count)
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
    """Inverse of :func:`pack_bytes`: ``items``: uint8[n + 64]. ``data`` is readable 72 bytes past the plane."""
    for i in range(0, n, 64):
        if width == 6:
            unpack_6(data, at + (i >> 3) * 6, items, i)
        elif BY_CLASSES and width == 3:
            unpack_3(data, at + (i >> 3) * 3, items, i)
        else:
            unpack_64(data, at + (i >> 3) * width, width, items, i)
