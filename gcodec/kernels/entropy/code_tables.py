"""The tables of one codebook by symbol and by level, for :class:`bundles.Books`."""

from __future__ import annotations

import numpy as np

from ..core.jit import kernel
from ..core.scalar import U8, U16, U32
from .prefix_code import ESCAPE, MAX_LENGTH, canonical_codes, encode_table


@kernel
def fill_tables(
    k,
    codebook_ranges,
    code_lengths,
    head_bits,
    level_marks,
    level_shifts,
    n_symbols,
    lengths,
    first,
    counts,
    number,
    ranges,
    coded,
    with_gaps,
    mark_of,
    shift,
    head_of,
    narrow_head_of,
    run_symbol,
):
    """Row ``k`` of the tables of :class:`bundles.Books` (the codes apart) from a codebook.

    ``codebook_ranges``: int64[n_levels, 2] of (first, count); ``code_lengths``: uint8[256]; ``level_marks``,
    ``level_shifts``: uint8[n_levels + 1] and uint8[8, n_levels + 1], the last column zero's; the others are results:
    ``lengths``, ``coded``, ``mark_of``, ``narrow_head_of``: uint8[n, 256]; ``first``, ``counts``, ``number``:
    int64[n, 16]; ``ranges``: uint8[n, 3, 256]; ``shift``: uint8[n, 8, 256]; ``head_of``: uint16[n, 256];
    ``n_symbols``, ``run_symbol``: int64[n]; ``with_gaps``: bool[n].
    """
    n_levels, mask = codebook_ranges.shape[0], (1 << head_bits) - 1
    for symbol in range(256):
        lengths[k, symbol] = code_lengths[symbol]
        # Symbols that the ranges span but that have no code are escaped, and zero likewise.
        coded[k, symbol] = U8(symbol) if code_lengths[symbol] else U8(ESCAPE)
        mark_of[k, symbol] = level_marks[0]
        head_of[k, symbol], narrow_head_of[k, symbol] = U16(0), U8(0)
    for row in range(3):
        for symbol in range(256):
            ranges[k, row, symbol] = U8(0)
    for plane in range(8):
        usual = level_shifts[plane, 0]
        for symbol in range(256):
            shift[k, plane, symbol] = usual
    mark_of[k, 0] = level_marks[n_levels]
    for plane in range(8):
        shift[k, plane, 0] = level_shifts[plane, n_levels]
    gaps, symbol = code_lengths[0] == 0, 1
    for level in range(16):
        begin, size, start = np.int64(0), np.int64(0), np.int64(0)
        if level < n_levels:
            begin, size, start = codebook_ranges[level, 0], codebook_ranges[level, 1], np.int64(symbol)
            ranges[k, 0, level], ranges[k, 1, level], ranges[k, 2, level] = U8(begin & 255), U8(size), U8(symbol)
        first[k, level], counts[k, level], number[k, level] = begin, size, start
        for j in range(size):
            mark_of[k, symbol] = level_marks[level]
            for plane in range(8):
                shift[k, plane, symbol] = level_shifts[plane, level]
            head_of[k, symbol], narrow_head_of[k, symbol] = U16((begin + j) & mask), U8((begin + j) & mask)
            gaps = gaps or code_lengths[symbol] == 0
            symbol += 1
    n_symbols[k], with_gaps[k] = symbol - 1, gaps
    run_symbol[k] = 0  # rows of zeros are the runs that there are


@kernel
def fill_encoders(
    codebook_ranges, code_lengths, head_bits, level_marks, level_shifts, following, codes, tables, escape_code, table
):
    """Fill all rows of the encoding tables of :class:`bundles.Books`; return whether all codes are complete.

    ``codebook_ranges``: int64[n, n_levels, 2]; ``code_lengths``: uint8[n, 256]; ``following``: uint32[MAX_LENGTH + 1],
    ``codes``: uint32[256], scratch; results: ``tables``: those of :func:`fill_tables`; ``escape_code``: uint32[n];
    ``table``: uint32[n, 256]; other arguments as there.
    """
    complete = True
    for k in range(len(code_lengths)):
        fill_tables(k, codebook_ranges[k], code_lengths[k], head_bits, level_marks, level_shifts, *tables)
        codes[ESCAPE] = U32(0)
        complete = canonical_codes(code_lengths[k], following, codes) == 1 << MAX_LENGTH and complete
        escape_code[k] = codes[ESCAPE]
        encode_table(code_lengths[k], codes, table[k])
    return complete
