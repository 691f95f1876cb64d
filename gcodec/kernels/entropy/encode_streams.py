"""Sub-streams: symbols to bits. :mod:`decode_streams` is the way back.

Symbols lie in a scratch array one sub-stream after another at a stride of ``stream_len + STREAM_PAD`` bytes, because
the decoder writes eight symbols at a time and may write past the end of a sub-stream.

    symbols   |<- stream_len ->|<- STREAM_PAD ->|<- stream_len ->|<- STREAM_PAD ->| ...
               sub-stream 0                      sub-stream 1

Codes follow each other from the lowest bit of each byte up; every sub-stream begins with a byte of its own:

    codes a (3 bits), b (4), c (5), d (2)       byte 0: cbbbbaaa     byte 1: 00ddcccc
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core.checksum import checksum
from ..core.intrinsics import HAS_AVX2, HAS_AVX512
from ..core.jit import inlined, kernel
from ..core.scalar import U8, U32, U64, head_of
from ..core.unaligned import load_u64, prefetch, store_u64, subarray, width_of
from .prefix_code import ESCAPE, NO_CODE

if HAS_AVX2:
    from .streams_vector import NO_CODE_HIGH, encode_64, encode_64_long

__all__ = [
    "CHUNK_BYTES",
    "STREAM_PAD",
    "EncodeBuffers",
    "NextValues",
    "PrefixEncoder",
    "checksum",
    "encode_buffers",
    "encode_streams",
    "is_run",
    "prefix_encoder",
]

STREAM_PAD = 64  #: bytes between sub-streams in the symbol scratch
PART = 256  #: symbols looked up before any is written
WORDS = 3 * 64  #: bytes that :func:`streams_vector.encode_64` writes, and ``encode_64_long`` twice
CHUNK_BYTES = 512 + PART // 64 * 2 * WORDS  #: scratch of :func:`encode_streams`: tables, a part's codes
MAX_JOINED_BITS = 56  #: bits that can be appended to a window that holds up to 7 and is stored as 64


class PrefixEncoder(NamedTuple):
    """A prefix code to encode with.

    Attributes:
        table: uint32[256] of :func:`prefix_code.encode_table`.
        escape_code: Code of the escape.
        escape_length: Bits of that code; 0: there is no escape.
        head_bits: Bits of the head that follows an escape.
        head_shift: Where that head lies in its value.
        run_symbol: Symbol of the sub-streams that are left empty.
    """

    table: np.ndarray
    escape_code: Any
    escape_length: Any
    head_bits: Any
    head_shift: Any
    run_symbol: Any


class EncodeBuffers(NamedTuple):
    """Memory that :func:`encode_streams` works on.

    Attributes:
        symbols: uint8, strided, to be encoded.
        stream_bytes: uint32[n_streams], result.
        chunk: uint8[CHUNK_BYTES], scratch.
    """

    symbols: np.ndarray
    stream_bytes: np.ndarray
    chunk: np.ndarray


class NextValues(NamedTuple):
    """Values that come after the block that is encoded: their cache lines are fetched meanwhile, a few at a time.

    Attributes:
        values: uintW; empty after the last block.
        line_step: Bytes from one fetched line to the next; 64: all are fetched.
    """

    values: np.ndarray
    line_step: Any


class _BitWriter(NamedTuple):
    """A place to append codes, and the bits before it that do not fill a byte yet.

        out      ... bbbbbaaa cccccccc          bytes before ``at``
        window                         00000ddd    ``n_bits`` = 3: the lowest bits of the byte at ``at``

    Attributes:
        window: uint64, the bits.
        n_bits: uint64, how many, below 8.
        at: The byte they belong to; -1 after a symbol without a code.
    """

    window: Any
    n_bits: Any
    at: Any


@inlined
def prefix_encoder(books, c, float_bits):
    """Return the :class:`PrefixEncoder` of codebook ``c`` of a frame's."""
    return PrefixEncoder(
        books.table[c],
        books.escape_code[c],
        np.int64(books.lengths[c, ESCAPE]),
        np.int64(float_bits.head_bits),
        np.int64(float_bits.head_shift),
        np.int64(books.run_symbol[c]),
    )


@inlined
def encode_buffers(scratch):
    """Return the :class:`EncodeBuffers` among a thread's scratch, of whatever kind of blocks."""
    return EncodeBuffers(scratch.symbols, scratch.stream_bytes, scratch.chunk)


