"""Sub-streams: symbols to bits. :mod:`decode_streams` is the way back.

Symbols lie in a scratch array one sub-stream after another at a stride of ``stream_len + STREAM_PAD`` bytes, because
the decoder writes eight symbols at a time and may write past the end of a sub-stream.
"""

from __future__ import annotations

import numpy as np

from ..core.checksum import checksum
from ..core.intrinsics import HAS_AVX512
from ..core.jit import kernel
from ..core.scalar import U8, U32, U64
from ..core.unaligned import load_u64, prefetch, store_u64, subarray, width_of
from .prefix_code import NO_CODE

if HAS_AVX512:
    from .streams_avx512 import encode_64

__all__ = ["CHUNK_BYTES", "STREAM_PAD", "checksum", "encode_streams"]

STREAM_PAD = 64  #: bytes between sub-streams in the symbol scratch
PART = 256  #: symbols looked up before any is written
OCTETS = 3 * 64  #: bytes that :func:`streams_avx512.encode_64` writes
CHUNK_BYTES = 512 + PART // 64 * OCTETS  #: scratch of :func:`encode_streams`: tables, a part's codes


@kernel
def is_run(symbols, start, n, symbol):
    """Return whether ``symbols[start : start + n]`` are all ``symbol``."""
    if symbols[start] != symbol or symbols[start + n - 1] != symbol:
        return False
    some = subarray(symbols, start, n)
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
def _four(table, a, b, c, d):
    """The codes of four symbols, one behind the other, and their length, which is more than 56 if one has no code."""
    low, six, eight = U64(255), U64(63), U64(8)
    e0, e1 = U64(table[a]), U64(table[b])
    # An entry is code << 8 | length: sums of entries have the sum of the lengths in their low bytes.
    length = (e0 + e1) & low
    first = (e0 >> eight) | ((e1 >> eight) << (e0 & six))
    e2, e3 = U64(table[c]), U64(table[d])
    second = (e2 >> eight) | ((e3 >> eight) << (e2 & six))
    return first | (second << (length & six)), length + ((e2 + e3) & low)


@kernel
def _encode_each(
    symbols, place, values, first, n, table, escape_code, escape_length, head_bits, head_shift, window, filled, out, at
):
    """Append the codes of ``n`` symbols one by one. Returns (window, filled, at) as :func:`_encode_one` does."""
    for k in range(n):
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
            break
    return window, filled, at


