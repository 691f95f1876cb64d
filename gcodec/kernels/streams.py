"""Sub-streams: symbols to bits and back, and the checksum over what was written.

Symbols lie in a scratch array one sub-stream after another at a stride of ``stream + STREAM_PAD`` bytes, because the decoder
writes eight symbols at a time and may write past the end of a sub-stream.
"""

from __future__ import annotations

import numpy as np

from .jit import kernel
from .memory import load_u32, load_u64, store_u64
from .prefix_code import ESCAPE
from .scalar import U32, U64, word_multiplier

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
    different = 0
    for i in range(start, start + n):
        different |= symbols[i] ^ symbol
    return different == 0


@kernel
def encode_streams(symbols, values, n, stream, table, escape_code, escape_length, head_bits, head_shift, run_symbol,
                   out, at, stream_bytes):
    """Write the codes of a block's symbols, sub-stream by sub-stream.

    ``symbols``: uint8, strided as above; ``values``: uintW[n] (read at escapes only); ``table``: uint32[256] of
    :func:`encode_table`; ``out``: uint8, room for ``n * 23 / 8 + 8`` bytes at ``at``; ``stream_bytes``:
    uint32[n_streams], result. Returns the position after the last byte, or -1 where a symbol has no code and the codebook no
    escape.
    """
    n_streams = (n + stream - 1) // stream
    for s in range(n_streams):
        first = s * stream
        count = min(stream, n - first)
        i = s * (stream + STREAM_PAD)
        if is_run(symbols, i, count, run_symbol):
            stream_bytes[s] = 0
            continue
        begin = at
        end = i + count
        offset = first - i
        window = U64(0)
        filled = U64(0)
        while i < end:
            if i + 4 <= end:
                e0, e1 = U64(table[symbols[i]]), U64(table[symbols[i + 1]])
                e2, e3 = U64(table[symbols[i + 2]]), U64(table[symbols[i + 3]])
                l0, l1, l2 = e0 >> U64(24), e1 >> U64(24), e2 >> U64(24)
                low = l0 + l1
                high = l2 + (e3 >> U64(24))
                if low + high < U64(64):
                    mask = U64(0xFFFFFF)
                    pair = (e0 & mask) | ((e1 & mask) << l0)
                    pair |= ((e2 & mask) | ((e3 & mask) << l2)) << low
                    window |= pair << filled
                    filled += low + high
                    store_u64(out, at, window)
                    at += np.int64(filled >> U64(3))
                    window = (window >> (filled & U64(56))) if filled < U64(64) else U64(0)
                    filled &= U64(7)
                    i += 4
                    continue
            entry = U64(table[symbols[i]])
            length = entry >> U64(24)
            code = entry & U64(0xFFFFFF)
            if length == U64(64):
                if escape_length == 0:
                    return -1
                head = (U64(values[i + offset]) >> U64(head_shift)) & U64((1 << head_bits) - 1)
                code = U64(escape_code) | (head << U64(escape_length))
                length = U64(escape_length + head_bits)
            window |= code << filled
            filled += length
            store_u64(out, at, window)
            at += np.int64(filled >> U64(3))
            window >>= filled & U64(56)
            filled &= U64(7)
            i += 1
        if filled:
            at += 1
        stream_bytes[s] = at - begin
    return at


@kernel
def _open(symbols, s, last, n, stream, start, stream_bytes, run_symbol):
    """The first sub-stream from ``s`` on, below ``last``, that has bytes; run sub-streams on the way are filled in.

    Returns (its number, or ``last``; position of its first bit; first and past-the-end place in ``symbols``).
    """
    stride = stream + STREAM_PAD
    while s < last and stream_bytes[s] == 0:
        for i in range(s * stride, s * stride + min(stream, n - s * stream)):
            symbols[i] = run_symbol
        s += 1
    bit = np.int64(start[min(s, last - 1)]) << 3
    return s, bit, s * stride, s * stride + min(stream, n - s * stream)


@kernel
def _turn(data, s, last, bit, at, end, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
          head_bits, symbols, escapes, escape_heads, n_escapes):
    """The rare step of a lane: an escape, or the last symbols of a sub-stream and the way to the next one.

    Returns the lane's new (s, bit, at, end) and the number of escapes, which is -1 where the sub-stream does not end in
    its last byte; then s is ``last``.
    """
    window = load_u64(data, bit >> 3) >> U64(bit & 7)
    entry = table[window & U64(4095)]
    number = np.int64(entry >> U64(56))
    if number == 0:
        symbols[at] = ESCAPE
        escapes[n_escapes] = at
        escape_heads[n_escapes] = (window >> U64(escape_length)) & U64((1 << head_bits) - 1)
        n_escapes += 1
        bit += escape_length + head_bits
        at += 1
    else:
        number = min(number, end - at)
        for k in range(number):
            symbol = (entry >> U64(8 + 8 * k)) & U64(255)
            symbols[at + k] = symbol
            bit += lengths[symbol]
        at += number
    if at < end:
        return s, bit, at, end, n_escapes
    if (bit + 7) >> 3 != start[s] + stream_bytes[s]:
        return last, bit, at, end, -1
    s, bit, at, end = _open(symbols, s + 1, last, n, stream, start, stream_bytes, run_symbol)
    return s, bit, at, end, n_escapes


