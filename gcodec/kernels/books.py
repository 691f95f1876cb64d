"""The tables of one codebook by symbol and by level, for :class:`parameters.Books`."""

from __future__ import annotations

from .jit import kernel
from .prefix_code import ESCAPE
from .scalar import U8, U16


@kernel
def fill_tables(
    ranges,
    code_lengths,
    head_bits,
    level_marks,
    level_shifts,
    lengths,
    first,
    counts,
    number,
    by_level,
    coded,
    mark_of,
    shift,
    head_of,
    narrow_head_of,
):
    """One row of the tables of :class:`parameters.Books` from a codebook.

    ``ranges``: int64[n_levels, 2] of (first, count); ``code_lengths``: uint8[256]; ``level_marks``, ``level_shifts``:
    uint8[n_levels + 1] and uint8[8, n_levels + 1], the last column zero's; results, zeroed by the caller:
    ``lengths``, ``coded``, ``mark_of``, ``narrow_head_of``: uint8[256], ``first``, ``counts``, ``number``:
    int64[16], ``by_level``: uint8[3, 256], ``shift``: uint8[8, 256], ``head_of``: uint16[256]. Returns whether
    zero or a symbol of the ranges lacks a code.
    """
    n_levels, mask = ranges.shape[0], (1 << head_bits) - 1
    for symbol in range(256):
        lengths[symbol] = code_lengths[symbol]
        # Symbols that the ranges span but that have no code are escaped, and zero likewise.
        coded[symbol] = U8(symbol) if code_lengths[symbol] else U8(ESCAPE)
        mark_of[symbol] = level_marks[0]
        for plane in range(8):
            shift[plane, symbol] = level_shifts[plane, 0]
    mark_of[0] = level_marks[n_levels]
    for plane in range(8):
        shift[plane, 0] = level_shifts[plane, n_levels]
    gaps = code_lengths[0] == 0
    symbol = 1
    for level in range(n_levels):
        begin, size = ranges[level, 0], ranges[level, 1]
        first[level], counts[level], number[level] = begin, size, symbol
        by_level[0, level], by_level[1, level], by_level[2, level] = U8(begin & 255), U8(size), U8(symbol)
        for j in range(size):
            mark_of[symbol] = level_marks[level]
            for plane in range(8):
                shift[plane, symbol] = level_shifts[plane, level]
            head_of[symbol] = U16((begin + j) & mask)
            narrow_head_of[symbol] = U8((begin + j) & mask)
            gaps = gaps or code_lengths[symbol] == 0
            symbol += 1
    return gaps