@kernel
def _encode_some(
    symbols, place, values, first, n, table, escape_code, escape_length, head_bits, head_shift, window, filled, out, at
):
    """Append the codes of ``n`` symbols. Returns (window, filled, at) as :func:`_encode_one` does."""
    six = U64(63)
    for k in range(0, n, 8):
        length, joined = U64(NO_CODE), U64(0)
        if k + 8 <= n:
            eight = subarray(symbols, place + k, 8)
            low_codes, low_length = _four(table, eight[0], eight[1], eight[2], eight[3])
            codes, length = _four(table, eight[4], eight[5], eight[6], eight[7])
            joined = window | ((low_codes | (codes << (low_length & six))) << (filled & six))
            length += low_length
            # Stored first, to be written over if it cannot be used: to keep all eight until then takes more registers
            # than there are.
            store_u64(out, at, joined)
        if length <= U64(56):
            filled += length
            at += np.int64(filled >> U64(3))
            window = joined >> (filled & U64(56))
            filled &= U64(7)
        else:
            window, filled, at = _encode_each(
                symbols,
                place + k,
                values,
                first + k,
                min(n - k, 8),
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
                break
    return window, filled, at


@kernel
def _byte_tables(table, chunk):
    """The tables of :func:`streams_avx512.encode_64` from that of :func:`prefix_code.encode_table`."""
    for symbol in range(256):
        entry = U32(table[symbol])
        length = min(U32(entry & U32(255)), U32(15))
        chunk[symbol] = U8(entry >> U32(8))
        chunk[256 + symbol] = U8(U32(entry >> U32(16)) | U32(length << U32(4)))


@kernel
def _append_octets(chunk, n_groups, window, out, at):
    """Write what :func:`streams_avx512.encode_64` has made of some groups; return what is in the last, unfinished
    byte."""
    for begin in range(512, 512 + n_groups * OCTETS, OCTETS):
        for k in range(begin, begin + 64, 8):
            window |= load_u64(chunk, k)
            store_u64(out, at + np.int64(load_u64(chunk, k + 64)), window)
            window >>= load_u64(chunk, k + 128)
    return window


@kernel
def _fetch_lines(upcoming, begin, n_bytes, apart, out, ahead):
    """Have some of what comes next fetched, lines as far apart as this, and about the room for what will be made of
    it."""
    for line in range(begin + apart - 64, begin + n_bytes, apart):
        prefetch(upcoming, line)
    for line in range(begin, begin + n_bytes, 64):
        prefetch(out, ahead + line * 3 // 4)


@kernel
def encode_streams(
    symbols,
    values,
    n,
    stream_len,
    table,
    escape_code,
    escape_length,
    head_bits,
    head_shift,
    run_symbol,
    chunk,
    out,
    at,
    stream_bytes,
    upcoming,
    apart,
):
    """Write the codes of a block's symbols, sub-stream by sub-stream.

    ``symbols``: uint8, strided as above; ``values``: uintW[n] (read at escapes only); ``table``: uint32[256] of
    :func:`prefix_code.encode_table`; ``chunk``: uint8[CHUNK_BYTES], scratch; ``out``: uint8, room for
    ``n * 23 / 8 + 8`` bytes at ``at``; ``stream_bytes``: uint32[n_streams], result; ``upcoming``: values that will be
    wanted next, of which lines ``apart`` bytes apart (64: all) are fetched meanwhile, as is the room for what will be
    made of them. Returns the position after the last
    byte, or -1 where a symbol has no code and the codebook no escape.
    """
    width = width_of(upcoming) >> 3
    if HAS_AVX512:
        _byte_tables(table, chunk)
    ahead = at + n // 3  # about where the next block's bytes will lie
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        count = min(stream_len, n - first)
        place = s * (stream_len + STREAM_PAD)
        if is_run(symbols, place, count, run_symbol):
            stream_bytes[s] = 0
            _fetch_lines(upcoming, first * width, count * width, apart, out, ahead)
            continue
        begin = at
        window = U64(0)
        filled = U64(0)
        for begin_part in range(0, count, PART):
            n_part = min(PART, count - begin_part)
            done = np.int64(0)
            while done < n_part:
                n_groups = np.int64(0)
                if HAS_AVX512:
                    # Groups first and then all appending: what was just stored as a vector is slow to read in pieces.
                    bits = np.int64(filled)
                    while done + 64 * n_groups + 64 <= n_part:
                        i = begin_part + done + 64 * n_groups
                        # A few lines at a time: more at once would have to wait for each other.
                        _fetch_lines(upcoming, (first + i) * width, 64 * width, apart, out, ahead)
                        more = encode_64(chunk, 0, symbols, place + i, chunk, 512 + OCTETS * n_groups, bits)
                        if more < 0:
                            break
                        bits += more
                        n_groups += 1
                    window = _append_octets(chunk, n_groups, window, out, at)
                    at += bits >> 3
                    filled = U64(bits & 7)
                    done += 64 * n_groups
                    if done == n_part:
                        break
                else:
                    _fetch_lines(upcoming, (first + begin_part) * width, n_part * width, apart, out, ahead)
                i = begin_part + done
                some = min(n_part - done, 64) if HAS_AVX512 else n_part
                window, filled, at = _encode_some(
                    symbols,
                    place + i,
                    values,
                    first + i,
                    some,
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
                done += some
        if filled:
            at += 1
        stream_bytes[s] = at - begin
    return at