@kernel
def _drain(data, s, last, bit, at, end, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
           head_bits, symbols, escapes, escape_heads, n_escapes):
    """One lane alone, to the end of its sub-streams. Returns the number of escapes, or -1."""
    while s < last and n_escapes >= 0:
        entry = table[(load_u64(data, bit >> 3) >> U64(bit & 7)) & U64(4095)]
        number = np.int64(entry >> U64(56))
        if number == 0 or at + number >= end:
            s, bit, at, end, n_escapes = _turn(
                data, s, last, bit, at, end, n, stream, start, stream_bytes, run_symbol, table, lengths,
                escape_length, head_bits, symbols, escapes, escape_heads, n_escapes)
        else:
            store_u64(symbols, at, entry >> U64(8))
            at += number
            bit += np.int64(entry & U64(255))
    return n_escapes


@kernel
def decode_streams(data, start, stream_bytes, n, stream, run_symbol, table, lengths, escape_length, head_bits,
                   symbols, escapes, escape_heads):
    """Decode a block's sub-streams in four lanes, a quarter of the sub-streams each, for instruction-level parallelism.

    ``data``: uint8, readable for ``stream * 23 / 8 + 16`` bytes after every start; ``start``: int64[n_streams], byte
    positions; ``stream_bytes``: uint32[n_streams]; ``table``: uint64[4096] and ``lengths``: uint8[256] of the
    codebook; ``symbols``: uint8, strided, result; ``escapes``: int64[n] and ``escape_heads``: uint16[n], results: where in
    ``symbols`` the escapes lie, and their heads. Returns the number of escapes, or -1 where a sub-stream does not end
    in its last byte. Every symbol of ``symbols`` is written unless the status is -1.
    """
    n_streams = (n + stream - 1) // stream
    quarter = (n_streams + 3) // 4
    l0, l1, l2 = min(quarter, n_streams), min(2 * quarter, n_streams), min(3 * quarter, n_streams)
    l3 = n_streams
    s0, b0, a0, z0 = _open(symbols, 0, l0, n, stream, start, stream_bytes, run_symbol)
    s1, b1, a1, z1 = _open(symbols, l0, l1, n, stream, start, stream_bytes, run_symbol)
    s2, b2, a2, z2 = _open(symbols, l1, l2, n, stream, start, stream_bytes, run_symbol)
    s3, b3, a3, z3 = _open(symbols, l2, l3, n, stream, start, stream_bytes, run_symbol)
    x = 0
    mask, seven, top, byte = U64(4095), U64(7), U64(56), U64(8)
    while s0 < l0 and s1 < l1 and s2 < l2 and s3 < l3:
        e0 = table[(load_u64(data, b0 >> 3) >> (U64(b0) & seven)) & mask]
        e1 = table[(load_u64(data, b1 >> 3) >> (U64(b1) & seven)) & mask]
        e2 = table[(load_u64(data, b2 >> 3) >> (U64(b2) & seven)) & mask]
        e3 = table[(load_u64(data, b3 >> 3) >> (U64(b3) & seven)) & mask]
        c0, c1 = np.int64(e0 >> top), np.int64(e1 >> top)
        c2, c3 = np.int64(e2 >> top), np.int64(e3 >> top)
        if c0 == 0 or a0 + c0 >= z0:
            s0, b0, a0, z0, x = _turn(data, s0, l0, b0, a0, z0, n, stream, start, stream_bytes, run_symbol, table,
                                      lengths, escape_length, head_bits, symbols, escapes, escape_heads, x)
            if x < 0:
                return x
        else:
            store_u64(symbols, a0, e0 >> byte)
            a0 += c0
            b0 += np.int64(e0 & U64(255))
        if c1 == 0 or a1 + c1 >= z1:
            s1, b1, a1, z1, x = _turn(data, s1, l1, b1, a1, z1, n, stream, start, stream_bytes, run_symbol, table,
                                      lengths, escape_length, head_bits, symbols, escapes, escape_heads, x)
            if x < 0:
                return x
        else:
            store_u64(symbols, a1, e1 >> byte)
            a1 += c1
            b1 += np.int64(e1 & U64(255))
        if c2 == 0 or a2 + c2 >= z2:
            s2, b2, a2, z2, x = _turn(data, s2, l2, b2, a2, z2, n, stream, start, stream_bytes, run_symbol, table,
                                      lengths, escape_length, head_bits, symbols, escapes, escape_heads, x)
            if x < 0:
                return x
        else:
            store_u64(symbols, a2, e2 >> byte)
            a2 += c2
            b2 += np.int64(e2 & U64(255))
        if c3 == 0 or a3 + c3 >= z3:
            s3, b3, a3, z3, x = _turn(data, s3, l3, b3, a3, z3, n, stream, start, stream_bytes, run_symbol, table,
                                      lengths, escape_length, head_bits, symbols, escapes, escape_heads, x)
            if x < 0:
                return x
        else:
            store_u64(symbols, a3, e3 >> byte)
            a3 += c3
            b3 += np.int64(e3 & U64(255))
    x = _drain(data, s0, l0, b0, a0, z0, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
               head_bits, symbols, escapes, escape_heads, x)
    x = _drain(data, s1, l1, b1, a1, z1, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
               head_bits, symbols, escapes, escape_heads, x)
    x = _drain(data, s2, l2, b2, a2, z2, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
               head_bits, symbols, escapes, escape_heads, x)
    return _drain(data, s3, l3, b3, a3, z3, n, stream, start, stream_bytes, run_symbol, table, lengths, escape_length,
                  head_bits, symbols, escapes, escape_heads, x)
