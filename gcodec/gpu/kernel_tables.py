"""Value types, bit layouts and codebooks as the CUDA kernels take them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..dtypes import DTYPES, DType
from ..errors import Unsupported
from ..format.codebook import Codebook
from ..format.columns import ColumnReferences, for_kernels
from ..format.levels import Level
from ..format.modes import BitLayout
from ..format.tables import level_tables
from ..kernels.cuda.launch_tables import DecodeTables, EncodeTables, ValueCoding, info_of
from ..kernels.entropy.prefix_code import ESCAPE, TABLE_SIZE
from .gpu_memory import Memory

NAMES = tuple(t.name for t in DTYPES if t.on_gpu)  #: the types that are coded on a device
_ZERO = 16  #: level of the zero symbol in the kernels' tables: it owns nothing


def check_type(dtype: DType) -> None:
    """Raise Unsupported for types that are not coded on a device."""
    if dtype.name not in NAMES:
        raise Unsupported(f"{', '.join(NAMES)} are coded on CUDA devices, not {dtype.name}: move it to the CPU")


def value_coding_of(
    dtype: DType, n_levels: int, n_planes: int, bit_layout: BitLayout | None, nearest: bool
) -> ValueCoding:
    """Return how values of a type are cut and rounded.

    Args:
        bit_layout: Which bits are kept; values are not rounded if None.
        nearest: Round to nearest; truncate if False.
    """
    lossy, prune = (False, False) if bit_layout is None else (bit_layout.lossy, bit_layout.prune)
    numbers = (
        dtype.bits,
        dtype.head_bits,
        dtype.tail_bits,
        1 << dtype.bits - 1,
        dtype.infinity,
        dtype.smallest_normal,
        n_levels,
        n_planes,
        lossy,
        nearest,
        prune,
        dtype.fine_bits > 0,
    )
    return ValueCoding(*map(np.uint32, numbers))


def drops_of(bit_layout: BitLayout) -> np.ndarray:
    """Return the mantissa bits that each level loses: uint32[16]."""
    return bit_layout.drop_table[:16].astype(np.uint32)


def encode_tables(memory: Memory, dtype: DType, bit_layout: BitLayout, books: Sequence[Codebook]) -> EncodeTables:
    """Return the tables of an encoder's codebooks, on the device."""
    codes, ranges = np.zeros((max(len(books), 1), 256), np.uint32), np.zeros((max(len(books), 1), 16, 3), np.uint32)
    escapes = np.zeros((max(len(books), 1), 2), np.uint32)
    for k, book in enumerate(books):
        book.fill_encode_table(codes[k])
        number = 1
        for level, (first, count) in enumerate(book.ranges):
            ranges[k, level] = first, count, number
            number += count
        escapes[k] = book.codes[ESCAPE], book.lengths[ESCAPE]
    widths, shifts, infos = _shared(dtype, bit_layout.widths, bit_layout.levels, books)
    return EncodeTables(*memory.send_all(drops_of(bit_layout), widths, shifts, codes, infos, ranges, escapes))


def decode_tables(
    memory: Memory,
    dtype: DType,
    widths: tuple[int, ...],
    levels: tuple[Level, ...],
    books: Sequence[Codebook],
    columns: Sequence[ColumnReferences],
) -> DecodeTables:
    """Return the tables of some frames' codebooks and column references, on the device."""
    lookups = np.zeros((max(len(books), 1), TABLE_SIZE), np.uint16)
    n_symbols = np.array([book.n_symbols for book in books] or [0], np.uint32)
    for k, book in enumerate(books):
        lookups[k] = _lookup_of(book)
    spans, heads = for_kernels(tuple(columns))
    arrays = (*_shared(dtype, widths, levels, books), lookups, n_symbols, spans.reshape(-1, 5), heads)
    return DecodeTables(*memory.send_all(*[a if a.size else np.zeros((1, *a.shape[1:]), a.dtype) for a in arrays]))


@lru_cache(256)
def _lookup_of(book: Codebook) -> np.ndarray:
    """Return a codebook's part of :attr:`DecodeTables.lookups`: uint16[4096]."""
    lookup, codes = np.zeros(TABLE_SIZE, np.uint16), book.codes
    for symbol, length in enumerate(book.lengths):
        if length:
            lookup[int(codes[symbol]) :: 1 << length] = symbol | length << 8
    return lookup


def _shared(
    dtype: DType, widths: tuple[int, ...], levels: Sequence[Level], books: Sequence[Codebook]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``widths``, ``shifts`` and ``infos``, the tables that encoding and decoding share."""
    marks, by_level = level_tables(widths, [level.mask for level in levels], dtype.tail_bits)
    shifts = np.zeros(_ZERO + 1, np.uint64)
    for plane in range(len(widths)):
        shifts[: len(levels)] |= by_level[plane, :-1].astype(np.uint64) << np.uint64(8 * plane)
    infos = np.zeros((max(len(books), 1), 256), np.uint32)
    for k, book in enumerate(books):
        infos[k] = [
            info_of(int(head), int(marks[level]), int(level)) if level >= 0 else info_of(0, 0, _ZERO)
            for level, head in book.meanings.T
        ]
    wide: Any = np.array([*widths, *[0] * (8 - len(widths))], np.uint32)
    return wide, shifts, infos
