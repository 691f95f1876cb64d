"""The start of a small frame by one kernel: what :mod:`gcodec.format` reads step by step, where a lossless frame of
coded blocks has nothing special about it.

Reading codebooks and making tables of them takes several times as long as decoding a few thousand values, most of it
for calls. What this kernel does not know, or finds wrong, it leaves to the steps, by returning False.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..core.bundles import Books
from ..core.jit import kernel
from ..core.scalar import U8, U64
from ..core.unaligned import load_u16, load_u64, subarray
from ..entropy.code_tables import fill_tables
from ..entropy.encode_streams import checksum
from ..entropy.prefix_code import ESCAPE, MAX_LENGTH, canonical_codes, decode_table
from .block_index import CHECKSUM_AT, find_blocks

N_CODEBOOKS_AT, SIZES_AT, SIZES_END, PRELUDE_BYTES_AT, SUMS_END = 11, 16, 24, 32, 48  #: places in a frame's header
_INLINE, _BY_ID = 0, 1  #: kinds of codebook record
_MAX_SYMBOLS = 254


class ReadForm(NamedTuple):
    """A value type, as its frames are read.

    Attributes:
        head_bits: Bits of the head.
        marks: uint8[2], see ``code_tables.fill_tables``.
        shifts: uint8[8, 2], likewise.
        start: uint8[n], the prelude before the records of codebooks, whatever its sizes, sums and codebooks are.
        n_blocks: Number of blocks.
        margin: Bytes after a block that may be read when it is decoded.
    """

    head_bits: int
    marks: np.ndarray
    shifts: np.ndarray
    start: np.ndarray
    n_blocks: int
    margin: int


class KnownBooks(NamedTuple):
    """Codebooks that frames may name, all of one kind of head.

    Attributes:
        ranges: int64[n, 1, 2], (first, count) of relative heads.
        lengths: uint8[n, 256], bits of codes.
        records: uint8[n, 16], the records that name them.
    """

    ranges: np.ndarray
    lengths: np.ndarray
    records: np.ndarray


class ReadMemory(NamedTuple):
    """The memory that one frame at a time is read in, and the results.

    Attributes:
        books: Result: tables to decode with, of as many codebooks as the frame has.
        kept: uint8, the records that the tables are made of.
        kept_for: int64[2]: their bytes, -1 if there are none, and symbols of an entry at most.
        ranges: int64[1, 2], scratch.
        lengths: uint8[256], scratch.
        following: uint32[MAX_LENGTH + 1], scratch.
        codes: uint32[256], scratch.
        tables: uint64[4096], scratch.
        sizes: int64[n_blocks or more], result: bytes of each block.
        offsets: int64[n_blocks or more], result: where each begins, in the frame or in the tail.
        tail: uint8[n], result: the last blocks, so near the end of the frame that others lie behind it, and zeros.
    """

    books: Books
    kept: np.ndarray
    kept_for: np.ndarray
    ranges: np.ndarray
    lengths: np.ndarray
    following: np.ndarray
    codes: np.ndarray
    tables: np.ndarray
    sizes: np.ndarray
    offsets: np.ndarray
    tail: np.ndarray


@kernel
def _begins_like(frame, start):
    """Return whether a frame's prelude begins as one of its form and shape does."""
    for i in range(len(start)):
        varies = i == N_CODEBOOKS_AT or SIZES_AT <= i < SIZES_END or PRELUDE_BYTES_AT <= i < SUMS_END
        if not varies and frame[i] != start[i]:
            return False
    return True


@kernel
def _read_record(frame, at, end, head_bits, known, memory):
    """Read the record of a codebook at byte ``at``, to ``ranges`` and ``lengths`` of the memory.

    Returns:
        The byte after it, or -1 if it is not as it should be, or does not end by ``end``.
    """
    ranges, lengths = memory.ranges, memory.lengths
    if at + 8 > end:
        return -1
    # Kind 1 (docs/format.md section 5) is 16 bytes that name a codebook, by number and hash: all must be those of a
    # known one.
    if frame[at] == _BY_ID:
        for k in range(len(known.records)):
            i = 0
            while i < 16 and at + i < end and frame[at + i] == known.records[k, i]:
                i += 1
            if i == 16:
                ranges[0, 0], ranges[0, 1] = known.ranges[k, 0, 0], known.ranges[k, 0, 1]
                for symbol in range(256):
                    lengths[symbol] = known.lengths[k, symbol]
                return at + 16
        return -1
    # A record of kind 0 with one level (docs/format.md section 5):
    #
    #     at     + 1        + 2   + 4     + 6     + 8                           stop      after
    #     kind | n_levels | 0   | first | count | (count + 2) lengths of 4 bits | zeros   |
    first, count = np.int64(load_u16(frame, at + 4)), np.int64(load_u16(frame, at + 6))
    n_bytes = (count + 3) // 2
    stop = at + 8 + n_bytes
    after = at + (stop - at + 3 & ~3)
    if frame[at] != _INLINE or frame[at + 1] != 1 or load_u16(frame, at + 2) != 0:
        return -1
    if first >> head_bits or count > _MAX_SYMBOLS or after > end:
        return -1
    for i in range(stop, after):
        if frame[i]:
            return -1
    for symbol in range(256):
        lengths[symbol] = U8(0)
    ranges[0, 0], ranges[0, 1] = first, count
    # A byte has two lengths, the lower nibble first: those of zero, the escape, and the symbols.
    for i in range(count + 2):
        length = frame[at + 8 + (i >> 1)] >> U8(4 * (i & 1)) & U8(15)
        if length > MAX_LENGTH:
            return -1
        lengths[0 if i == 0 else ESCAPE if i == 1 else i - 1] = length
    return after


