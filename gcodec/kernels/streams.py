"""Sub-streams: symbols to bits and back, and the checksum over what was written.

Symbols lie in a scratch array one sub-stream after another at a stride of ``stream + STREAM_PAD`` bytes, because the
decoder writes eight symbols at a time and may write past the end of a sub-stream.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .memory import load_u32, load_u64, store_u64, view
from .prefix_code import ESCAPE, NO_CODE
from .scalar import U8, U64, word_multiplier

STREAM_PAD = 64  #: bytes between sub-streams in the symbol scratch


@kernel
def checksum(data, start, n_words, hole, seed):
    """Checksum of docs/format.md section 3 over ``n_words`` 32-bit words of ``data`` (uint8) from byte ``start``.

    Words ``hole`` and ``hole + 1`` count as zero (the checksum field itself); ``hole`` < 0 for none.
    """
    total = U64(seed)
    for i in range(n_words):
        total += U64(load_u32(data, start + 4 * i)) * U64(word_multiplier(i))
    if hole >= 0:
        for i in range(hole, hole + 2):
            total -= U64(load_u32(data, start + 4 * i)) * U64(word_multiplier(i))
    return total


@kernel
def is_run(symbols, start, n, symbol):
    """Whether ``symbols[start : start + n]`` are all ``symbol``."""
    if symbols[start] != symbol or symbols[start + n - 1] != symbol:
        return False
    some = view(symbols, start, n)
    different = U8(0)
    for i in range(n):
        different |= U8(some[i] ^ U8(symbol))
    return different == 0


@kernel
def _encode_one(symbols, i, value, table, escape_code, escape_length, head_bits, head_shift, window, filled, out, at):
    """Append the code of ``symbols[i]``, an escape's head included. Returns (window, filled, at), at = -1 where
    there is no code."""
    entry = U64(table[symbols[i]])
    length = entry & U64(255)
    code = entry >> U64(8)
    if length == U64(NO_CODE):
        if escape_length == 0:
            return window, filled, -1
        head = (U64(value) >> U64(head_shift)) & U64((1 << head_bits) - 1)
        code = U64(escape_code) | (head << U64(escape_length))
        length = U64(escape_length + head_bits)
    window |= code << filled
    filled += length
    store_u64(out, at, window)
    at += np.int64(filled >> U64(3))
    return window >> (filled & U64(56)), filled & U64(7), at


@kernel
def encode_streams(
    symbols,
    values,
    n,
    stream,
    table,
    escape_code,
    escape_length,
    head_bits,
    head_shift,
    run_symbol,
    out,
    at,
    stream_bytes,
):
    """Write the codes of a block's symbols, sub-stream by sub-stream.

    ``symbols``: uint8, strided as above; ``values``: uintW[n] (read at escapes only); ``table``: uint32[256] of
    :func:`prefix_code.encode_table`; ``out``: uint8, room for ``n * 23 / 8 + 8`` bytes at ``at``; ``stream_bytes``:
    uint32[n_streams], result. Returns the position after the last byte, or -1 where a symbol has no code and the
    codebook no escape.
    """
    low, six = U64(255), U64(63)
    for s in range((n + stream - 1) // stream):
        first = s * stream
        count = min(stream, n - first)
        place = s * (stream + STREAM_PAD)
        if is_run(symbols, place, count, run_symbol):
            stream_bytes[s] = 0
            continue
        begin = at
        window = U64(0)
        filled = U64(0)
        for group in range(count >> 3):
            i = place + 8 * group
            eight = load_u64(symbols, i)
            e0, e1 = U64(table[eight & low]), U64(table[(eight >> U64(8)) & low])
            e2, e3 = U64(table[(eight >> U64(16)) & low]), U64(table[(eight >> U64(24)) & low])
            e4, e5 = U64(table[(eight >> U64(32)) & low]), U64(table[(eight >> U64(40)) & low])
            e6, e7 = U64(table[(eight >> U64(48)) & low]), U64(table[eight >> U64(56)])
            # An entry is code << 8 | length: sums of entries have the sum of the lengths in their low bytes.
            l01, l23, l45, l67 = e0 + e1, e2 + e3, e4 + e5, e6 + e7
            length = (l01 & low) + (l23 & low) + (l45 & low) + (l67 & low)
            if length <= U64(56):
                c01 = (e0 >> U64(8)) | ((e1 >> U64(8)) << (e0 & six))
                c23 = (e2 >> U64(8)) | ((e3 >> U64(8)) << (e2 & six))
                c45 = (e4 >> U64(8)) | ((e5 >> U64(8)) << (e4 & six))
                c67 = (e6 >> U64(8)) | ((e7 >> U64(8)) << (e6 & six))
                c03 = c01 | (c23 << (l01 & six))
                c47 = c45 | (c67 << (l45 & six))
                window |= (c03 | (c47 << ((l01 + l23) & six))) << filled
                filled += length
                store_u64(out, at, window)
                at += np.int64(filled >> U64(3))
                window >>= filled & U64(56)
                filled &= U64(7)
            else:
                for k in range(8):
                    window, filled, at = _encode_one(
                        symbols,
                        i + k,
                        values[first + 8 * group + k],
                        table,
                        escape_code,
                        escape_length,
                        head_bits,
                        head_shift,
                        window,
                        filled,
                        out,
                        at,
                    )
                    if at < 0:
                        return -1
        for k in range(count & ~7, count):
            window, filled, at = _encode_one(
                symbols,
                place + k,
                values[first + k],
                table,
                escape_code,
                escape_length,
                head_bits,
                head_shift,
                window,
                filled,
                out,
                at,
            )
            if at < 0:
                return -1
        if filled:
            at += 1
        stream_bytes[s] = at - begin
    return at


@kernel
def _four_lanes(data, symbols, table, rounds, lanes):
    """The hot loop: ``rounds`` table look-ups in each of four lanes, without a branch.

    ``lanes``: int64[2, 4], place in ``symbols`` and bit in ``data`` of each lane, updated. An escape's entry is 0
    bits long: its lane stands still until the caller has dealt with it.
    """
    a0, a1, a2, a3 = lanes[0, 0], lanes[0, 1], lanes[0, 2], lanes[0, 3]
    b0, b1, b2, b3 = lanes[1, 0], lanes[1, 1], lanes[1, 2], lanes[1, 3]
    mask, seven, byte, top = U64(4095), U64(7), U64(8), U64(56)
    for _ in range(rounds):
        e0 = table[(load_u64(data, b0 >> 3) >> (U64(b0) & seven)) & mask]
        e1 = table[(load_u64(data, b1 >> 3) >> (U64(b1) & seven)) & mask]
        e2 = table[(load_u64(data, b2 >> 3) >> (U64(b2) & seven)) & mask]
        e3 = table[(load_u64(data, b3 >> 3) >> (U64(b3) & seven)) & mask]
        store_u64(symbols, a0, e0 >> byte)
        store_u64(symbols, a1, e1 >> byte)
        store_u64(symbols, a2, e2 >> byte)
        store_u64(symbols, a3, e3 >> byte)
        a0 += np.int64(e0 >> top)
        a1 += np.int64(e1 >> top)
        a2 += np.int64(e2 >> top)
        a3 += np.int64(e3 >> top)
        b0 += np.int64(e0 & U64(255))
        b1 += np.int64(e1 & U64(255))
        b2 += np.int64(e2 & U64(255))
        b3 += np.int64(e3 & U64(255))
    lanes[0, 0], lanes[0, 1], lanes[0, 2], lanes[0, 3] = a0, a1, a2, a3
    lanes[1, 0], lanes[1, 1], lanes[1, 2], lanes[1, 3] = b0, b1, b2, b3


@kernel
def decode_streams(
    data,
    start,
    stream_bytes,
    n,
    stream,
    run_symbol,
    table,
    lengths,
    escape_length,
    head_bits,
    lanes,
    symbols,
    escapes,
    escape_heads,
):
    """Decode a block's sub-streams, four at a time for instruction-level parallelism.

    ``data``: uint8, readable for ``codec.margin`` bytes after every start; ``start``: int64[n_streams], byte positions;
    ``stream_bytes``: uint32[n_streams]; ``table``: uint64[4096] and ``lengths``: uint8[256] of the codebook; ``lanes``:
    int64[2, 4], scratch; ``symbols``: uint8, strided, result; ``escapes``: int64[n] and ``escape_heads``: uint16[n],
    results: where in ``symbols`` the escapes lie, and their heads. Returns the number of escapes, or -1 where a
    sub-stream does not end in its last byte. Every symbol is written unless the status is -1.

    A lane may run up to 50 symbols past its sub-stream's end, into the padding, before it is called back: the
    lengths of what it has read too much say where the end was.
    """
    n_streams = (n + stream - 1) // stream
    stride = stream + STREAM_PAD
    parked = n_streams * stride
    n_escapes = 0
    for quad in range(0, n_streams, 4):
        active = 0
        for q in range(4):
            s = quad + q
            lanes[0, q], lanes[1, q] = parked, start[quad] << 3
            if s >= n_streams:
                continue
            if stream_bytes[s]:
                lanes[0, q], lanes[1, q] = s * stride, start[s] << 3
                active |= 1 << q
            else:
                for i in range(s * stride, s * stride + min(stream, n - s * stream)):
                    symbols[i] = run_symbol
        while active:
            rounds = np.int64(16)  # typed: a literal would compile the hot loop twice
            for q in range(4):
                if (active >> q) & 1:
                    s = quad + q
                    rounds = min(rounds, (s * stride + min(stream, n - s * stream) + 50 - lanes[0, q]) // 6)
            _four_lanes(data, symbols, table, rounds, lanes)
            for q in range(4):
                s = quad + q
                at, bit = lanes[0, q], lanes[1, q]
                if not (active >> q) & 1:
                    lanes[0, q], lanes[1, q] = parked, start[quad] << 3
                    continue
                end = s * stride + min(stream, n - s * stream)
                if at < end:
                    window = load_u64(data, bit >> 3) >> U64(bit & 7)
                    if table[window & U64(4095)] >> U64(56):
                        continue
                    symbols[at] = ESCAPE
                    escapes[n_escapes] = at
                    escape_heads[n_escapes] = (window >> U64(escape_length)) & U64((1 << head_bits) - 1)
                    n_escapes += 1
                    at += 1
                    bit += escape_length + head_bits
                    lanes[0, q], lanes[1, q] = at, bit
                if at >= end:
                    for i in range(end, at):
                        bit -= lengths[symbols[i]]
                    if (bit + 7) >> 3 != start[s] + np.int64(stream_bytes[s]):
                        return -1
                    active &= ~(1 << q)
                    lanes[0, q], lanes[1, q] = parked, start[quad] << 3
    return n_escapes
