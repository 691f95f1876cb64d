"""Planes where the head has a mantissa bit: 7 bits of bfloat16, 16 and 7 bits of float32; see :mod:`whole_tail`."""

from __future__ import annotations

import numpy as np

from ..core.intrinsics import HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U16, U32
from ..core.unaligned import load_u16, store_u16, subarray
from ..core.vector import compress_8, expand_8, pack_7, unpack_7
from ..entropy.encode_streams import STREAM_PAD

if HAS_AVX512:
    from .wide_head_avx512 import merge_7_64, merge_23_64, split_7_64, split_23_64


@kernel
def _pack(seven, n, out, at):
    """Pack the low 7 bits of ``n`` bytes. Returns the end."""
    for i in range(n, n + 64):
        seven[i] = U8(0)
    for i in range(0, n, 64):
        pack_7(seven, i, out, at + (i >> 3) * 7)
    return at + ((7 * n + 7) >> 3)


@kernel
def split_7(values, symbols, n, stream_len, seven, out, at):
    """Seven bits for every value that is not zero. ``seven``: uint8[n + 64], scratch; ``out`` has 64 bytes of
    margin. Returns the end."""
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                k += split_7_64(values, first + i, symbols, place + i, seven, k)
            continue
        # The bytes land where they will be compressed to, or behind it: compressing never overtakes itself.
        some, own = subarray(values, first, count), subarray(seven, first, count)
        for i in range(count):
            bits = U16(some[i])
            own[i] = U8((bits & U16(0x3F)) | ((bits >> U16(9)) & U16(0x40)))
        for i in range(0, count, 64):
            k += compress_8(seven, first + i, symbols, place + i, 255, seven, k)
    return _pack(seven, k, out, at)


@kernel
def merge_7(data, at, n_items, symbols, n, stream_len, first_head, bases, bytes_, seven, out):
    """Inverse of :func:`split_7`; arguments as in :func:`merge_8`, ``n_items``: in the plane, ``seven``:
    uint8[n + 64], scratch."""
    for i in range(0, n_items, 64):
        unpack_7(data, at + (i >> 3) * 7, seven, i)
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        start = np.int64(bases[s]) + first_head - 1
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                k += merge_7_64(seven, k, symbols, place + i, out, first + i, start)
            continue
        for i in range(0, count, 64):
            k += expand_8(seven, k, symbols, place + i, 255, bytes_, i)
        origin = U16(start & 511)
        some, result = subarray(symbols, place, count), subarray(out, first, count)
        for i in range(count):
            symbol = U16(some[i])
            tail = U16(bytes_[i])
            head = U16(U16(symbol + origin) << U16(6)) & U16(0x7FC0)
            value = head | (tail & U16(0x3F)) | U16(U16(tail << U16(9)) & U16(0x8000))
            result[i] = value if symbol else U16(0)


@kernel
def split_23(values, symbols, n, stream_len, seven, out, at):
    """16 and 7 bits for every value that is not zero; arguments as in :func:`split_7`."""
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                k += split_23_64(values, first + i, symbols, place + i, out, at + 2 * k, seven, k)
            continue
        for i in range(count):
            if symbols[place + i]:
                bits = U32(values[first + i])
                tail = U32((bits & U32(0x3FFFFF)) | ((bits >> U32(9)) & U32(0x400000)))
                store_u16(out, at + 2 * k, U16(tail >> U32(7)))
                seven[k] = U8(tail & U32(127))
                k += 1
    return _pack(seven, k, out, at + 2 * k)


@kernel
def merge_23(data, at, n_items, symbols, n, stream_len, first_head, bases, seven, out):
    """Inverse of :func:`split_23`; arguments as in :func:`merge_7`, ``out``: uint32[n]."""
    for i in range(0, n_items, 64):
        unpack_7(data, at + 2 * n_items + (i >> 3) * 7, seven, i)
    k = np.int64(0)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        count = min(stream_len, n - first)
        start = np.int64(bases[s]) + first_head - 1
        if HAS_AVX512 and count & 63 == 0:
            for i in range(0, count, 64):
                k += merge_23_64(data, at + 2 * k, seven, k, symbols, place + i, out, first + i, start)
            continue
        for i in range(count):
            symbol = U32(symbols[place + i])
            value = U32(0)
            if symbol:
                tail = U32(U32(U32(load_u16(data, at + 2 * k)) << U32(7)) | U32(seven[k]))
                head = U32(U32(symbol + U32(start & 511)) << U32(22)) & U32(0x7FC00000)
                value = head | (tail & U32(0x3FFFFF)) | U32(U32(tail << U32(9)) & U32(0x80000000))
                k += 1
            out[first + i] = value
