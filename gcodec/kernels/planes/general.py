"""Planes of any width, one value at a time: what the faster layouts do not cover, and float64. See :mod:`whole_tail`
for the terms."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U64
from ..core.unaligned import load_u64, store_u64, width_of
from ..entropy.encode_streams import STREAM_PAD


@kernel
def split_general_plane(values, symbols, n, stream_len, tail_bits, mark_of, bit, shift, width, out, at):
    """Plane number ``bit`` of any width up to 56 bits. ``out`` has 8 bytes of margin. Returns the end."""
    window = U64(0)
    filled = U64(0)
    mask = U64((1 << width) - 1)
    rest = U64((1 << (tail_bits - 1)) - 1)
    sign = U64(width_of(values) - 1)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        for i in range(min(stream_len, n - first)):
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
def merge_general_plane(data, at, symbols, n, stream_len, mark_of, bit, shift, width, tail):
    """Inverse of :func:`split_general_plane`: ORs the plane's items into ``tail``: uint64[n]. ``data`` is readable 8
    bytes past the plane."""
    mask = U64((1 << width) - 1)
    position = U64(at) << U64(3)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        for i in range(min(stream_len, n - first)):
            symbol = symbols[place + i]
            own = U64((mark_of[symbol] >> bit) & 1)
            item = (load_u64(data, np.int64(position >> U64(3))) >> (position & U64(7))) & (mask * own)
            tail[first + i] |= item << U64(shift[symbol])
            position += U64(width) * own


@kernel
def merge_general_values(tail, symbols, n, stream_len, heads, bases, head_shift, head_mask, tail_bits, out):
    """Heads, signs and tails into values. ``tail``: uint64[n], None where ``tail_bits`` is 0; ``heads``:
    uint16[256], relative; ``out``: uintW[n]."""
    rest = U64((1 << (tail_bits - 1)) - 1) if tail_bits else U64(0)
    sign = U64(width_of(out) - 1)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        place = s * (stream_len + STREAM_PAD)
        for i in range(min(stream_len, n - first)):
            symbol = symbols[place + i]
            value = ((U64(heads[symbol]) + U64(bases[s])) & U64(head_mask)) << U64(head_shift)
            if tail is not None:
                bits = U64(tail[first + i])
                value |= (bits & rest) | ((bits >> U64(tail_bits - 1)) << sign)
            out[first + i] = value if symbol else U64(0)
