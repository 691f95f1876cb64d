"""The tables of a frame's codebooks and levels, stacked for the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .codebook import Codebook
from .kernels import prefix_code
from .kernels.parameters import Books
from .kernels.prefix_code import ESCAPE


def stack(
    codebooks: Sequence[Codebook],
    widths: Sequence[int],
    masks: Sequence[int],
    tail_bits: int,
    *,
    decode: bool,
) -> tuple[Books, np.ndarray]:
    """The tables of a frame's codebooks for the kernels, and ``uniform`` (see ``kernels.planes``).

    ``widths``: plane widths; ``masks``: plane mask of every level; ``tail_bits``: T; ``decode``: whether ``table``
    decodes or encodes.
    """
    n = len(codebooks)
    first, count, number = (np.zeros((n, 16), np.int64) for _ in range(3))
    ranges, shift = np.zeros((n, 3, 256), np.uint8), np.zeros((n, 8, 256), np.uint8)
    mark_of, head_of = np.zeros((n, 256), np.uint8), np.zeros((n, 256), np.uint16)
    lengths = np.frombuffer(bytearray(b"".join(c.lengths for c in codebooks)), np.uint8).reshape(n, 256)
    run_symbol, escape_code = np.zeros(n, np.int64), np.zeros(n, np.uint32)
    table = np.zeros((n, prefix_code.TABLE_SIZE), np.uint64) if decode else np.zeros((n, 256), np.uint32)
    marks, shifts = level_tables(widths, masks, tail_bits)
    for k, codebook in enumerate(codebooks):
        levels, heads = codebook.meanings
        mark_of[k], shift[k], head_of[k] = marks[levels], shifts[:, levels], heads
        start = 1
        for level, (begin, size) in enumerate(codebook.ranges):
            first[k, level], count[k, level], number[k, level] = begin, size, start
            ranges[k, :, level] = begin & 255, size, start
            start += size
        escape_code[k] = codebook.codes[ESCAPE]
        table[k] = codebook.decode_table if decode else codebook.encode_table
    # Symbols that the ranges span but that have no code are escaped, and zero likewise.
    coded = np.where(lengths > 0, np.arange(256, dtype=np.uint8), np.uint8(ESCAPE))
    in_use = np.arange(256) <= np.array([c.n_symbols for c in codebooks]).reshape(n, 1)
    with_gaps = ((lengths == 0) & in_use).any(axis=1)
    n_symbols = np.array([c.n_symbols for c in codebooks], np.int64)
    books = Books(
        n_symbols=n_symbols,
        lengths=lengths,
        first=first,
        counts=count,
        number=number,
        ranges=ranges,
        coded=coded,
        with_gaps=with_gaps,
        mark_of=mark_of,
        shift=shift,
        head_of=head_of,
        narrow_head_of=head_of.astype(np.uint8),
        run_symbol=run_symbol,
        escape_code=escape_code,
        table=table,
    )
    return books, uniform_shifts(marks, shifts)


def level_tables(widths: Sequence[int], masks: Sequence[int], tail_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Which planes each level owns items of (uint8[n_levels + 1]), and where in the tail they lie (uint8[8, n_levels
    + 1]); the last column (index -1) is zero's."""
    marks, shift = np.zeros(len(masks) + 1, np.uint8), np.zeros((8, len(masks) + 1), np.uint8)
    marks[:-1] = masks
    for level, mask in enumerate(masks):
        below = tail_bits
        for plane, width in enumerate(widths):
            if mask >> plane & 1:
                below -= width
                shift[plane, level] = below
    return marks, shift


def uniform_shifts(marks: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Per plane the shift that all levels with an item there share, int64[8]; -1 where they differ."""
    uniform = np.zeros(8, np.int64)
    for plane in range(8):
        values = set(shift[plane][marks >> plane & 1 == 1].tolist())
        uniform[plane] = -1 if len(values) > 1 else next(iter(values), 0)
    return uniform
