"""The tables of a frame's codebooks and levels, stacked for the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..dtypes import DType
from ..kernels.core.bundles import Books, Planes
from ..kernels.core.specialized import Specialized
from ..kernels.entropy import prefix_code
from ..kernels.entropy.code_tables import fill_encoders, fill_tables
from ..kernels.entropy.prefix_code import ESCAPE, MAX_LENGTH
from .codebook import Codebook

_FEW = 8  #: max codebooks of a frame whose tables are kept: the tables to decode one take 40 KiB


def stack(
    codebooks: tuple[Codebook, ...], widths: tuple[int, ...], masks: tuple[int, ...], tail_bits: int, decode: bool
) -> tuple[Books, Planes]:
    """Return the tables of a frame's codebooks and planes for the kernels, which only read them; the last are kept.

    Args:
        widths: Width of each plane's items in bits.
        masks: Plane mask of every level.
        tail_bits: Width of the value type's tail.
        decode: True for tables to decode with, False for tables to encode with.

    Raises:
        Corruption: A codebook is not complete.
    """
    cached = _stack_one if len(codebooks) < 2 else _stack_few if len(codebooks) <= _FEW else _stack
    return cached(codebooks, widths, masks, tail_bits, decode)


def residual_tables(dtype: DType, codebooks: tuple[Codebook, ...], decode: bool) -> Books:
    """Return the tables of a frame's residual codebooks, as :func:`stack` does."""
    books, _ = stack(codebooks, (), (0,) * (dtype.bits // 4), 0, decode)
    return books


@lru_cache(maxsize=2)
def digit_tables(n_digits: int) -> np.ndarray:
    """Return what each symbol of a residual means, uint8[4, 256].

    The rows are plane marks, first digit, shift of the first digit, and shift of the bytes.
    """
    tables = np.zeros((4, 256), np.uint8)
    symbols = np.arange(1, 1 + 15 * n_digits)
    digit = (symbols - 1) // 15
    n_planes = n_digits // 2
    tables[0, symbols] = (1 << digit // 2) - 1 | (digit % 2) << n_planes - 1
    tables[1, symbols] = symbols - 15 * digit
    tables[2, symbols] = 4 * digit
    tables[3, symbols] = 4 * (digit % 2)
    return tables


def _stack(
    codebooks: tuple[Codebook, ...], widths: tuple[int, ...], masks: tuple[int, ...], tail_bits: int, decode: bool
) -> tuple[Books, Planes]:
    n = len(codebooks)
    marks, shifts, planes = tables_of_planes(widths, masks, tail_bits)
    books = empty_books(n, decode)
    if not decode and n:
        _fill_encoders(codebooks, marks, shifts, books)
        return books, planes
    for k, codebook in enumerate(codebooks):
        _fill_tables("books", k, codebook.range_array, codebook.length_array, codebook.head_bits, marks, shifts, books)
        books.escape_code[k] = codebook.codes[ESCAPE]
        codebook.fill_decode_table(books.table[k])
    return books, planes


def empty_books(n: int, decode: bool) -> Books:
    """Return the tables of ``n`` codebooks, to decode or to encode with, uninitialized."""
    return Books(
        n_symbols=np.empty(n, np.int64),
        lengths=np.empty((n, 256), np.uint8),
        first=np.empty((n, 16), np.int64),
        counts=np.empty((n, 16), np.int64),
        number=np.empty((n, 16), np.int64),
        ranges=np.empty((n, 3, 256), np.uint8),
        coded=np.empty((n, 256), np.uint8),
        with_gaps=np.empty(n, np.bool_),
        mark_of=np.empty((n, 256), np.uint8),
        shift=np.empty((n, 8, 256), np.uint8),
        head_of=np.empty((n, 256), np.uint16),
        narrow_head_of=np.empty((n, 256), np.uint8),
        run_symbol=np.empty(n, np.int64),
        escape_code=np.empty(n, np.uint32),
        table=np.empty((n, prefix_code.TABLE_SIZE), np.uint64) if decode else np.empty((n, 256), np.uint32),
    )


_fill_all, _fill_tables = Specialized(fill_encoders), Specialized(fill_tables)


def _fill_encoders(codebooks: tuple[Codebook, ...], marks: np.ndarray, shifts: np.ndarray, books: Books) -> None:
    """Fill all tables to encode with by one kernel: new codebooks come at every call. Raises Corruption."""
    complete = _fill_all(
        "books",
        np.array([codebook.range_array for codebook in codebooks]),
        np.array([codebook.length_array for codebook in codebooks]),
        codebooks[0].head_bits,
        marks,
        shifts,
        np.empty(MAX_LENGTH + 1, np.uint32),
        np.empty(ESCAPE + 1, np.uint32),
        books,
    )
    if not complete:
        _ = [codebook.codes for codebook in codebooks]  # says so


#: Symbols of a frame's first codebook up to which runs of others than zero are looked for: with more, there are none.
MAX_SYMBOLS_WITH_RUNS = 10


def run_symbols_of(books: Books, n: int) -> np.ndarray:
    """Return the symbols that empty sub-streams stand for in frames of their own: of each of ``n`` codebooks without
    zeros the one of one bit, if there is one: where all values have the same exponent, they are runs. int64[n]."""
    symbols = np.zeros(n, np.int64)
    for k in range(n):
        lengths = books.lengths[k]
        if not lengths[0] and (one_bit := np.flatnonzero(lengths[1:ESCAPE] == 1)).size:
            symbols[k] = 1 + one_bit[0]
    return symbols


# Ranks that share codebooks use the same ones at every step, a few for each piece of a model's gradients.
_stack_one = lru_cache(128)(_stack)
_stack_few = lru_cache(48)(_stack)


@lru_cache(64)
def tables_of_planes(
    widths: tuple[int, ...], masks: tuple[int, ...], tail_bits: int
) -> tuple[np.ndarray, np.ndarray, Planes]:
    """Return marks and shifts of :func:`level_tables`, and the planes as the kernels take them; kept."""
    marks, shifts = level_tables(widths, masks, tail_bits)
    uniform = uniform_shifts(marks, shifts)
    planes = Planes(len(widths), np.array(widths, np.int64), uniform, chunks_of(widths, marks, shifts, tail_bits))
    return marks, shifts, planes


def level_tables(widths: Sequence[int], masks: Sequence[int], tail_bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Return of which planes each level owns items, and where in the tail these lie.

    Args:
        widths: Width of each plane's items in bits.
        masks: Plane mask of every level.
        tail_bits: Width of the tail.

    Returns:
        Marks, uint8[n_levels + 1]: bit p is set if the level owns an item of plane p; and shifts, uint8[8, n_levels +
        1]: the tail's bit at which each plane's item begins. The last column (index -1) is zero's, which owns nothing.
    """
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
    """Return the shift that all levels with an item in a plane share, int64[8]; -1 for planes where they differ."""
    uniform = np.zeros(8, np.int64)
    for plane in range(8):
        values = set(shift[plane][marks >> plane & 1 == 1].tolist())
        uniform[plane] = -1 if len(values) > 1 else next(iter(values), 0)
    return uniform


def chunks_of(widths: Sequence[int], marks: np.ndarray, shift: np.ndarray, tail_bits: int) -> np.ndarray:
    """Return where chunks lie if all levels take them in the same way (``kernels.planes.narrow_avx512``): int64[12].

    The numbers are, in order:

    0. the number of wide planes; 0 if levels do something else, or a chunk lies across the middle of 24 bits
    1. by how many bits a half plane's items are above the lowest bit of their chunk, or -1
    2. the factors that put the first two chunks into the upper twelve bits, a byte each
    3. the factors that put the other chunks into the lower twelve bits
    4. to 11. uint8[64]: for the bytes of two tails in a row, where their chunks begin
    """
    n_wide = next((n for n in (len(widths), len(widths) - 1) if n > 0 and _nested(widths, n, marks, shift)), 0)
    starts = [24 - sum(widths[: k + 1]) if k < n_wide else 18 - 6 * k for k in range(4)]
    beyond = [start - (12 if k < 2 else 0) for k, start in enumerate(starts)]
    if tail_bits != 24 or not 0 < n_wide <= 4 or not all(0 <= bits <= 6 for bits in beyond):
        return np.zeros(12, np.int64)
    half = 6 - widths[-1] if n_wide < len(widths) else -1
    factors = [1 << bits for bits in beyond]
    picks = np.array([starts[i % 4] + 32 * (i // 4 % 2) for i in range(64)], np.uint8)
    pairs = [factors[0] | factors[1] << 8, factors[2] | factors[3] << 8]
    return np.concatenate([np.array([n_wide, half, *pairs], np.int64), picks.view(np.int64)])


def _nested(widths: Sequence[int], n_wide: int, marks: np.ndarray, shift: np.ndarray) -> bool:
    """Return True if the planes are nested.

    That is, all levels own the first few of ``n_wide`` planes, and those that own the last plane, if that is another,
    own the upper part of the next chunk of six bits.
    """
    n_own = [bin(int(mark) & (1 << n_wide) - 1).count("1") for mark in marks]
    if any(int(mark) & (1 << n_wide) - 1 != (1 << n) - 1 for mark, n in zip(marks, n_own, strict=True)):
        return False
    if n_wide == len(widths):
        return True
    owners = [(n, int(where)) for n, where, mark in zip(n_own, shift[n_wide], marks, strict=True) if mark >> n_wide & 1]
    return set(widths[:n_wide]) == {6} and all(where == 24 - 6 * n - widths[-1] for n, where in owners)