@kernel
def _fill_books(frame, at, end, n_books, most, form, known, memory):
    """Fill the tables of the codebooks whose records begin at byte ``at``; return the byte after these, or -1."""
    for k in range(n_books):
        at = _read_record(frame, at, end, form.head_bits, known, memory)
        if at < 0:
            return np.int64(-1)
        lengths, codes = memory.lengths, memory.codes
        for symbol in range(256):
            codes[symbol] = np.uint32(0)
        if canonical_codes(lengths, memory.ranges[0, 1], memory.following, codes) != 1 << MAX_LENGTH:
            return np.int64(-1)
        fill_tables(k, memory.ranges, lengths, form.head_bits, form.marks, form.shifts, memory.books)
        memory.books.escape_code[k] = codes[ESCAPE]
        decode_table(lengths, memory.ranges[0, 1], codes, memory.tables, most, memory.books.table[k])
    return np.int64(at)


@kernel
def _copy_tail(frame, n_blocks, margin, memory):
    """Copy the blocks behind which a frame has fewer than ``margin`` bytes to the tail, and say where they begin there.

    Returns:
        The number of the first of them, or -1 if they have no room.
    """
    first, sizes, offsets, tail = n_blocks, memory.sizes, memory.offsets, memory.tail
    while first > 0 and offsets[first - 1] + sizes[first - 1] > len(frame) - margin:
        first -= 1
    start = offsets[first] if first < n_blocks else len(frame)
    n_bytes = len(frame) - start
    if n_bytes > len(tail) - margin:
        return np.int64(-1)
    #     frame    | block 0 | block 1 | block 2 |
    #     tail               | block 1 | block 2 | zeros, as many as the margin
    source, target, behind = (
        subarray(frame, start, n_bytes),
        subarray(tail, 0, n_bytes),
        subarray(tail, n_bytes, margin),
    )
    for i in range(n_bytes):
        target[i] = source[i]
    for i in range(margin):
        behind[i] = U8(0)
    for b in range(first, n_blocks):
        offsets[b] -= start
    return np.int64(first)


@kernel
def read_whole(frame, most, form, known, memory):
    """Read a frame's prelude: check it, make the tables of its codebooks, find its blocks.

    Args:
        frame: uint8[n], the frame, with its header.
        most: Symbols that an entry of the tables has at most.
        form: :class:`ReadForm` of its type and shape.
        known: :class:`KnownBooks`.
        memory: :class:`ReadMemory`, of this type and for as many codebooks as the header says; takes the results.

    Returns:
        The number of the first block that is in the tail; -1 where the frame is not as usual.
    """
    at, n_books, n_blocks = len(form.start), len(memory.books.n_symbols), form.n_blocks
    n_bytes = np.int64(load_u64(frame, PRELUDE_BYTES_AT))
    if not at <= n_bytes <= len(frame) or n_bytes & 7 or not _begins_like(frame, form.start):
        return np.int64(-1)
    if checksum(frame, 0, n_bytes >> 2, CHECKSUM_AT >> 2, U64(0)) != load_u64(frame, CHECKSUM_AT):
        return np.int64(-1)
    kept, kept_for, index_bytes = memory.kept, memory.kept_for, 4 * n_blocks + 7 & ~7
    index_at = n_bytes - index_bytes
    # The tables may be there already: frames of one stream have the same codebooks.
    n_records = kept_for[0]
    # Records end where the index begins, but for up to 7 bytes of padding. Compared byte by byte, they say whether the
    # tables can stay, which is much quicker than to make them (4096 entries each).
    is_kept = n_records >= 0 and kept_for[1] >= most and at + n_records <= index_at < at + n_records + 8
    if is_kept:
        for i in range(n_records):
            is_kept = is_kept and frame[at + i] == kept[i]
    if not is_kept:
        # First of all, so that a record that turns out wrong halfway leaves no tables that pass for good ones.
        kept_for[0] = -1
        end = _fill_books(frame, at, index_at, n_books, most, form, known, memory)
        n_records = end - at
        if end < 0 or n_records > len(kept):
            return np.int64(-1)
        for i in range(n_records):
            kept[i] = frame[at + i]
        kept_for[0], kept_for[1] = n_records, most
    if at + n_records + 7 & ~7 != index_at:
        return np.int64(-1)
    for i in range(at + n_records, index_at):
        if frame[i]:
            return np.int64(-1)
    sizes, offsets = subarray(memory.sizes, 0, n_blocks), subarray(memory.offsets, 0, n_blocks)
    if find_blocks(frame, index_at, n_bytes, sizes, offsets) != len(frame):
        return np.int64(-1)
    return _copy_tail(frame, n_blocks, form.margin, memory)