@kernel
def is_run(symbols, start, n, symbol):
    """Return whether ``symbols[start : start + n]`` are all ``symbol``."""
    if symbols[start] != symbol or symbols[start + n - 1] != symbol:
        return False
    stream = subarray(symbols, start, n)
    different = U8(0)
    for i in range(n):  # without a branch, so that it becomes a loop of vectors
        different |= U8(stream[i] ^ U8(symbol))
    return different == 0


@kernel
def _append_code(symbol, value, code, writer, out):
    """Append the code of one symbol, for an escape with the head of its value; return the writer after it.

    window               00000ddd            n_bits = 3
    code << n_bits    eeeee00000             5 bits, stored at once with the 56 bits above them
    """
    # An entry of the table, uint32 (prefix_code.encode_table), and what becomes of it:
    #
    #     bit          31 ... 20   19 ... 8       7 ... 0
    #     entry        0           code           length: 1 ... 12, or NO_CODE with a code of 0
    window, n_bits, at = writer
    entry = U64(code.table[symbol])
    length = entry & U64(255)
    bits = entry >> U64(8)
    if length == U64(NO_CODE):
        if code.escape_length == 0:
            return _BitWriter(window, n_bits, np.int64(-1))
        # An escape (docs/format.md section 7) is its code and the head as it is, whatever the reference:
        #
        #     bits     0 ... | hhhhhhhh | eeeee        head above, code of the escape below: at most 12 + 12 bits
        head = head_of(U64(value), code.head_shift, (1 << code.head_bits) - 1)
        bits = U64(code.escape_code) | (head << U64(code.escape_length))
        length = U64(code.escape_length + code.head_bits)
    # At most 7 + 24 bits are in the window now. All eight of its bytes are stored: those above the last code are zeros,
    # or what the next store writes over. So no byte is ever read back, and spare bits of a sub-stream's last byte are
    # zero, as section 7 wants them.
    window |= bits << n_bits
    n_bits += length
    store_u64(out, at, window)
    # n_bits = 8 * whole bytes + rest: `& 56` is eight times the whole bytes, which leave the window, `& 7` the rest.
    return _BitWriter(window >> (n_bits & U64(56)), n_bits & U64(7), at + np.int64(n_bits >> U64(3)))


@kernel
def _join_four(table, a, b, c, d):
    """Return the codes of four symbols, one behind the other, and their length, which is more than
    ``MAX_JOINED_BITS`` if one has no code."""
    # For symbols with codes, three of them here, lowest bit right:
    #
    #     first     0 ...                bbbb aaa        <- a at bit 0, b at bit len(a)
    #     second    0 ...                   d ccccc
    #     joined    0 ...     d ccccc bbbb aaa           at most 4 * 12 = 48 bits
    #
    # Shifts take the low six bits of an entry or a sum: with codes, these are the whole length (at most 48), and LLVM
    # need not ask whether an amount is beyond the width. The length of a symbol without a code is 64 there, which would
    # be a shift by 0: the bits are wrong then, but the length says so.
    low, six, eight = U64(255), U64(63), U64(8)
    e0, e1 = U64(table[a]), U64(table[b])
    # An entry is code << 8 | length: sums of entries have the sum of the lengths in their low bytes.
    # The low byte cannot carry into the code: two lengths are at most 2 * 64.
    length = (e0 + e1) & low
    first = (e0 >> eight) | ((e1 >> eight) << (e0 & six))
    e2, e3 = U64(table[c]), U64(table[d])
    second = (e2 >> eight) | ((e3 >> eight) << (e2 & six))
    return first | (second << (length & six)), length + ((e2 + e3) & low)


@kernel
def _append_singly(symbols, place, values, first, n, code, writer, out):
    """Append the codes of ``n`` symbols one by one; return the writer after them."""
    for k in range(n):
        writer = _append_code(symbols[place + k], values[first + k], code, writer, out)
        if writer.at < 0:
            break
    return writer


