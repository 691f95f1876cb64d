"""The tables of codebooks by symbol and by level, for :class:`bundles.Books`.

Symbols number a codebook's ranges of relative heads, level by level, after the 0 that stands for zero:

    ranges, (first, count)     level 0: (-2, 4)        level 1: (-1, 2)
    symbol                 0   1    2    3    4        5    6                255
    stands for          zero  -2   -1    0    1       -1    0             escape
"""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8, U16, U32
from .prefix_code import ESCAPE, MAX_LENGTH, canonical_codes, encode_table


@kernel
def fill_tables(k, codebook_ranges, code_lengths, head_bits, level_marks, level_shifts, books):
    """Fill row ``k`` of the tables of all codebooks, but for their codes.

    Args:
        k: Number of the codebook.
        codebook_ranges: int64[n_levels, 2], its (first, count) of relative heads.
        code_lengths: uint8[256], 0 for a symbol without a code.
        level_marks: uint8[n_levels + 1], planes of which a value of each level owns an item; the last is zero's.
        level_shifts: uint8[8, n_levels + 1], by plane and level where that item lies in the tail; likewise.
        books: :class:`bundles.Books`, results.
    """
    # docs/format.md section 5. What a loop over values wants to know of a symbol is laid out by symbol, so that it is
    # one look-up, by vectors 64 at a time: no loop over values ever looks for the range that a symbol is in.
    n_levels, mask = codebook_ranges.shape[0], (1 << head_bits) - 1
    # Symbols that stand for nothing have the tables of level 0, which keeps loops over all symbols free of branches.
    for symbol in range(256):
        books.lengths[k, symbol] = code_lengths[symbol]
        # Symbols that the ranges span but that have no code are escaped, and zero likewise.
        books.coded[k, symbol] = U8(symbol) if code_lengths[symbol] else U8(ESCAPE)
        books.mark_of[k, symbol] = level_marks[0]
        books.head_of[k, symbol], books.narrow_head_of[k, symbol] = U16(0), U8(0)
    for row in range(3):
        for symbol in range(256):
            books.ranges[k, row, symbol] = U8(0)
    for plane in range(8):
        shift = level_shifts[plane, 0]
        for symbol in range(256):
            books.shift[k, plane, symbol] = shift
    # Zero is the symbol of no level: its values own no item in any plane, so its mark is 0 (section 7).
    books.mark_of[k, 0] = level_marks[n_levels]
    for plane in range(8):
        books.shift[k, plane, 0] = level_shifts[plane, n_levels]
    with_gaps, symbol = code_lengths[0] == 0, 1
    # All 16 rows that a frame may have are written, those of levels that it does not have as empty ranges: whatever
    # byte stands for a level, the look-up by it finds nothing of an earlier frame's.
    for level in range(16):
        begin, size, start = np.int64(0), np.int64(0), np.int64(0)
        if level < n_levels:
            begin, size, start = codebook_ranges[level, 0], codebook_ranges[level, 1], np.int64(symbol)
            row = books.ranges[k]
            row[0, level], row[1, level], row[2, level] = U8(begin & 255), U8(size), U8(symbol)
        books.first[k, level], books.counts[k, level], books.number[k, level] = begin, size, start
        for j in range(size):
            books.mark_of[k, symbol] = level_marks[level]
            for plane in range(8):
                books.shift[k, plane, symbol] = level_shifts[plane, level]
            # Relative heads wrap around: a range of (254, 4) with 8 bits is -2, -1, 0, 1, kept as 254, 255, 0, 1.
            head = (begin + j) & mask
            books.head_of[k, symbol], books.narrow_head_of[k, symbol] = U16(head), U8(head)
            with_gaps = with_gaps or code_lengths[symbol] == 0
            symbol += 1
    books.n_symbols[k], books.with_gaps[k] = symbol - 1, with_gaps
    books.run_symbol[k] = 0  # rows of zeros are the runs that there are


@kernel
def fill_encoders(codebook_ranges, code_lengths, head_bits, level_marks, level_shifts, following, codes, books):
    """Fill the tables of all codebooks to encode with; return whether all codes are complete.

    Args:
        codebook_ranges: int64[n, n_levels, 2], see :func:`fill_tables`, like the others.
        code_lengths: uint8[n, 256].
        level_marks: uint8[n_levels + 1].
        level_shifts: uint8[8, n_levels + 1].
        following: uint32[MAX_LENGTH + 1], scratch.
        codes: uint32[256], scratch.
        books: :class:`bundles.Books`, results.
    """
    complete = True
    for k in range(len(code_lengths)):
        fill_tables(k, codebook_ranges[k], code_lengths[k], head_bits, level_marks, level_shifts, books)
        # The scratch holds the code before, which may have had an escape where this one has none.
        codes[ESCAPE] = U32(0)
        total = canonical_codes(code_lengths[k], books.n_symbols[k], following, codes)
        complete = total == 1 << MAX_LENGTH and complete
        books.escape_code[k] = codes[ESCAPE]
        encode_table(code_lengths[k], codes, books.table[k])
    return complete