@kernel
def _append_codes(symbols, place, values, first, n, code, writer, out):
    """Append the codes of ``n`` symbols, eight at a time where they have at most 56 bits; return the writer after
    them.

    ``symbols[place]`` and ``values[first]`` are the first of them.
    """
    # Eight symbols at once, because one at a time waits for the sum of all lengths before it, symbol by symbol. Here
    # only the two halves of eight and the writer's place wait for each other; the eight look-ups do not.
    #
    #     window          wwwww                                   n_bits = 5
    #     low_codes            dd cccc bbbbb aaa                  low_length bits
    #     codes                                  hhh gg ffff e    length bits
    #     joined          hhh gg ffff e dd cccc bbbbb aaa wwwww   lowest bit right; stored as 64 bits
    #
    # Seven bits that wait and MAX_JOINED_BITS more are 63: they fit. Of more than these, the last have been cut off at
    # bit 64, so such eight are written again, singly; so are the last symbols, fewer than eight.
    six = U64(63)
    for k in range(0, n, 8):
        length, joined = U64(NO_CODE), U64(0)
        if k + 8 <= n:
            eight = subarray(symbols, place + k, 8)
            low_codes, low_length = _join_four(code.table, eight[0], eight[1], eight[2], eight[3])
            codes, length = _join_four(code.table, eight[4], eight[5], eight[6], eight[7])
            joined = writer.window | ((low_codes | (codes << (low_length & six))) << (writer.n_bits & six))
            length += low_length
            # Stored first, to be written over if it cannot be used: to keep all eight until then takes more registers
            # than there are.
            store_u64(out, writer.at, joined)
        if length <= U64(MAX_JOINED_BITS):
            n_bits = writer.n_bits + length
            at = writer.at + np.int64(n_bits >> U64(3))
            writer = _BitWriter(joined >> (n_bits & U64(56)), n_bits & U64(7), at)
        else:
            writer = _append_singly(symbols, place + k, values, first + k, min(n - k, 8), code, writer, out)
            if writer.at < 0:
                break
    return writer


@kernel
def _byte_tables(table, chunk):
    """Write the tables of :func:`streams_vector.encode_64` from that of :func:`prefix_code.encode_table`.

        table[symbol]          cccccccccccc llllllll     code << 8 | length
        chunk[symbol]          cccccccc                  low byte of length << 12 | code
        chunk[256 + symbol]    llllcccc                  its high byte; length 15: no code. Without AVX-512, the upper
                                                         four bits are inverted

    Returns:
        How many shuffles it takes to look up all symbols that have a code.
    """
    # Two tables of bytes, not one of 16 bits, because the vector look-ups (vpermi2b, pshufb) look up bytes. Codes have
    # 12 bits at most, so that code and length fit into 16, and 15 is a length that no code has.
    #
    # A look-up by pshufb gives 0 for symbols beyond those that it looks for. Inverted, the table says by 0 that a
    # symbol has no code, and those need not be looked for: the fewer symbols have codes, the fewer shuffles.
    inverted = U8(0) if HAS_AVX512 else U8(NO_CODE_HIGH)
    end = np.int64(0)
    for symbol in range(256):
        entry = U32(table[symbol])
        length = min(U32(entry & U32(255)), U32(15))
        chunk[symbol] = U8(entry >> U32(8)) if length < U32(15) else U8(0)
        chunk[256 + symbol] = U8(U8(U32(entry >> U32(16)) | U32(length << U32(4))) ^ inverted)
        if length < U32(15):
            end = symbol + 1
    return (end + 15) >> 4  # sixteen by one shuffle


@kernel
def _append_word(chunk, k, window, out, at):
    """Write the word of codes at byte ``k``; return what is in its last, unfinished byte.

    A word has up to 63 bits and is moved to where it begins in its first byte. That byte may hold the end of the word
    before, which is still in the window:

        window       00000ddd
        word      ...eeeee000   stored together at its byte, then shifted down by the bits of the whole bytes
    """
    # Three arrays of eight uint64 each lie behind one another in a group (streams_vector._store_words):
    #
    #     chunk[k]          codes of eight symbols, moved up by 0 ... 7 bits to where they begin in their first byte
    #     chunk[k + 64]     number of that byte, from `at` on
    #     chunk[k + 128]    8 * the bytes that are whole once these codes are in: by so much the window moves down
    window |= load_u64(chunk, k)
    store_u64(out, at + np.int64(load_u64(chunk, k + 64)), window)
    return window >> load_u64(chunk, k + 128)


@kernel
def _append_words(chunk, n_groups, window, out, at):
    """Write what :func:`streams_vector.encode_64` has made of some groups; return what is in the last, unfinished
    byte."""
    # The first 512 bytes of the scratch are the tables of _byte_tables. Word after word depends on the window alone, by
    # an OR and a shift: addresses and amounts are known beforehand.
    for begin in range(512, 512 + n_groups * WORDS, WORDS):
        for k in range(begin, begin + 64, 8):
            window = _append_word(chunk, k, window, out, at)
    return window


@kernel
def _append_short_words(chunk, n_groups, window, out, at):
    """Write what :func:`streams_vector.encode_64_long` has made of some groups, as :func:`_append_words` does."""
    for begin in range(512, 512 + n_groups * 2 * WORDS, 2 * WORDS):
        for k in range(begin, begin + 64, 8):
            # Of every eight symbols, the first four and then the others, which lie a whole set of words further on.
            window = _append_word(chunk, k, window, out, at)
            window = _append_word(chunk, k + WORDS, window, out, at)
    return window


@kernel
def _fetch_lines(following, begin, n_bytes):
    """Have cache lines of bytes ``begin ... begin + n_bytes`` of what comes next fetched, as far as there is any.

    Beyond an array's end there may be no memory: the processor looks for its page again for every line, which takes as
    long as coding its values. That is why the room for the result is not fetched either.
    """
    end = min(begin + n_bytes, len(following.values) * (width_of(following.values) >> 3))
    for line in range(begin + following.line_step - 64, end, following.line_step):
        prefetch(following.values, line)


@kernel
def encode_streams(values, stream_len, code, following, buffers, out, at):
    """Write the codes of a block's symbols, sub-stream by sub-stream.

    Args:
        values: uintW[n], the block; read at escapes only.
        stream_len: Values per sub-stream.
        code: The :class:`PrefixEncoder`.
        following: :class:`NextValues`.
        buffers: :class:`EncodeBuffers`, with the symbols of the block.
        out: uint8, with room for ``n * 24 / 8 + 8`` bytes at ``at``: 12 bits of an escape, and 12 of a head.

    Returns:
        The byte after the last, or -1 where a symbol has no code and the codebook no escape.
    """
    # Within a sub-stream (docs/format.md section 7) codes go out in three ways, the quickest that can be used:
    #
    #     encode_64          64 symbols, in words of eight     where eight codes in a row have at most 56 bits
    #     encode_64_long     64 symbols, in words of four      where all have a code
    #     _append_codes      one by one, or in eights          escapes, ends of sub-streams, CPUs without AVX2
    n, symbols, chunk = len(values), buffers.symbols, buffers.chunk
    width = width_of(following.values) >> 3
    n_shuffles = np.int64(0)
    if HAS_AVX2:
        n_shuffles = _byte_tables(code.table, chunk)
    for s in range((n + stream_len - 1) // stream_len):
        first = s * stream_len
        count = min(stream_len, n - first)
        place = s * (stream_len + STREAM_PAD)
        if is_run(symbols, place, count, code.run_symbol):
            buffers.stream_bytes[s] = 0
            _fetch_lines(following, first * width, count * width)
            continue
        begin = at
        window = U64(0)
        n_bits = U64(0)
        for begin_part in range(0, count, PART):
            n_part = min(PART, count - begin_part)
            done = np.int64(0)
            # Tried anew in each part: a stretch of rare symbols does not slow down the rest of a long sub-stream.
            is_long = False  # codes of more than 7 bits on average, of which eight do not go into a word
            while done < n_part:
                n_groups = np.int64(0)
                if HAS_AVX2:
                    # Groups first and then all appending: what was just stored as a vector is slow to read in pieces.
                    # `bits` counts from bit 0 of the byte at `at`, so that places of words need nothing else to be
                    # known.
                    bits = np.int64(n_bits)
                    while done + 64 * n_groups + 64 <= n_part:
                        i = begin_part + done + 64 * n_groups
                        # A few lines at a time: more at once would have to wait for each other.
                        _fetch_lines(following, (first + i) * width, 64 * width)
                        if is_long:
                            words = 512 + 2 * WORDS * n_groups
                            more = encode_64_long(chunk, 0, symbols, place + i, chunk, words, bits, n_shuffles)
                        else:
                            words = 512 + WORDS * n_groups
                            more = encode_64(chunk, 0, symbols, place + i, chunk, words, bits, n_shuffles)
                        # The group is left as it is, and so is `bits`: what was put into the scratch for it is not
                        # used.
                        if more < 0:
                            break
                        bits += more
                        n_groups += 1
                    if is_long:
                        window = _append_short_words(chunk, n_groups, window, out, at)
                    else:
                        window = _append_words(chunk, n_groups, window, out, at)
                    at += bits >> 3
                    n_bits = U64(bits & 7)
                    done += 64 * n_groups
                    if done == n_part:
                        break
                    if not is_long and done + 64 <= n_part:
                        is_long = True
                        continue
                else:
                    _fetch_lines(following, (first + begin_part) * width, n_part * width)
                # Here are the group that vectors cannot code, and the end of the sub-stream; without vectors, all.
                i = begin_part + done
                n_scalar = min(n_part - done, 64) if HAS_AVX2 else n_part
                writer = _BitWriter(window, n_bits, at)
                window, n_bits, at = _append_codes(symbols, place + i, values, first + i, n_scalar, code, writer, out)
                if at < 0:
                    return -1
                done += n_scalar
        if n_bits:
            at += 1
        buffers.stream_bytes[s] = at - begin
    return at
